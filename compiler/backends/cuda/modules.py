"""Kernels loaded on a GPU: each cubin is a module of its own, which programs with the same kernel share."""

from __future__ import annotations

import hashlib
import threading
import weakref
from contextlib import suppress
from typing import Any

from compiler.backends.cuda.cubins import Cubin
from compiler.errors import BackendError

__all__ = ["LoadedKernel", "load_kernel"]


MAX_DYNAMIC_SHARED = 8
"""The attribute of a function that says how much dynamic shared memory its launches may have (CUfunction_attribute)."""
INVALID_VALUE = 1
"""The error of the driver where a block cannot have so much."""


class LoadedKernel:
    """A kernel on a GPU, which is unloaded when no program uses it any more.

    Attributes:
        function: handle of the function.
    """

    def __init__(self, driver: Any, cubin: Cubin) -> None:
        module = driver.moduleLoadData(cubin.image)
        weakref.finalize(self, _unload, driver, module).atexit = False
        self.function: int = driver.moduleGetFunction(module, cubin.symbol)
        if cubin.resources.dynamic_bytes:
            _allow_shared(driver, self.function, cubin)


def _allow_shared(driver: Any, function: int, cubin: Cubin) -> None:
    """Let a function have its dynamic shared memory, which may be more than it may have unless it asks for it."""
    try:
        driver.funcSetAttribute(function, MAX_DYNAMIC_SHARED, cubin.resources.dynamic_bytes)
    except driver.CUDADriverError as e:
        if getattr(e, "status", None) != INVALID_VALUE:
            raise
        raise BackendError(
            f"the kernel {cubin.symbol} needs {cubin.resources.shared_bytes} bytes of shared memory per block, more "
            "than this GPU has"
        ) from None


def _unload(driver: Any, module: int) -> None:
    with suppress(Exception):  # the context may be lost, and with it the module
        driver.moduleUnload(module)


_loaded: weakref.WeakValueDictionary[tuple[int, int, str], LoadedKernel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def load_kernel(driver: Any, device: int, cubin: Cubin) -> LoadedKernel:
    """Return a kernel on the current device, and load it unless it is there already.

    Args:
        driver: CuPy's binding of the driver.
        device: number of the current device.
        cubin: the kernel.
    """
    key = (id(driver), device, hashlib.sha256(cubin.image).hexdigest())
    with _lock:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = LoadedKernel(driver, cubin)
        return found
