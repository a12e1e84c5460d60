"""Dot strength reduction: outer products become multiplications, small dots multiplications and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_numeric
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

RULES = RuleSet()
FEW_ROWS = 4
"""Rows of a small product up to which a tile of them does not fill registers."""
_MOVES = frozenset({Opcode.RESHAPE, Opcode.TRANSPOSE, Opcode.SLICE, Opcode.CONCATENATE})


@register
@dataclass(frozen=True)
class DotStrengthReduction(RewritePass):
    """Rewrite dots as multiplications (and a reduction), which fuse with their neighbors.

    Attributes:
        max_contracted: maximum number of contracted elements; 1 restricts it to outer products.
        max_elements: maximum number of elements of the multiplied array; outer products have no such limit.
        max_multiplications: maximum number of multiplications per batch element; outer products have no such limit.
        half_vectors: whether the limits do not apply to products of vectors with matrices that are converted from f16
            or bf16. They take as long as the matrix needs to be read, which a kernel converts as it reads it.
        short_vectors: maximum number of elements of a vector for whose products with a matrix the limits do not apply:
            a library spends more on each row of the matrix than the row takes.
    """

    name: ClassVar[str] = "dot-strength-reduction"
    rules: ClassVar[RuleSet] = RULES
    max_contracted: int = number_option(1, 0, 1 << 20)
    max_elements: int = number_option(1 << 24, 0, 1 << 28)
    max_multiplications: int = number_option(1 << 24, 0, 1 << 28)
    half_vectors: bool = False
    short_vectors: int = number_option(0, 0, 1 << 20)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def reduce_strength(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return self._rewrite(i, b)

        return lambda op: (reduce_strength,) if op is Opcode.DOT else ()

    def _rewrite(self, i: HloInstruction, b: Builder) -> HloInstruction | None:
        if not is_uniform_dot(i) or not is_numeric(i.shape) or b.computation.parent is None:
            return None
        dims = DotDims.of(i)
        lhs = i.operands[0]
        total = math.prod(lhs.shape.dimensions[d] for d in dims.lhs_contracting)
        work = total * i.shape.num_elements
        if work == 0:
            return None
        batch = math.prod(lhs.shape.dimensions[d] for d in dims.lhs_batch)
        exceeds = work > self.max_elements or work // batch > self.max_multiplications
        exceeds = total > self.max_contracted or (total > 1 and exceeds)
        vectors = min(o.shape.num_elements for o in i.operands)
        is_short = batch == 1 and vectors == total <= self.short_vectors
        if exceeds and not is_short and not (self.half_vectors and _is_half_vector_product(i, total, batch)):
            return None
        return multiply_and_sum(i, b)


def suits_tiles(i: HloInstruction) -> bool:
    """Check for a small product of matrices that a kernel with register tiles computes faster than sums of products.

    Sums of products are slow where no operand is stored along rows or columns, so that vectors run along the sums;
    where they run along the rows of another product; and in large batches.
    """
    if i.opcode is not Opcode.DOT or not is_uniform_dot(i) or i.shape.element_type not in (T.F32, T.F64):
        return False
    dims = DotDims.of(i)
    lhs, rhs = (o.shape for o in i.operands)
    left, right = dims.lhs_free(lhs.rank), dims.rhs_free(rhs.rank)
    summed = math.prod(lhs.dimensions[d] for d in dims.lhs_contracting)
    rows = math.prod(lhs.dimensions[d] for d in left)
    columns = math.prod(rhs.dimensions[d] for d in right)
    if summed < 8 or min(rows, columns) < 3:
        return False
    along_rows = lhs.rank - 1 in left and rows >= 8
    if not along_rows and any(map(_follows_dot, i.operands)):
        return True
    along_columns = rhs.rank - 1 in right and columns >= 8
    if not along_rows and not along_columns:
        return summed >= 16 or rows > FEW_ROWS
    return summed >= 12 and summed * i.shape.num_elements >= 8192


def _follows_dot(i: HloInstruction) -> bool:
    """Check whether a value is computed by a few elementwise ops and moves from a dot, or from sums that were one."""
    seen, work = {i}, [i]
    while work and len(seen) <= 32:
        j = work.pop()
        if j.opcode in (Opcode.DOT, Opcode.REDUCE):
            return True
        if j.opcode.is_elementwise or j.opcode in _MOVES:
            work += [o for o in j.operands if o not in seen]
            seen.update(j.operands)
    return False


def _is_half_vector_product(i: HloInstruction, total: int, batch: int) -> bool:
    """Check for a batch of products of matrices, converted from a half type, with vectors of `total` elements."""
    vectors, matrices = sorted(i.operands, key=lambda x: x.shape.num_elements)
    if vectors.shape.num_elements != batch * total or matrices.opcode is not Opcode.CONVERT:
        return False
    return matrices.operands[0].shape.element_type.is_half


def multiply_and_sum(i: HloInstruction, b: Builder) -> HloInstruction:
    """Add what computes a dot by a multiplication and a sum; return its result.

    Both operands are broadcast to the result's dimensions and the contracted ones, over which the product is summed.

    Args:
        i: a plain dot, whose operands have the element type of the result.
        b: a builder of its computation, which is in a module.
    """
    lhs, rhs = i.operands
    dims = DotDims.of(i)
    contracted = [lhs.shape.dimensions[d] for d in dims.lhs_contracting]
    result, at = i.shape.dimensions, _summed_at(i, dims)
    sizes = (*result[:at], *contracted, *result[at:])
    batch, left_free = len(dims.lhs_batch), dims.lhs_free(lhs.shape.rank)

    def place(n: int) -> int:
        """Return the position of result dimension `n` in the broadcast shape."""
        return n if n < at else n + len(contracted)

    first = {d: place(n) for n, d in enumerate(dims.lhs_batch)}
    first |= {d: place(batch + n) for n, d in enumerate(left_free)}
    first |= {d: at + n for n, d in enumerate(dims.lhs_contracting)}
    second = {d: place(n) for n, d in enumerate(dims.rhs_batch)}
    second |= {d: place(batch + len(left_free) + n) for n, d in enumerate(dims.rhs_free(rhs.shape.rank))}
    second |= {d: at + n for n, d in enumerate(dims.rhs_contracting)}
    x = _spread(lhs, sizes, first, b)
    y = _spread(rhs, sizes, second, b)
    product = b.add(Opcode.MULTIPLY, x, y)
    if all(n == 1 for n in contracted):
        return b.reshape(product, result)
    return b.sum(product, range(at, at + len(contracted)))


def _summed_at(i: HloInstruction, dims: DotDims) -> int:
    """Return where to insert the contracted dimensions: last, unless that breaks contiguous access.

    The operand that the result's minor dimension comes from should be read along that dimension.
    """
    lhs, rhs = i.operands
    batch, left, right = len(dims.lhs_batch), dims.lhs_free(lhs.shape.rank), dims.rhs_free(rhs.shape.rank)
    wide_right = [d for d in right if rhs.shape.dimensions[d] != 1]
    wide_left = [d for d in left if lhs.shape.dimensions[d] != 1]
    if wide_right:
        across = wide_right[-1] > max(dims.rhs_contracting, default=-1)
        return batch + len(left) if across else i.shape.rank
    if wide_left:
        across = wide_left[-1] > max(dims.lhs_contracting, default=-1)
        return batch if across else i.shape.rank
    return i.shape.rank


def _spread(x: HloInstruction, sizes: tuple[int, ...], where: dict[int, int], b: Builder) -> HloInstruction:
    return b.broadcast(x, sizes, [where[d] for d in range(x.shape.rank)]) if sizes else x
