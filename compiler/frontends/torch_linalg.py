"""Lowerings of ATen ops on complex numbers, Fourier transforms and matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, axes
from compiler.frontends.torch_movement import piece, triangle
from compiler.frontends.torch_reductions import vector_norm
from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape

LOWERINGS = Lowerings()
H = HloInstruction

_PART = {T.C64: T.F32, T.C128: T.F64}
_WHOLE = {T.F32: T.C64, T.F64: T.C128}


@LOWERINGS.op("complex")
def _complex(b: TorchBuilder, re: H, im: H) -> H:
    dims = b.out.dimensions
    return b.add(Opcode.COMPLEX, b.broadcast(re, dims), b.broadcast(im, dims))


@LOWERINGS.op("polar")
def _polar(b: TorchBuilder, size: H, angle: H) -> H:
    parts = [
        b.binary(Opcode.MULTIPLY, size, b.add(op, angle), size.shape.element_type)
        for op in (Opcode.COSINE, Opcode.SINE)
    ]
    return b.add(Opcode.COMPLEX, *parts)


@LOWERINGS.op("real", "imag")
def _part(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.REAL if b.what.startswith("aten.real") else Opcode.IMAG, x)


@LOWERINGS.op("angle")
def _angle(b: TorchBuilder, x: H) -> H:
    if x.shape.element_type.is_complex:
        return b.add(Opcode.ATAN2, b.add(Opcode.IMAG, x), b.add(Opcode.REAL, x))
    t = b.out.element_type
    x = b.convert(x, t)
    turned = b.select(b.compare(x, 0, "LT"), math.pi, 0.0, t)
    return b.select(b.compare(x, x, "NE"), x, turned, t)


@LOWERINGS.op("_conj", "conj", "conj_physical", "_conj_physical")
def _conjugate(b: TorchBuilder, x: H | complex) -> H:
    if not isinstance(x, HloInstruction):  # a factor of the program, in its gradient
        return b.constant(x.conjugate(), b.out.element_type)
    if not x.shape.element_type.is_complex:
        return x
    return b.add(Opcode.COMPLEX, b.add(Opcode.REAL, x), b.add(Opcode.NEGATE, b.add(Opcode.IMAG, x)))


@LOWERINGS.op("resolve_conj", "resolve_neg")
def _same(b: TorchBuilder, x: H) -> H:
    return x


@LOWERINGS.op("view_as_real")
def _as_real(b: TorchBuilder, x: H) -> H:
    dims = (*x.shape.dimensions, 1)
    parts = [b.reshape(b.add(op, x), dims) for op in (Opcode.REAL, Opcode.IMAG)]
    return b.add(Opcode.CONCATENATE, *parts, dimensions=(len(dims) - 1,))


@LOWERINGS.op("view_as_complex")
def _as_complex(b: TorchBuilder, x: H) -> H:
    last = x.shape.rank - 1
    parts = [b.reshape(piece(b, x, last, k, k + 1), x.shape.dimensions[:-1]) for k in range(2)]
    return b.add(Opcode.COMPLEX, *parts)


# ---- Fourier transforms


def _factor(n: int, normalization: int) -> float:
    """Return torch's factor of the plain sum: 1 for normalization 0, 1 / sqrt(n) for 1, 1 / n for 2."""
    return {0: 1.0, 1: 1 / math.sqrt(n), 2: 1 / n}[normalization]


def _transform(b: TorchBuilder, x: H, dim: int, kind: str, length: int) -> H:
    """Transform one dimension without normalization (the inverse of HLO divides by n)."""
    rank, t = x.shape.rank, x.shape.element_type
    order = [d for d in range(rank) if d != dim] + [dim]
    x = b.transpose(x, order)
    if kind == "RFFT":
        shape = Shape(_WHOLE[t], (*x.shape.dimensions[:-1], length // 2 + 1))
    elif kind == "IRFFT":
        shape = Shape(_PART[t], (*x.shape.dimensions[:-1], length))
    else:
        shape = x.shape
    found = b.add(Opcode.FFT, x, shape=shape, fft_type=kind, fft_length=(length,))
    return b.transpose(found, [order.index(d) for d in range(rank)])


def _scaled(b: TorchBuilder, x: H, factor: float) -> H:
    return x if factor == 1 else b.binary(Opcode.MULTIPLY, x, factor, x.shape.element_type)


@LOWERINGS.op("_fft_c2c")
def _complex_to_complex(b: TorchBuilder, x: H, dims: Sequence[int], normalization: int, forward: bool) -> H:
    factor = 1.0
    for d in axes(list(dims), x.shape.rank):
        n = x.shape.dimensions[d]
        x = _transform(b, x, d, "FFT" if forward else "IFFT", n)
        factor *= _factor(n, normalization) * (1 if forward else n)
    return _scaled(b, x, factor)


@LOWERINGS.op("_fft_r2c")
def _real_to_complex(b: TorchBuilder, x: H, dims: Sequence[int], normalization: int, onesided: bool) -> H:
    if not onesided:
        return _complex_to_complex(b, b.convert(x, b.out.element_type), dims, normalization, True)
    last, n = dims[-1] % x.shape.rank, x.shape.dimensions[dims[-1]]
    half = _scaled(b, _transform(b, x, last, "RFFT", n), _factor(n, normalization))
    return _complex_to_complex(b, half, dims[:-1], normalization, True) if len(dims) > 1 else half


@LOWERINGS.op("_fft_c2r")
def _complex_to_real(b: TorchBuilder, x: H, dims: Sequence[int], normalization: int, length: int) -> H:
    if len(dims) > 1:
        x = _complex_to_complex(b, x, dims[:-1], normalization, False)
    found = _transform(b, x, dims[-1] % x.shape.rank, "IRFFT", length)
    return _scaled(b, found, length * _factor(length, normalization))


# ---- matrices


def transposed(b: TorchBuilder, x: H) -> H:
    """Transpose matrices."""
    order = list(range(x.shape.rank))
    order[-2:] = order[-1], order[-2]
    return b.transpose(x, order)


def adjoint(b: TorchBuilder, x: H) -> H:
    """Return the conjugate transpose."""
    return _conjugate(b, transposed(b, x))


@LOWERINGS.op("linalg_cholesky_ex", "linalg_cholesky", "cholesky")
def _cholesky(b: TorchBuilder, x: H, upper: bool = False, *, check_errors: bool = False) -> Any:
    """Factor a matrix of which one triangle is read.

    If it is not positive definite, the result is NaN, and torch's error code is still 0.
    """
    x = adjoint(b, x) if upper else x
    factor = triangle(b, b.add(Opcode.CHOLESKY, x, lower=True), 0, lower=True)
    factor = adjoint(b, factor) if upper else factor
    return [factor, b.full(0, b.out_at(1))] if "_ex" in b.what else factor


def solve_triangle(b: TorchBuilder, a: H, y: H, lower: bool, left: bool = True, unit: bool = False, **more: Any) -> H:
    """Solve `a x = y`, or `x a = y` unless `left`; batch dimensions broadcast."""
    batch = _batch(a, y)
    a, y = (b.broadcast(v, (*batch, *v.shape.dimensions[-2:])) for v in (a, y))
    how = "ADJOINT" if more.get("adjoint") else "NO_TRANSPOSE"
    return b.add(Opcode.TRIANGULAR_SOLVE, a, y, left_side=left, lower=lower, unit_diagonal=unit, transpose_a=how)


def _batch(*matrices: H) -> tuple[int, ...]:
    return np.broadcast_shapes(*(m.shape.dimensions[:-2] for m in matrices))


@LOWERINGS.op("linalg_solve_triangular")
def _solve_triangular(b: TorchBuilder, a: H, y: H, *, upper: bool, left: bool = True, unitriangular: bool = False) -> H:
    return solve_triangle(b, a, y, not upper, left, unitriangular)


@LOWERINGS.op("triangular_solve")
def _triangular_solve(
    b: TorchBuilder, y: H, a: H, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> list[H]:
    """Return the solution of `a x = y`, or that with the transpose of `a`, and a copy of `a`."""
    matrix = transposed(b, a) if transpose else a
    whole = b.broadcast(a, (*_batch(a, y), *a.shape.dimensions[-2:]))
    return [solve_triangle(b, matrix, y, upper == transpose, unit=unitriangular), whole]


@LOWERINGS.op("cholesky_solve", "_cholesky_solve_helper")
def _cholesky_solve(b: TorchBuilder, y: H, factor: H, upper: bool = False) -> H:
    lower = adjoint(b, factor) if upper else factor
    return solve_triangle(b, lower, solve_triangle(b, lower, y, True), True, adjoint=True)


@LOWERINGS.op("cholesky_inverse")
def _cholesky_inverse(b: TorchBuilder, factor: H, upper: bool = False) -> H:
    return _cholesky_solve(b, _eye(b, factor.shape), factor, upper)


def _eye(b: TorchBuilder, shape: Shape) -> H:
    return b.broadcast(b.constant(np.eye(shape.dimensions[-1]), shape.element_type), shape.dimensions)


@LOWERINGS.op("_cdist_forward")
def _cdist(b: TorchBuilder, x: H, y: H, p: float, *_: Any) -> H:
    """Return the distances between every row of `x` and every row of `y`."""
    batch, n, m, t = b.out.dimensions[:-2], x.shape.dimensions[-2], y.shape.dimensions[-2], b.out.element_type
    width = x.shape.dimensions[-1]
    rows = b.broadcast(b.reshape(x, (*x.shape.dimensions[:-2], n, 1, width)), (*batch, n, m, width))
    columns = b.broadcast(b.reshape(y, (*y.shape.dimensions[:-2], 1, m, width)), (*batch, n, m, width))
    return vector_norm(b, b.binary(Opcode.SUBTRACT, rows, columns, t), p, (len(batch) + 2,))


@LOWERINGS.op("_trilinear")
def _trilinear(
    b: TorchBuilder, x: H, y: H, z: H, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    summed: Sequence[int], _unroll: int = 1,
) -> H:  # fmt: skip
    """Multiply three tensors, each with inserted dimensions of size one, and sum over some dimensions."""
    t: PrimitiveType = b.out.element_type
    spread = []
    for v, places in ((x, expand1), (y, expand2), (z, expand3)):
        sizes = iter(v.shape.dimensions)
        spread.append(b.reshape(v, [1 if d in places else next(sizes) for d in range(v.shape.rank + len(places))]))
    product = b.binary(Opcode.MULTIPLY, b.binary(Opcode.MULTIPLY, spread[0], spread[1], t), spread[2], t)
    return b.reduce(Opcode.ADD, product, tuple(summed), 0)
