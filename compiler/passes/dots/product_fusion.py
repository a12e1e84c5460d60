"""Product fusion: dots that our own kernels compute best, each with the elementwise ops around it, as fusions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Trait
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot
from compiler.passes.dots.outlining import is_fused, outline
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable
from compiler.passes.infrastructure.sparing import Keeps

_TYPES = frozenset({T.F32, T.F64, T.F16, T.BF16})
_MOVED = frozenset({Opcode.RESHAPE, Opcode.BITCAST, Opcode.TRANSPOSE})
_SLICES = frozenset({Opcode.SLICE, Opcode.DYNAMIC_SLICE})
MAX_OUTPUTS = 3
"""Maximum number of values of a fusion that others read; from more on, only the dot is fused."""
FEW_ROWS = 8
"""Rows up to which transposing the right operand takes as long as the product; libraries read it along its rows."""
FEW_COLUMNS, FEW_PRODUCTS = 128, 1 << 16
"""Columns and multiplications up to which BLAS has fast kernels for products of few rows."""
MIN_COLUMNS = 64
"""Columns of results from which on the left operand is computed in the product: its elements are computed one by one,
and used for all columns."""
SHORT_ROWS, SHORT_FACTOR = 16, 4
"""Rows up to which a product may have so many times the multiplications, unless the right operand is transposed: a
library copies it into blocks first, for few uses of each element."""
TALL = 3
"""Rows from which on a library is faster if the right operand is scattered, because it packs it into blocks."""
PAGE, MOST_PAGES, SCATTERED_BYTES = 4096, 1024, 4 << 20
"""Bytes of a page, and the limits of `is_scattered`: pages that hold a column, and bytes of a matrix whose rows are
whole pages."""
MAX_DEPTH = 2048
"""Maximum number of contracted elements: a packed panel of them stays in the L2 cache. Half as many for f64."""


@dataclass(frozen=True)
class ProductFusion(ComputationPass):
    """Make a fusion of each small dot with the elementwise ops before and after it.

    Such a fusion becomes a kernel of the kind "product". A larger dot is left to a library, whose packing and blocking
    are worth it. The defaults are measured, see results/kernels/products.md.

    Attributes:
        max_products: maximum number of multiplications per matrix, unless it has few rows.
    """

    name: ClassVar[str] = "product-fusion"
    max_products: int = number_option(1 << 24, 0, 1 << 40)

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        return self._fuse(computation, lambda dot: False)

    def run_beside(self, module: HloModule, library: Keeps) -> bool:
        """Rewrite every computation where a library computes some dots; return whether any changed.

        Args:
            module: the module to change.
            library: says for a dot whether the library computes it. Half types, for which it has special instructions,
                are left to it.
        """
        changed = False
        for computation in treatable(module):
            changed |= self._fuse(computation, library)
        return changed

    def _fuse(self, computation: HloComputation, library: Keeps) -> bool:
        if computation.parent is None or is_fused(computation):
            return False
        changed = False
        fixed = pinned(computation)
        for dot in [i for i in computation.post_order() if i.opcode is Opcode.DOT]:
            if dot in fixed or not self.is_small(dot):
                continue
            if not self._beats_library(dot, library(dot)):
                continue
            outline(computation, product_region(computation, dot, fixed), "product")
            changed = True
        return changed

    def _beats_library(self, dot: HloInstruction, in_onednn: bool) -> bool:
        """Check whether the kernel of a small dot is faster than a library."""
        if in_onednn and any(x.shape.element_type.is_half for x in (dot, *dot.operands)):
            return False
        sizes = ProductSizes.of(dot)
        if not sizes.m <= FEW_ROWS < sizes.n or not _is_right_transposed(dot):
            return True
        return not in_onednn and sizes.n > FEW_COLUMNS and sizes.m * sizes.n * sizes.k > FEW_PRODUCTS

    def is_small(self, dot: HloInstruction) -> bool:
        """Check whether our kernel computes a dot better than a library."""
        if not is_plain_dot(dot) or any(x.shape.element_type not in _TYPES for x in (dot, *dot.operands)):
            return False
        sizes = ProductSizes.of(dot)
        bytes_ = dot.shape.element_type.byte_size
        if 0 in (sizes.batch, sizes.m, sizes.n, sizes.k) or sizes.k * bytes_ > MAX_DEPTH * 4:
            return False
        right_transposed = _is_right_transposed(dot)
        if sizes.m >= TALL and not right_transposed and is_scattered(sizes.k, sizes.n * bytes_):
            return False
        is_short = sizes.m <= SHORT_ROWS and not right_transposed
        most = self.max_products * (SHORT_FACTOR if is_short else 1)
        # A product with a vector is as fast as memory delivers the matrix, which BLAS reads along its rows.
        return min(sizes.m, sizes.n) > 1 and sizes.m * sizes.n * sizes.k <= most


@dataclass(frozen=True)
class ProductSizes:
    """The sizes of a dot as `batch` products of m x k by k x n matrices."""

    batch: int
    m: int
    n: int
    k: int

    @staticmethod
    def of(dot: HloInstruction) -> ProductSizes:
        """Return the sizes of a plain dot."""
        dims, (lhs, rhs) = DotDims.of(dot), dot.operands
        return ProductSizes(
            math.prod(lhs.shape.dimensions[d] for d in dims.lhs_batch),
            math.prod(lhs.shape.dimensions[d] for d in dims.lhs_free(lhs.shape.rank)),
            math.prod(rhs.shape.dimensions[d] for d in dims.rhs_free(rhs.shape.rank)),
            math.prod(lhs.shape.dimensions[d] for d in dims.lhs_contracting),
        )


def is_scattered(rows: int, row_bytes: int) -> bool:
    """Check for a row-major matrix that is slow to read by blocks of a few columns.

    A column then lies on more pages than the TLB holds, or its elements compete for the same sets of the caches.
    """
    return min(rows, rows * row_bytes // PAGE) > MOST_PAGES or (
        row_bytes % PAGE == 0 and rows * row_bytes > SCATTERED_BYTES
    )


def _is_right_transposed(dot: HloInstruction) -> bool:
    dims = DotDims.of(dot)
    free = dims.rhs_free(dot.operands[1].shape.rank)
    return bool(free) and min(dims.rhs_contracting, default=0) > max(free)


def product_region(
    computation: HloComputation, dot: HloInstruction, fixed: set[HloInstruction], after_too: bool = True
) -> list[HloInstruction]:
    """Return a dot with the cheap producers of its operands and the elementwise consumers of its result.

    Args:
        computation: the computation of the dot.
        dot: a dot.
        fixed: instructions that must stay.
        after_too: whether consumers are included.
    """
    order = computation.post_order()
    after = _consumers(order, dot, fixed) if after_too else {dot}
    outputs = [i for i in after if i.is_root or any(u not in after for u in i.users)]
    if len(outputs) > MAX_OUTPUTS:
        after = {dot}
    if after_too:
        after |= _side_producers(dot, after, fixed)
    before: set[HloInstruction] = set()
    few_columns = ProductSizes.of(dot).n < MIN_COLUMNS
    for operand in dot.operands:
        computed: set[HloInstruction] = set()
        work = [operand]
        while work:
            i = work.pop()
            if i in fixed or i.is_root or len(i.users) != 1 or not _is_cheap_producer(i):
                continue
            computed.add(i)
            work += i.operands
        if not (few_columns and operand is dot.operands[0] and any(_is_elementwise(i) for i in computed)):
            before |= computed
    return [i for i in order if i in before or i in after]


def _consumers(order: Sequence[HloInstruction], dot: HloInstruction, fixed: set[HloInstruction]) -> set[HloInstruction]:
    """Return the dot and the ops after it that compute one element from each of its elements.

    An op that also needs the dot by another way than through these stays outside, so that no cycle arises.
    """
    inside, outside = {dot}, set[HloInstruction]()
    for i in order[order.index(dot) + 1 :]:
        if inside.isdisjoint(i.operands) and outside.isdisjoint(i.operands):
            continue
        joins = i not in fixed and outside.isdisjoint(i.operands) and _keeps_elements(i, dot)
        (inside if joins else outside).add(i)
    return inside


def _side_producers(dot: HloInstruction, after: set[HloInstruction], fixed: set[HloInstruction]) -> set[HloInstruction]:
    """Return the cheap elementwise ops that only the consumers of a dot need, such as a sum of two vectors."""
    found: set[HloInstruction] = set()
    ends = after - {dot}
    work = [o for i in ends for o in i.operands]
    while work:
        i = work.pop()
        if i in found or i in after or i in fixed or not all(u in found or u in ends for u in i.users):
            continue  # it is looked at again when the last of its users is found
        if (_keeps_elements(i, dot) and not i.opcode.has(Trait.EXPENSIVE)) or _is_slice_of_size(i, dot):
            found.add(i)
            work += i.operands
    return found


def _keeps_elements(i: HloInstruction, dot: HloInstruction) -> bool:
    if not i.shape.is_array or i.shape.num_elements != dot.shape.num_elements or not _is_kernel_type(i):
        return False
    return i.opcode in _MOVED or (
        _is_elementwise(i) and all(o.shape.dimensions == i.shape.dimensions for o in i.operands)
    )


def _is_slice_of_size(i: HloInstruction, dot: HloInstruction) -> bool:
    """Check for a slice with one element per element of the dot, such as the present step of a loop's inputs."""
    return i.opcode in _SLICES and i.shape.num_elements == dot.shape.num_elements and _is_kernel_type(i)


def _is_elementwise(i: HloInstruction) -> bool:
    return i.opcode.is_elementwise and i.opcode not in (Opcode.COPY, Opcode.MAP) and bool(i.operands)


def _is_cheap_producer(i: HloInstruction) -> bool:
    if not i.shape.is_array or not _is_kernel_type(i):
        return False
    if i.opcode in _MOVED or i.opcode in _SLICES or i.opcode is Opcode.BROADCAST:
        return True
    return _is_elementwise(i) and not i.opcode.has(Trait.EXPENSIVE)


def _is_kernel_type(i: HloInstruction) -> bool:
    kinds: Sequence[T] = [x.shape.element_type for x in (i, *i.operands)]
    return all(t in _TYPES or t in (T.PRED, T.S32, T.S64, T.U32, T.S8, T.U8) for t in kinds)
