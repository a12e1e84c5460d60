"""What failures of CUDA mean: one message per kind, that names the kernel and says what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from compiler.backends.cuda.blas import CublasError
from compiler.errors import BackendError, CodegenError, DeviceLostError, HlogymError, MemoryLimitError
from compiler.support.memory import size_text

__all__ = ["cuda_error_types", "memory_error", "translated"]

LOST = {
    214: "an uncorrectable memory error (ECC)",
    700: "an access to an illegal address",
    702: "a time limit of the driver",
    710: "a failed assertion",
    714: "a corrupted stack",
    715: "an illegal instruction",
    716: "a misaligned address",
    717: "an access in the wrong address space",
    718: "an invalid program counter",
    719: "an unspecified launch failure",
    721: "a failure of a process that shares the GPU",
}
"""Error codes after which CUDA refuses all further calls of the process, with what they mean."""
NO_MEMORY = 2
INSUFFICIENT_DRIVER = (3, 35, 36, 100, 101, 802, 803, 804)
WRONG_ARCHITECTURE = (200, 209, 218, 222)
LAUNCH_REFUSED = (1, 9, 98, 701)
MOST_NAMES = 6


def cuda_error_types(xp: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions by which CuPy reports errors of CUDA and of its libraries, out of memory included."""
    cuda = xp.cuda
    return (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError, CublasError)


def memory_error(xp: Any, needed: int, what: str) -> MemoryLimitError:
    """Return the error of an allocation on the GPU that failed."""
    try:
        free, total = xp.cuda.runtime.memGetInfo()
        left = f"{size_text(free)} of {size_text(total)} are free"
    except Exception:  # the context may be lost, too
        left = "the free memory is unknown"
    others = "; JAX reserves most of it unless XLA_PYTHON_CLIENT_PREALLOCATE=false" if "jax" in sys.modules else ""
    return MemoryLimitError(f"{what} needs {size_text(needed)} of GPU memory, and {left}{others}")


def translated(error: Exception, doing: str, kernels: Sequence[str]) -> HlogymError | None:
    """Return the error that users see for an exception of CuPy, or None if it is not an error of CUDA.

    Args:
        error: the exception.
        doing: what failed, as the subject of a sentence, such as "the kernel hk_1 of %add".
        kernels: symbols of the kernels that were launched and not yet known to have run, for errors that are
            noticed late.
    """
    if isinstance(error, HlogymError):
        return error
    if type(error).__name__ == "OutOfMemoryError":
        return MemoryLimitError(f"{doing} needs more GPU memory than is free: {_first_line(error)}")
    status = getattr(error, "status", None)
    if not isinstance(status, int) or isinstance(status, bool):
        return None
    if isinstance(error, CublasError):
        return BackendError(f"cuBLAS failed in {doing}: {_first_line(error)}")
    if status in LOST:
        return _lost(LOST[status], kernels, doing)
    if status == NO_MEMORY:
        return MemoryLimitError(f"{doing} needs more GPU memory than is free: {_first_line(error)}")
    if status in INSUFFICIENT_DRIVER:
        return BackendError(f"the GPU cannot be used ({_first_line(error)}): check the driver with nvidia-smi")
    if status in WRONG_ARCHITECTURE:
        return CodegenError(f"{doing} was compiled for another GPU ({_first_line(error)}); compile the program again")
    if status in LAUNCH_REFUSED:
        return CodegenError(f"{doing} cannot be launched: {_first_line(error)}")
    return BackendError(f"CUDA failed in {doing}: {_first_line(error)}")


def _lost(meaning: str, kernels: Sequence[str], doing: str) -> DeviceLostError:
    distinct = list(dict.fromkeys(kernels))
    if len(distinct) == 1:
        where = f"the kernel {distinct[0]}"
    elif distinct:
        more = f" and {len(distinct) - MOST_NAMES} more" if len(distinct) > MOST_NAMES else ""
        where = (
            f"one of the kernels {', '.join(distinct[:MOST_NAMES])}{more} (set `executable.synchronous = True` in a "
            "fresh process to see which)"
        )
    else:
        where = doing
    return DeviceLostError(
        f"{where} ended with {meaning}; this process cannot use the GPU any more, so start a fresh one", distinct
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
