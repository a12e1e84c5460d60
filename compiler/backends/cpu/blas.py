"""Addresses of BLAS and LAPACK routines and of the functions that control their number of threads, for C.

Products are computed by the package scipy-openblas32, a newer OpenBLAS than SciPy's (results/headroom/rules.md), or
by SciPy's where it is not installed. LAPACK is SciPy's, as in JAX: eigenvectors and Schur forms are not unique.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from pathlib import Path

__all__ = ["blas_address", "blas_threading", "lapack_address", "lapack_threading"]

_PACKAGE = "scipy_openblas32"
_PREFIX = "scipy_"
"""Prefix of the names of its functions."""


@functools.lru_cache(maxsize=16)
def blas_address(name: str) -> int:
    """Return the address of a Fortran BLAS routine for matrix products."""
    function = getattr(_package(), f"{_PREFIX}{name}_", None)
    return _exported("cython_blas", name) if function is None else _address(function)


@functools.lru_cache(maxsize=64)
def lapack_address(name: str) -> int:
    """Return the address of a Fortran LAPACK routine, or of `trsm`, which kernels call with them."""
    return _exported("cython_blas" if name.endswith("trsm") else "cython_lapack", name)


@functools.lru_cache(maxsize=1)
def blas_threading() -> tuple[int, int]:
    """Return the addresses of the functions that get and set the number of threads of `blas_address`'s routines.

    Return (0, 0) if they are not OpenBLAS's or cannot be found.
    """
    library = _package()
    return lapack_threading() if library is None else _threading(library, _PREFIX) or (0, 0)


@functools.lru_cache(maxsize=1)
def lapack_threading() -> tuple[int, int]:
    """Return the addresses of the functions that get and set the number of threads of `lapack_address`'s routines.

    Return (0, 0) if SciPy's BLAS is not OpenBLAS or cannot be found.
    """
    lapack_address("strsm")
    try:
        mapped = {line.rpartition(" ")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return 0, 0
    for name in sorted(p for p in mapped if "scipy" in p and "openblas" in p and _PACKAGE not in p):
        library = ctypes.CDLL(name)
        for prefix in (_PREFIX, ""):
            found = _threading(library, prefix)
            if found is not None:
                return found
    return 0, 0


@functools.lru_cache(maxsize=1)
def _package() -> ctypes.CDLL | None:
    """Return the library of the package, or None if it is not installed or cannot be loaded.

    It is limited to one thread, because only compiled programs call it and divide their products themselves.
    """
    try:
        package = importlib.import_module(_PACKAGE)
        library = ctypes.CDLL(str(Path(package.get_lib_dir()) / package.get_library(fullname=True)))
    except (ImportError, OSError):
        return None
    library.scipy_openblas_set_num_threads(1)
    return library


def _exported(module: str, name: str) -> int:
    """Return the address of a routine in the table that SciPy exports to Cython code."""
    capsule = importlib.import_module(f"scipy.linalg.{module}").__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


def _threading(library: ctypes.CDLL, prefix: str) -> tuple[int, int] | None:
    getter = getattr(library, f"{prefix}openblas_get_num_threads", None)
    setter = getattr(library, f"{prefix}openblas_set_num_threads", None)
    return None if getter is None or setter is None else (_address(getter), _address(setter))


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
