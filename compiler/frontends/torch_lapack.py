"""Lowerings of ATen matrix decompositions to the LAPACK custom calls that JAX uses on CPU.

PyTorch raises an error for a singular matrix; here the result contains infinities or NaN, and error codes are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.frontends.torch_indexing import gather
from compiler.frontends.torch_linalg import adjoint, solve_triangle, transposed
from compiler.frontends.torch_movement import piece, triangle
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import PadDim, Raw
from compiler.ir.shape import Layout, tuple_shape

LOWERINGS = Lowerings()
H = HloInstruction

_LETTERS = {T.F32: "s", T.F64: "d", T.C64: "c", T.C128: "z"}
_REAL = {T.C64: T.F32, T.C128: T.F64}


def _lapack(b: TorchBuilder, routine: str, operands: Sequence[H], shapes: Sequence[Shape], **options: str) -> list[H]:
    """Call a routine of `compiler.interpreter.lapack` on column-major matrices; options are LAPACK's letters."""
    letter = _LETTERS.get(operands[0].shape.element_type)
    if letter is None:
        raise b.unsupported(f"a matrix of type {operands[0].shape.element_type.text}")
    if letter in "cz":
        routine = {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd"}.get(routine, routine)
    batch = operands[0].shape.rank - 2
    listed = [_by_columns(s, batch) for s in shapes]
    config = ", ".join(f"{name} = {ord(value)} : ui8" for name, value in options.items())
    call = b.add(
        Opcode.CUSTOM_CALL, *operands, shape=tuple_shape(*listed) if len(listed) > 1 else listed[0],
        custom_call_target=f"lapack_{letter}{routine}_ffi", api_version="API_VERSION_TYPED_FFI",
        operand_layout_constraints=Raw("{" + ", ".join(_by_columns(o.shape, batch).to_text() for o in operands) + "}"),
        backend_config=Raw("{" + config + "}"),
    )  # fmt: skip
    if len(listed) == 1:
        return [call]
    return [b.add(Opcode.GET_TUPLE_ELEMENT, call, index=i) for i in range(len(listed))]


def _by_columns(shape: Shape, batch: int) -> Shape:
    """Return the shape with LAPACK's column-major layout; vectors and scalars keep the default layout."""
    rank = shape.rank
    if rank - batch < 2:
        return shape
    return Shape(shape.element_type, shape.dimensions, Layout((rank - 2, rank - 1, *reversed(range(rank - 2)))))


def _sizes(x: H) -> tuple[tuple[int, ...], int, int]:
    *batch, m, n = x.shape.dimensions
    return tuple(batch), m, n


# ---- LU


def _factored(b: TorchBuilder, x: H) -> tuple[H, H]:
    """Return L (below the diagonal) and U in one matrix, and the pivots: the swapped rows, counted from 1."""
    batch, m, n = _sizes(x)
    shapes = [x.shape.without_layout(), Shape(T.S32, (*batch, min(m, n))), Shape(T.S32, batch)]
    lu, pivots, _ = _lapack(b, "getrf", [x], shapes)
    return lu, pivots


def _permutation(b: TorchBuilder, pivots: H, rows: int) -> H:
    """Return the permutation of rows that results from applying the swaps in order."""
    batch, steps = pivots.shape.dimensions[:-1], pivots.shape.dimensions[-1]
    last = len(batch)
    shape = Shape(T.S32, (*batch, rows))
    start = b.add(Opcode.IOTA, shape=shape, iota_dimension=last)

    def swap(inner: TorchBuilder, i: H, order: H, swaps: H) -> list[H]:
        def pick(values: H, where: H) -> H:
            """Return the element of each row at this position."""
            hit = inner.compare(inner.add(Opcode.IOTA, shape=values.shape, iota_dimension=last), where, "EQ")
            return inner.keep_dims(
                inner.reduce(Opcode.ADD, inner.select(hit, values, 0, T.S32), (last,), 0), values.shape, (last,)
            )

        other = inner.binary(Opcode.SUBTRACT, pick(swaps, i), 1, T.S32)
        number = inner.add(Opcode.IOTA, shape=shape, iota_dimension=last)
        first, second = pick(order, i), pick(order, other)
        swapped = inner.select(inner.compare(number, other, "EQ"), first, order, T.S32)
        return [inner.select(inner.compare(number, i, "EQ"), second, swapped, T.S32), swaps]

    return b.repeat(steps, [start, pivots], swap, "swap_rows")[0]


def _rows_ordered(b: TorchBuilder, x: H, order: H) -> H:
    """Permute the rows of matrices."""
    *batch, _, k = x.shape.dimensions
    wide = b.broadcast(b.reshape(order, (*order.shape.dimensions, 1)), (*batch, order.shape.dimensions[-1], k))
    return gather(b, x, len(batch), wide)


def _solved(b: TorchBuilder, lu: H, pivots: H, y: H) -> H:
    """Solve `a x = y` given the LU factors of `a`; batch dimensions broadcast."""
    n = lu.shape.dimensions[-1]
    batch = np.broadcast_shapes(lu.shape.dimensions[:-2], y.shape.dimensions[:-2])
    y = b.broadcast(y, (*batch, *y.shape.dimensions[-2:]))
    order = b.broadcast(_permutation(b, pivots, n), (*batch, n))
    half = solve_triangle(b, lu, _rows_ordered(b, y, order), lower=True, unit=True)
    return solve_triangle(b, lu, half, lower=False)


def _solved_transposed(b: TorchBuilder, lu: H, pivots: H, y: H) -> H:
    """Solve `a^T x = y` given the LU factors of `a`; batch dimensions broadcast."""
    n, upper = lu.shape.dimensions[-1], transposed(b, lu)
    batch = np.broadcast_shapes(lu.shape.dimensions[:-2], y.shape.dimensions[:-2])
    y = b.broadcast(y, (*batch, *y.shape.dimensions[-2:]))
    half = solve_triangle(b, upper, solve_triangle(b, upper, y, lower=True), lower=False, unit=True)
    order = b.broadcast(_permutation(b, pivots, n), (*batch, n))
    # The inverse permutation: the position of each row in the order.
    wide = (*batch, n, n)
    placed = b.compare(
        b.broadcast(b.reshape(order, (*batch, 1, n)), wide),
        b.add(Opcode.IOTA, shape=Shape(T.S32, wide), iota_dimension=len(batch)), "EQ",
    )  # fmt: skip
    numbers = b.add(Opcode.IOTA, shape=Shape(T.S32, wide), iota_dimension=len(batch) + 1)
    back = b.reduce(Opcode.ADD, b.select(placed, numbers, 0, T.S32), (len(batch) + 1,), 0)
    return _rows_ordered(b, half, back)


def _factors_of_determinant(b: TorchBuilder, x: H) -> tuple[H, H]:
    """Return the LU factors with which a determinant and its gradient are computed.

    PyTorch factors the transpose of a real matrix in row-major order, and its gradients assume so.
    """
    value = b.node.args[0].meta.get("val")
    turned = not x.shape.element_type.is_complex and bool(value is not None and value.is_contiguous())
    return _factored(b, transposed(b, x) if turned else x)


@LOWERINGS.op("linalg_lu_factor_ex", "linalg_lu_factor", "_lu_with_info")
def _lu_factor(b: TorchBuilder, x: H, *_: Any, pivot: bool = True, **__: Any) -> list[H]:
    if not pivot:
        raise b.unsupported("a factorization without pivots")
    return [*_factored(b, x), b.full(0, b.out_at(2))] if len(b.result) == 3 else list(_factored(b, x))


@LOWERINGS.op("linalg_lu_solve")
def _lu_solve(b: TorchBuilder, lu: H, pivots: H, y: H, *, left: bool = True, adjoint: bool = False) -> H:
    """Solve `a x = y`, or `x a = y` from the right, for the matrix or its adjoint, given the LU factors of `a`."""
    if (not left or adjoint) and lu.shape.element_type.is_complex:
        raise b.unsupported("solving from the right or by the adjoint for complex matrices")
    solve = _solved if left != adjoint else _solved_transposed
    return solve(b, lu, pivots, y) if left else transposed(b, solve(b, lu, pivots, transposed(b, y)))


@LOWERINGS.op("linalg_lu", "lu_unpack")
def _lu(b: TorchBuilder, x: H, pivots: H | None = None, *_: Any, pivot: bool = True, **__: Any) -> list[H]:
    """Return P, L and U."""
    if not pivot:
        raise b.unsupported("a factorization without pivots")
    if not isinstance(pivots, H):
        x, pivots = _factored(b, x)
    _, m, n = _sizes(x)
    k, t = min(m, n), x.shape.element_type
    order = _permutation(b, pivots, m)
    eye = b.broadcast(b.constant(np.eye(m), t), (*order.shape.dimensions, m))
    lower = triangle(b, piece(b, x, x.shape.rank - 1, 0, k), -1, lower=True)
    lower = b.binary(Opcode.ADD, lower, b.constant(np.eye(m, k), t), t)
    upper = triangle(b, piece(b, x, x.shape.rank - 2, 0, k), 0, lower=False)
    return [transposed(b, _rows_ordered(b, eye, order)), lower, upper]


@LOWERINGS.op("_linalg_solve_ex")
def _solve(b: TorchBuilder, x: H, y: H, *, left: bool = True, check_errors: bool = False) -> list[H]:
    is_vector = y.shape.rank == 1 or y.shape.dimensions == x.shape.dimensions[:-1]
    if is_vector:
        y = b.reshape(y, (*y.shape.dimensions, 1))
    lu, pivots = _factored(b, x)
    if left or is_vector:
        found = _solved(b, lu, pivots, y)
    else:
        found = transposed(b, _solved_transposed(b, lu, pivots, transposed(b, y)))
    return [b.reshape(found, b.out.dimensions), lu, pivots, b.full(0, b.out_at(3))]


@LOWERINGS.op("linalg_inv_ex", "inverse")
def _inverse(b: TorchBuilder, x: H, *, check_errors: bool = False) -> Any:
    lu, pivots = _factored(b, x)
    eye = b.broadcast(b.constant(np.eye(x.shape.dimensions[-1]), x.shape.element_type), x.shape.dimensions)
    found = _solved(b, lu, pivots, eye)
    return [found, b.full(0, b.out_at(1))] if "_ex" in b.what else found


def _swap_sign(b: TorchBuilder, pivots: H, t: Any) -> H:
    """Return the sign of the permutation: 1 for an even number of swaps, -1 for an odd one."""
    last = pivots.shape.rank - 1
    untouched = b.binary(Opcode.ADD, b.add(Opcode.IOTA, shape=pivots.shape, iota_dimension=last), 1, T.S32)
    swaps = b.reduce(Opcode.ADD, b.convert(b.compare(pivots, untouched, "NE"), T.S32), (last,), 0)
    odd = b.compare(b.binary(Opcode.AND, swaps, 1, T.S32), 1, "EQ")
    return b.select(odd, -1, 1, t)


def _diagonal(b: TorchBuilder, x: H) -> H:
    """Return the diagonals of square matrices."""
    rank, n = x.shape.rank, x.shape.dimensions[-1]
    hit = b.constant(np.eye(n, dtype=np.bool_), T.PRED)
    return b.reduce(Opcode.ADD, b.select(hit, x, 0, x.shape.element_type), (rank - 1,), 0)


@LOWERINGS.op("_linalg_det")
def _determinant(b: TorchBuilder, x: H) -> list[H]:
    lu, pivots = _factors_of_determinant(b, x)
    product = b.reduce(Opcode.MULTIPLY, _diagonal(b, lu), (lu.shape.rank - 2,), 1)
    return [b.add(Opcode.MULTIPLY, product, _swap_sign(b, pivots, product.shape.element_type)), lu, pivots]


@LOWERINGS.op("_linalg_slogdet")
def _log_determinant(b: TorchBuilder, x: H) -> list[H]:
    t = x.shape.element_type
    if t not in (T.F32, T.F64):
        raise b.unsupported(f"the sign of a determinant of type {t.text}")
    lu, pivots = _factors_of_determinant(b, x)
    diagonal = _diagonal(b, lu)
    last = diagonal.shape.rank - 1
    sign = b.reduce(Opcode.MULTIPLY, b.add(Opcode.SIGN, diagonal), (last,), 1)
    log = b.reduce(Opcode.ADD, b.add(Opcode.LOG, b.add(Opcode.ABS, diagonal)), (last,), 0)
    return [b.add(Opcode.MULTIPLY, sign, _swap_sign(b, pivots, t)), log, lu, pivots]


# ---- QR, eigenvalues, singular values


@LOWERINGS.op("linalg_qr")
def _qr(b: TorchBuilder, x: H, mode: str = "reduced") -> list[H]:
    batch, m, n = _sizes(x)
    k, t = min(m, n), x.shape.element_type
    packed, tau = _lapack(b, "geqrf", [x], [x.shape.without_layout(), Shape(t, (*batch, k))])
    width = m if mode == "complete" else k
    rank = x.shape.rank
    r = triangle(b, piece(b, packed, rank - 2, 0, min(width, m)), 0, lower=False)
    if mode == "r":
        return [b.full(0, b.out_at(0)), r]
    columns = piece(b, packed, rank - 1, 0, min(width, n))
    if width > n:
        padding = (*(PadDim(0, 0),) * (rank - 1), PadDim(0, width - n))
        columns = b.add(Opcode.PAD, columns, b.constant(0, t), padding=padding)
    (q,) = _lapack(b, "orgqr", [columns, tau], [columns.shape.without_layout()])
    return [q, r]


@LOWERINGS.op("geqrf")
def _reflectors(b: TorchBuilder, x: H) -> list[H]:
    """Return R, with the reflectors whose product is Q below its diagonal, and their factors."""
    batch, m, n = _sizes(x)
    return _lapack(b, "geqrf", [x], [x.shape.without_layout(), Shape(x.shape.element_type, (*batch, min(m, n)))])


@LOWERINGS.op("linalg_householder_product")
def _product_of_reflectors(b: TorchBuilder, x: H, tau: H) -> H:
    return _lapack(b, "orgqr", [x, tau], [x.shape.without_layout()])[0]


@LOWERINGS.op("ormqr")
def _times_q(b: TorchBuilder, x: H, tau: H, y: H, left: bool = True, transpose: bool = False) -> H:
    """Multiply `y` by Q, or its adjoint if `transpose`, from the left or the right."""
    flags = {"left": chr(left), "transpose": chr(transpose)}
    return _lapack(b, "ormqr", [x, tau, y], [y.shape.without_layout()], **flags)[0]


@LOWERINGS.op("linalg_eig", "_linalg_eigvals")
def _eigenvalues(b: TorchBuilder, x: H) -> Any:
    """Return the eigenvalues of square matrices, which are complex, and the eigenvectors for `linalg_eig`."""
    batch, n, _ = _sizes(x)
    t, whole = x.shape.element_type, b.out.element_type
    values, square = Shape(t, (*batch, n)), Shape(whole, x.shape.dimensions)
    with_vectors = b.what.startswith("aten.linalg_eig.")
    shapes = [values] * (1 if t.is_complex else 2) + [square, square, Shape(T.S32, batch)]
    found = _lapack(b, "geev", [x], shapes, compute_left="N", compute_right="V" if with_vectors else "N")
    w = found[0] if t.is_complex else b.add(Opcode.COMPLEX, *found[:2])
    return [w, found[-2]] if with_vectors else w


@LOWERINGS.op("_linalg_eigh")
def _eigh(b: TorchBuilder, x: H, uplo: str = "L", compute_v: bool = True) -> list[H]:
    batch, n, _ = _sizes(x)
    t = x.shape.element_type
    shapes = [x.shape.without_layout(), Shape(_REAL.get(t, t), (*batch, n)), Shape(T.S32, batch)]
    vectors, values, _ = _lapack(b, "syevd", [x], shapes, mode="V" if compute_v else "N", uplo=uplo.upper())
    return [values, vectors if compute_v else b.full(0, b.out_at(1))]


@LOWERINGS.op("_linalg_svd")
def _svd(b: TorchBuilder, x: H, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> list[H]:
    u, s, v = _singular(b, x, "A" if full_matrices and compute_uv else "S" if compute_uv else "N")
    return [u, s, v] if compute_uv else [b.full(0, b.out_at(0)), s, b.full(0, b.out_at(2))]


def _singular(b: TorchBuilder, x: H, mode: str) -> tuple[H, H, H]:
    batch, m, n = _sizes(x)
    k, t = min(m, n), x.shape.element_type
    rows, columns = (k, k) if mode == "S" else (m, n)
    shapes = [
        x.shape.without_layout(),
        Shape(_REAL.get(t, t), (*batch, k)),
        Shape(t, (*batch, m, rows)),
        Shape(t, (*batch, columns, n)),
        Shape(T.S32, batch),
    ]
    _, s, u, v, _ = _lapack(b, "gesdd", [x], shapes, mode=mode)
    return u, s, v


@LOWERINGS.op("linalg_pinv")
def _pseudo_inverse(b: TorchBuilder, x: H, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> H:
    """Invert by singular values; those up to the larger of `atol` and `rtol` times the largest one count as zero.

    Those of a Hermitian matrix are its eigenvalues, which may be negative; only its lower triangle is read.
    """
    if hermitian:
        values, left = _eigh(b, x)
        right = adjoint(b, left)
        s = b.add(Opcode.ABS, values)
    else:
        left, values, right = _singular(b, x, "S")
        s = values
    whole, t, last = x.shape.element_type, s.shape.element_type, s.shape.rank - 1
    if rtol is None:
        rtol = max(x.shape.dimensions[-2:]) * float(np.finfo(t.dtype).eps) if atol is None else 0.0
    top = b.keep_dims(b.reduce(Opcode.MAXIMUM, s, (last,), -math.inf), s.shape, (last,))
    least = b.binary(Opcode.MULTIPLY, top, rtol, t)
    if atol is not None:
        least = b.binary(Opcode.MAXIMUM, least, atol, t)
    inverse = b.select(b.compare(s, least, "GT"), b.binary(Opcode.DIVIDE, 1, values, t), 0, t)
    scaled = b.binary(Opcode.MULTIPLY, adjoint(b, right), _as_row(b, inverse, whole), whole)
    batch = tuple(range(last))
    return b.add(
        Opcode.DOT, scaled, adjoint(b, left), lhs_contracting_dims=(last + 1,), rhs_contracting_dims=(last,),
        lhs_batch_dims=batch, rhs_batch_dims=batch,
    )  # fmt: skip


def _as_row(b: TorchBuilder, s: H, t: Any) -> H:
    return b.reshape(b.convert(s, t), (*s.shape.dimensions[:-1], 1, s.shape.dimensions[-1]))
