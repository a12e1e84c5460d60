"""CuPy, through which the cuda backend reaches the driver, the runtime and cuBLAS; imported when it is first needed."""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

from compiler.errors import BackendError

__all__ = ["cublas", "cupy", "why_unavailable"]


def why_unavailable() -> str | None:
    """Return why the cuda backend does not work on this machine, or None if it works."""
    try:
        cupy()
    except BackendError as e:
        return str(e)
    return None


def cupy() -> Any:
    """Return the CuPy module; raise BackendError if CuPy, the driver or a GPU is missing."""
    try:
        module = importlib.import_module("cupy")
    except ImportError as e:
        raise BackendError(
            "the cuda backend needs CuPy: install hlogym[cuda12] or hlogym[cuda13] to match the driver "
            f"(import failed: {e}), or use backend='cpu'; without a GPU, exe.kernels has the sources of the kernels"
        ) from e
    problem = _no_device(module)
    if problem is not None:
        raise BackendError(f"CuPy finds no GPU here ({problem}); use backend='cpu', or read the kernels in exe.kernels")
    return module


def _no_device(module: Any) -> str | None:
    try:
        count = module.cuda.runtime.getDeviceCount()
    except Exception as e:  # the types that CuPy raises cannot be named without CuPy
        return str(e).splitlines()[0]
    return None if count else "no device"


def cublas() -> Any:
    """Return the C functions of cuBLAS, by name; raise BackendError if the library cannot be loaded.

    CuPy's own binding sets the stream before each product, which resets the workspace of the handle, so a captured
    graph would contain allocations.
    """
    given = getattr(cupy().cuda, "cublas_functions", None)  # a stand-in for CuPy has its own
    return _cublas_library() if given is None else given


@functools.lru_cache(maxsize=1)
def _cublas_library() -> ctypes.CDLL:
    tried = []
    for load in (_cublas_of_pathfinder, _cublas_of_cupy, lambda: ctypes.CDLL("libcublas.so")):
        try:
            return load()
        except Exception as e:  # the pathfinder's errors have types of their own
            tried.append((str(e).splitlines() or [type(e).__name__])[0])
    raise BackendError(
        f"matrix products on the GPU need cuBLAS, which cannot be loaded ({tried[0]}): install nvidia-cublas for the "
        "CUDA version of CuPy, or a CUDA toolkit"
    )


def _cublas_of_pathfinder() -> ctypes.CDLL:
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)


def _cublas_of_cupy() -> ctypes.CDLL:
    """Return the library that CuPy has loaded, or loads itself."""
    cuda: Any = importlib.import_module("cupy").cuda
    major = cuda.runtime.runtimeGetVersion() // 1000
    importlib.import_module("cupy_backends.cuda.libs.cublas")
    return ctypes.CDLL(f"libcublas.so.{major}")
