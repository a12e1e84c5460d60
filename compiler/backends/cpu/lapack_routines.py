"""The routines of SciPy's LAPACK and BLAS that kernels call without Python.

They are given to the runtime when a program that needs them is loaded, because SciPy takes long to import.
"""

from __future__ import annotations

import ctypes

from compiler.backends.cpu.blas import lapack_address

KIND = "lapack"
"""The kind of these kernels."""
_LETTERS = {
    "syevd": "sd", "gesdd": "sdcz", "heevd": "cz", "geev": "sdcz", "gees": "sdcz", "gehrd": "sdcz", "sytrd": "sd",
    "hetrd": "cz", "gtsv": "sdcz", "getrf": "cz", "potrf": "cz", "geqrf": "cz", "ungqr": "cz", "geqp3": "sdcz",
    "trsm": "cz",
}  # fmt: skip
"""The routines by name, with the letters of the types for which kernels call them."""
ROUTINES = tuple(letter + name for name, letters in _LETTERS.items() for letter in letters)
"""The routines in the order of `hlogym_lapack` in runtime.c."""


def provide_lapack(runtime: ctypes.CDLL) -> None:
    """Give the runtime the addresses of the routines that the kernels call."""
    table = (ctypes.c_void_p * len(ROUTINES)).in_dll(runtime, "hlogym_lapack")
    for n, name in enumerate(ROUTINES):
        table[n] = lapack_address(name)
