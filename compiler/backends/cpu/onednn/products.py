"""Dots of HLO as oneDNN's matrix products, which take matrices and batches with any strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from compiler.backends.cpu.onednn.description import MAX_RANK, Description, Tensor, row_major
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot
from compiler.passes.dots.product_fusion import is_scattered
from compiler.runtime.gemm import GemmForm, canonical_form
from compiler.support.processor import AVX2, vector_unit

TYPES = {
    (T.F32, T.F32, T.F32),
    (T.BF16, T.BF16, T.BF16), (T.BF16, T.BF16, T.F32),
    (T.F16, T.F16, T.F16), (T.F16, T.F16, T.F32),
    (T.S8, T.S8, T.S32), (T.U8, T.S8, T.S32),
}  # fmt: skip
"""Element types of the operands and the result that oneDNN computes as HLO defines: with sums in f32 or s32."""


MIN_PRODUCT_FLOPS = 4_000_000
"""Products of f32 with fewer operations are left to BLAS, whose calls take less time."""
MIN_ROWS, MIN_COLUMNS = 8, 16
"""Products of f32 with fewer rows or columns are left to BLAS, which has kernels for matrices times vectors."""
FEW_USES = 0.0038
"""oneDNN without AVX-512 does not pack the operands of products if 1 / rows + 1 / columns is at least this."""
CONFLICTING = 2048 // 4
"""Rows whose length is a multiple of this many f32 elements compete for the same sets of the first-level cache."""
MIN_PACKED = 256
"""Least rows, columns and contracted elements of products that BLAS, which packs operands, computes faster."""
MIN_ROWS_OF_REORDER = 256
"""With at least so many rows, oneDNN may bring the right-hand matrix into blocks first."""
MIN_MULTIPLICATIONS = 4097
"""Batches of matrices with fewer multiplications each are left to loops: a product without contraction is a
multiplication, and one of two vectors a reduction, both of which fuse with what surrounds them."""


def suits_blas(dot: HloInstruction) -> bool:
    """Check whether BLAS is likely to compute a dot as fast as oneDNN.

    Measured on two cores with AVX-512 (results/kernels/libraries.md): oneDNN is faster for large products, for batches
    of products with a transposed right-hand side, and where BLAS needs a transposed copy of an operand. With AVX2
    alone, BLAS is faster where oneDNN reads operands in place whose rows compete for the same sets of a cache.
    """
    form = canonical_form(dot)
    if form is None or dot.shape.element_type is not T.F32:
        return form is not None
    if form.permutations != (None, None):
        return False
    if form.m < MIN_ROWS or form.n < MIN_COLUMNS:
        return True
    if vector_unit() is AVX2 and _conflicts(form):
        return True
    flops = 2 * form.m * form.n * form.k
    if form.batch > 1 and form.rhs_transposed and not form.lhs_transposed:
        flops *= form.batch
    return flops < MIN_PRODUCT_FLOPS


def _conflicts(form: GemmForm) -> bool:
    """Check for a product that oneDNN without AVX-512 computes slowly, because it does not pack the operands.

    Their rows then compete for the same sets of a cache, or lie on more pages than the TLB holds.
    """
    if 1 / form.m + 1 / form.n < FEW_USES:
        return False
    if min(form.m, form.n, form.k) >= MIN_PACKED or (form.lhs_transposed and form.m % CONFLICTING == 0):
        return True
    return not form.rhs_transposed and (form.n % CONFLICTING == 0 or is_scattered(form.k, form.n * 4))


def suits_reduction(dot: HloInstruction) -> bool:
    """Check for a product of half-type matrices with vectors: a sum of products reads the matrix faster than oneDNN.

    Measured on two cores with AVX-512: oneDNN takes 2 to 6 times as long, with rows and with columns of the matrix.
    """
    if not is_plain_dot(dot) or any(not o.shape.element_type.is_half for o in dot.operands):
        return False
    dims, (lhs, rhs) = DotDims.of(dot), dot.operands
    left = math.prod(lhs.shape.dimensions[d] for d in dims.lhs_free(lhs.shape.rank))
    right = math.prod(rhs.shape.dimensions[d] for d in dims.rhs_free(rhs.shape.rank))
    return min(left, right) == 1


def describe_product(dot: HloInstruction) -> Description:
    """Return the primitive that computes a dot.

    Raises:
        UnsupportedError: no primitive computes exactly this without a transpose; the message says why.
    """
    if not is_plain_dot(dot):
        raise UnsupportedError("oneDNN multiplies two dense matrices")
    shapes = [*(o.shape for o in dot.operands), dot.shape]
    types = tuple(s.element_type for s in shapes)
    if types not in TYPES:
        raise UnsupportedError(f"oneDNN multiplies no {', '.join(t.text for t in types)}")
    if any(s.is_dynamic or s.num_elements == 0 for s in shapes):
        raise UnsupportedError("an array is empty or has a dynamic size")
    lhs, rhs, out = shapes
    lb, lc = dot.attr("lhs_batch_dims", ()), dot.attr("lhs_contracting_dims", ())
    rb, rc = dot.attr("rhs_batch_dims", ()), dot.attr("rhs_contracting_dims", ())
    lf = [d for d in range(lhs.rank) if d not in lb and d not in lc]
    rf = [d for d in range(rhs.rank) if d not in rb and d not in rc]
    batches = _batches(lhs, lb, rhs, rb)
    left = _matrix(lhs, [b[0] for b in batches], lf, lc)
    right = _matrix(rhs, [b[1] for b in batches], rc, rf)
    rows, columns = left.dims[-2], right.dims[-1]
    if batches and rows * columns * left.dims[-1] < MIN_MULTIPLICATIONS:
        raise UnsupportedError("the matrices of the batch are small enough for loops")
    if not batches and rows >= MIN_ROWS_OF_REORDER:
        right = replace(right, free=True)
    dims = (*left.dims[:-2], rows, columns)
    return Description("product", (left, right, Tensor(out.element_type, dims, row_major(dims))))


def _batches(
    lhs: Shape, lhs_dims: Sequence[int], rhs: Shape, rhs_dims: Sequence[int]
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the (size, stride) of each batch dimension in both operands, merged into one where that is possible."""
    if not lhs_dims:
        return []
    left, right = merged(lhs, lhs_dims), merged(rhs, rhs_dims)
    if left is not None and right is not None:
        return [(left, right)] if left[0] > 1 else []
    every = [(_one(lhs, a), _one(rhs, b)) for a, b in zip(lhs_dims, rhs_dims, strict=True)]
    every = [pair for pair in every if pair[0][0] > 1]
    if len(every) + 2 > MAX_RANK:
        raise UnsupportedError(f"a product has at most {MAX_RANK - 2} batch dimensions here")
    return every


def _matrix(shape: Shape, batches: Sequence[tuple[int, int]], rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Return an operand as a batch of matrices; raise UnsupportedError if neither rows nor columns are contiguous."""
    row, column = merged(shape, rows), merged(shape, columns)
    if row is None or column is None:
        raise UnsupportedError("the dimensions of a matrix are not adjacent in memory")
    (m, down), (n, across) = row, column
    if n == 1:
        across = 1
    elif m == 1:
        down = 1 if across > 1 else n
    if n == 1 and m > 1 and down < 1:
        down = 1
    if 1 not in (down, across):
        raise UnsupportedError("neither the rows nor the columns of a matrix are contiguous")
    sizes, strides = [b[0] for b in batches], [b[1] for b in batches]
    return Tensor(shape.element_type, (*sizes, m, n), (*strides, down, across))


def merged(shape: Shape, dims: Sequence[int]) -> tuple[int, int] | None:
    """Return the (size, stride) of several dimensions as one, or None if no single stride covers them in this order."""
    size, stride = 1, 1
    for d in reversed(dims):
        n, step = _one(shape, d)
        if n == 1:
            continue
        if size == 1:
            stride = step
        elif step != size * stride:
            return None
        size *= n
    return size, stride


def _one(shape: Shape, d: int) -> tuple[int, int]:
    return shape.dimensions[d], math.prod(shape.dimensions[d + 1 :])
