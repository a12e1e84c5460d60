"""The device that programs run on in a worker: a GPU through CuPy, or the stand-in, which emulates its kernels."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.backends.registry import find_backend
from compiler.errors import BackendError

__all__ = ["Device", "open_device"]


@dataclass(frozen=True)
class Device:
    """Where programs run.

    Attributes:
        backend: name of the backend that compiles for it.
        cupy: the CuPy module; None for the stand-in.
        simulated: the GPU of the stand-in, if it is one.
    """

    backend: str
    cupy: Any | None
    simulated: Any | None = None

    def hold(self, array: npt.ArrayLike) -> Any:
        """Return an array in the device's memory; CuPy cannot convert every type, so that bytes are copied."""
        host = np.asarray(array)
        if self.cupy is None:
            return host
        flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        return self.cupy.asarray(flat).view(host.dtype).reshape(host.shape)

    def wait(self) -> None:
        """Wait until the device has done what was asked of it; raises what failed since the last time."""
        if self.cupy is not None:
            self.cupy.cuda.runtime.deviceSynchronize()
        if self.simulated is not None and self.simulated.faults:
            raise BackendError("; ".join(self.simulated.faults))

    def is_lost(self) -> bool:
        """Return whether the device can no longer be used by this process, as after an access to a wrong address."""
        try:
            self.wait()
        except Exception:  # CuPy's own errors cannot be named without it
            return True
        return False


@contextmanager
def open_device(stand_in: bool) -> Iterator[Device]:
    """Yield the GPU, or its stand-in.

    Raises:
        BackendError: there is no GPU.
    """
    if not stand_in:
        if (reason := find_backend("cuda").why_unavailable()) is not None:
            raise BackendError(reason)
        yield Device("cuda", importlib.import_module("cupy"))
        return
    from compiler.backends.cuda.emulation import stand_in as emulated

    with emulated.installed() as gpu:
        yield Device("cuda", None, gpu)
