"""LAPACK custom calls of JAX on CPU, implemented with scipy's LAPACK.

A target is `lapack_` + type letter + routine (+ `_ffi`). Options are character codes in backend_config. The last two
dimensions are those of the matrices, all others are batch dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.interpreter.custom_calls import options, register_custom_call
from compiler.interpreter.linalg import solve_triangular
from compiler.interpreter.registry import Array, Value, arrays
from compiler.interpreter.tridiagonal import solve_perturbed
from compiler.ir.instruction import HloInstruction
from compiler.ir.shape import Shape

Routine = Callable[[dict[str, int], Sequence[Array], Sequence[Shape]], Sequence[Any]]
"""Maps options, one matrix (or vector) per operand, and result shapes to the results of one batch element."""


def _routine(name: str, like: Array) -> Any:
    from scipy.linalg import lapack  # importing it takes long, and few programs need it

    return lapack.get_lapack_funcs(name, (like,))


def _potrf(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    return tuple(_routine("potrf", args[0])(args[0], lower=_is(o, "uplo", "L"), clean=False))


def _getrf(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    lu, pivots, info = _routine("getrf", args[0])(args[0])
    return lu, pivots + 1, info


def _geqrf(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    qr, tau, _, _ = _routine("geqrf", args[0])(args[0])
    return qr, tau


def _geqp3(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    qr, pivots, tau, _, _ = _routine("geqp3", args[0])(args[0])
    return qr, pivots, tau


def _orgqr(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    name = "ungqr" if np.iscomplexobj(args[0]) else "orgqr"
    q, _, _ = _routine(name, args[0])(args[0], args[1])
    return (q,)


def _ormqr(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    reflectors, tau, c = args
    name, adjoint = ("unmqr", "C") if np.iscomplexobj(c) else ("ormqr", "T")
    where = "L" if o["left"] else "R", adjoint if o["transpose"] else "N"
    multiply = functools.partial(_routine(name, c), *where, reflectors[:, : len(tau)], tau, c)
    _, work, _ = multiply(-1)  # asks how much memory it needs
    product, _, _ = multiply(int(work[0].real))
    return (product,)


def _syevd(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    name = "heevd" if np.iscomplexobj(args[0]) else "syevd"
    w, v, info = _routine(name, args[0])(args[0], compute_v=_is(o, "mode", "V"), lower=_is(o, "uplo", "L"))
    return v, w, info


def _svd(name: str, o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    vectors, full = not _is(o, "mode", "N"), _is(o, "mode", "A")
    u, s, vt, info = _routine(name, args[0])(args[0], compute_uv=vectors, full_matrices=full)
    if not vectors:
        u, vt = (np.zeros(shape.dimensions[-2:], shape.dtype) for shape in shapes[2:4])
    return args[0], s, u, vt, info


def _geev(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    left, right = _is(o, "compute_left", "V"), _is(o, "compute_right", "V")
    found = _routine("geev", args[0])(args[0], compute_vl=left, compute_vr=right)
    if np.iscomplexobj(args[0]):
        w, vl, vr, info = found
        values: tuple[Any, ...] = (w,)
    else:
        wr, wi, vl, vr, info = found
        values = (wr, wi)
        vl, vr = _paired(vl, wi), _paired(vr, wi)
    square = shapes[-2]
    blank = np.zeros(square.dimensions[-2:], square.dtype)
    return *values, vl if left else blank, vr if right else blank, info


def _paired(vectors: Array, imaginary: Array) -> Array:
    """Expand LAPACK's real storage of conjugate pairs of eigenvectors into complex columns."""
    out = vectors.astype(np.result_type(vectors, np.complex64))
    if not vectors.size:
        return out
    for j in np.flatnonzero(imaginary > 0):
        out[:, j] = vectors[:, j] + 1j * vectors[:, j + 1]
        out[:, j + 1] = out[:, j].conj()
    return out


def _gees(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    found = _routine("gees", args[0])(lambda *_: False, args[0], compute_v=_is(o, "mode", "V"), sort_t=0)
    if np.iscomplexobj(args[0]):
        t, sdim, w, vs, _, info = found
        return t, vs, w, sdim, info
    t, sdim, wr, wi, vs, _, info = found
    return t, vs, wr, wi, sdim, info


def _gehrd(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    return tuple(_routine("gehrd", args[0])(args[0], lo=o["low"] - 1, hi=o["high"] - 1))


def _sytrd(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    name = "hetrd" if np.iscomplexobj(args[0]) else "sytrd"
    return tuple(_routine(name, args[0])(args[0], lower=_is(o, "uplo", "L")))


def _gtsv(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    lower, diagonal, upper, b = args
    # The off-diagonal operands have one unused element at one end.
    dl, d, du, x, info = _routine("gtsv", b)(lower[1:], diagonal, upper[:-1], b)
    return np.concatenate([lower[:1], dl]), d, np.concatenate([du, upper[-1:]]), x, info


def _perturbed(o: dict[str, int], args: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Any]:
    lower, diagonal, upper, b = args
    return (solve_perturbed(lower, diagonal, upper, b),)


def _is(o: dict[str, int], name: str, letter: str) -> bool:
    return o.get(name, 0) == ord(letter)


def _trsm(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    o = options(instruction)
    a, b = arrays(values)[:2]
    transpose = {ord("N"): 0, ord("T"): 1, ord("C"): 2}[o["trans_x"]]
    return solve_triangular(
        a, b, left=_is(o, "side", "L"), lower=_is(o, "uplo", "L"), transpose=transpose, unit=_is(o, "diag", "U")
    )


def _batched(routine: Routine, ranks: Sequence[int]) -> Callable[[HloInstruction, Sequence[Value]], Value]:
    """Apply a routine of single matrices to a batch; `ranks` are those of its operands without batch dimensions."""

    def run(instruction: HloInstruction, values: Sequence[Value]) -> Value:
        shapes = list(instruction.shape.leaves())
        given = arrays(values)
        batch = given[0].shape[: given[0].ndim - ranks[0]]
        results = [np.zeros(s.dimensions, s.dtype) for s in shapes]
        for at in np.ndindex(batch):
            args = [x[at] for x in given]
            if args[0].size == 0:
                continue
            for result, found in zip(results, routine(options(instruction), args, shapes), strict=True):
                result[at] = found
        return tuple(results) if instruction.shape.is_tuple else results[0]

    return run


def _product_by_q(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    tau, c = arrays(values)[1:]
    return _batched(_ormqr, (2, 1, 2))(instruction, values) if tau.size else c  # Q is the identity


_ROUTINES: dict[str, tuple[Routine, tuple[int, ...], str]] = {
    "potrf": (_potrf, (2,), "sdcz"),
    "getrf": (_getrf, (2,), "sdcz"),
    "geqrf": (_geqrf, (2,), "sdcz"),
    "geqp3": (_geqp3, (2, 1), "sdcz"),
    "orgqr": (_orgqr, (2, 1), "sd"),
    "ungqr": (_orgqr, (2, 1), "cz"),
    "syevd": (_syevd, (2,), "sd"),
    "heevd": (_syevd, (2,), "cz"),
    "gesdd": (functools.partial(_svd, "gesdd"), (2,), "sdcz"),
    "gesvd": (functools.partial(_svd, "gesvd"), (2,), "sdcz"),
    "geev": (_geev, (2,), "sdcz"),
    "gees": (_gees, (2,), "sdcz"),
    "gehrd": (_gehrd, (2,), "sdcz"),
    "sytrd": (_sytrd, (2,), "sd"),
    "hetrd": (_sytrd, (2,), "cz"),
    "gtsv": (_gtsv, (1, 1, 1, 2), "sdcz"),
}

for _name, (_function, _ranks, _letters) in _ROUTINES.items():
    for _letter in _letters:
        register_custom_call(f"lapack_{_letter}{_name}_ffi", _batched(_function, _ranks))
for _letter in "sdcz":
    register_custom_call(f"lapack_{_letter}trsm_ffi", _trsm)
    register_custom_call(f"lapack_{_letter}{'ormqr' if _letter in 'sd' else 'unmqr'}_ffi", _product_by_q)
register_custom_call("tridiagonal_solve_perturbed_ffi", _batched(_perturbed, (1, 1, 1, 2)))
