"""Addresses of SciPy's BLAS and LAPACK routines and of the functions that control its number of threads, for C."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

__all__ = ["blas_address", "blas_threading", "lapack_address"]


@functools.lru_cache(maxsize=16)
def blas_address(name: str) -> int:
    """Return the address of a Fortran BLAS routine, from the table that SciPy exports to Cython code."""
    from scipy.linalg import cython_blas

    return _exported(dict(cython_blas.__pyx_capi__), name)


@functools.lru_cache(maxsize=16)
def lapack_address(name: str) -> int:
    """Return the address of a Fortran LAPACK routine, from the table that SciPy exports to Cython code."""
    from scipy.linalg import cython_lapack

    return _exported(dict(cython_lapack.__pyx_capi__), name)


def _exported(capsules: dict[str, object], name: str) -> int:
    capsule = capsules[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


@functools.lru_cache(maxsize=1)
def blas_threading() -> tuple[int, int]:
    """Return the addresses of the functions that get and set the number of threads of SciPy's OpenBLAS.

    Return (0, 0) if SciPy's BLAS is not OpenBLAS or cannot be found.
    """
    blas_address("sgemm")
    try:
        mapped = {line.rpartition(" ")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return 0, 0
    for name in sorted(p for p in mapped if "scipy" in p and "openblas" in p):
        library = ctypes.CDLL(name)
        for prefix in ("scipy_", ""):
            getter = getattr(library, f"{prefix}openblas_get_num_threads", None)
            setter = getattr(library, f"{prefix}openblas_set_num_threads", None)
            if getter is not None and setter is not None:
                return _address(getter), _address(setter)
    return 0, 0


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
