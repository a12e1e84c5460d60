"""Programs called by PyTorch run on the threads of the OpenMP library that PyTorch itself uses."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from pathlib import Path
from typing import Any

from compiler.backends.cpu.native_runtime import OPENMP_FUNCTIONS, RUNTIME

__all__ = ["openmp_functions", "share_threads"]


def openmp_functions() -> list[int]:
    """Return the addresses of OPENMP_FUNCTIONS in the library that PyTorch uses; none if it does not use GNU OpenMP."""
    torch: Any = importlib.import_module("torch")
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # Symbols are looked up in this library and in those that it depends on, and there may be others of OpenMP.
        library = ctypes.CDLL(str(path), os.RTLD_NOLOAD | os.RTLD_LAZY)
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in OPENMP_FUNCTIONS]
    except (OSError, AttributeError):
        return []
    return [address for address in found if address is not None]


@functools.cache
def share_threads() -> None:
    """Share PyTorch's threads from now on, unless they sleep between parallel regions, as the user may request."""
    waits = os.environ.get("OMP_WAIT_POLICY", "").strip().lower() != "passive" and "GOMP_SPINCOUNT" not in os.environ
    if waits:
        RUNTIME.share_openmp(openmp_functions())
