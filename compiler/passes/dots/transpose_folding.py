"""Transpose folding: dots absorb transposes of their operands and of their result."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, is_uniform_dot, make_dot
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, single_use
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, substitute

RULES = RuleSet()


@register
@dataclass(frozen=True)
class TransposeFolding(RewritePass):
    """Rewrite dot(transpose(a), b) to contract another dimension of a, and transpose(dot(a, b)) -> dot(b, a).

    The latter also where a transpose remains, if the innermost dimension then stays in place.
    """

    name: ClassVar[str] = "transpose-folding"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DOT)
def _of_transpose(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not is_plain_dot(i):
        return None
    dims = DotDims.of(i)
    lhs, rhs = i.operands
    if is_op(lhs, Opcode.TRANSPOSE) and _keeps_free_order(lhs, dims.lhs_free(lhs.shape.rank)):
        order = lhs.dimensions
        new = DotDims(
            tuple(order[d] for d in dims.lhs_contracting),
            dims.rhs_contracting,
            tuple(order[d] for d in dims.lhs_batch),
            dims.rhs_batch,
        )
        return make_dot(b, i, lhs.operands[0], rhs, new)
    if is_op(rhs, Opcode.TRANSPOSE) and _keeps_free_order(rhs, dims.rhs_free(rhs.shape.rank)):
        order = rhs.dimensions
        new = DotDims(
            dims.lhs_contracting,
            tuple(order[d] for d in dims.rhs_contracting),
            dims.lhs_batch,
            tuple(order[d] for d in dims.rhs_batch),
        )
        return make_dot(b, i, lhs, rhs.operands[0], new)
    return None


def _keeps_free_order(transpose: HloInstruction, free: list[int]) -> bool:
    before = [transpose.dimensions[d] for d in free]
    return before == sorted(before)


@RULES.on(Opcode.TRANSPOSE)
def _of_dot(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if not is_plain_dot(x) or not single_use(x):
        return None
    dims = DotDims.of(x)
    batch = len(dims.lhs_batch)
    left = len(dims.lhs_free(x.operands[0].shape.rank))
    rank = x.shape.rank
    exchanged = (*range(batch), *range(batch + left, rank), *range(batch, batch + left))
    if i.dimensions == exchanged:
        return make_dot(b, x, x.operands[1], x.operands[0], dims.swapped())
    # The innermost dimension of the result may come from the lhs. If the lhs comes last, the transpose that remains
    # copies rows, where the present one would read one element of each.
    if left == 0 or i.dimensions[-1] != batch + left - 1 or left + batch == rank:
        return None
    dot = make_dot(b, x, x.operands[1], x.operands[0], dims.swapped())
    return b.transpose(dot, [exchanged.index(d) for d in i.dimensions])


@register
@dataclass(frozen=True)
class TransposedDotCse(ComputationPass):
    """Replace dot(b, a) by a transpose of dot(a, b) if both exist."""

    name: ClassVar[str] = "transposed-dot-cse"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        known: dict[Hashable, HloInstruction] = {}
        changed = False
        for i in computation.of_opcode(Opcode.DOT):
            if not is_uniform_dot(i) or i.control_predecessors:
                continue
            dims = DotDims.of(i)
            mirror = known.get((i.operands[1], i.operands[0], dims.swapped()))
            if mirror is None or i.operands[0] is i.operands[1]:
                known[(*i.operands, dims)] = i
                continue
            changed |= _replace(computation, i, mirror, dims)
        return changed


def _replace(computation: HloComputation, i: HloInstruction, mirror: HloInstruction, dims: DotDims) -> bool:
    batch = len(dims.lhs_batch)
    right = len(dims.rhs_free(i.operands[1].shape.rank))
    rank = i.shape.rank
    order = (*range(batch), *range(batch + right, rank), *range(batch, batch + right))
    b = Builder(computation)
    new = b.transpose(mirror, order)
    return substitute(i, new, fresh=new in b.made)
