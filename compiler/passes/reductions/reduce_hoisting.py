"""Reduce hoisting: moves negation, and factors that are constant over the reduced elements, out of sums.

sum(c * x) -> c * sum(x) has one multiplication per output element instead of one per input element; for floats the
results are equal within rounding of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import has_room, is_op, scalar_function, single_use, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet
from compiler.passes.reductions.reduce_simplifier import starts_neutral

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ReduceHoisting(RewritePass):
    """Rewrite sum(-x) -> -sum(x), sum(x*c) -> sum(x)*c and sum(x/c) -> sum(x)/c."""

    name: ClassVar[str] = "reduce-hoisting"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.REDUCE)
def _hoist(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if len(i.operands) != 2 or scalar_function(i.attributes["to_apply"]) is not Opcode.ADD or not starts_neutral(i):
        return None
    x = i.operands[0]
    if not has_room(i.shape) or not single_use(x) or x.shape.num_elements == 0:
        return None
    if is_op(x, Opcode.NEGATE):
        return b.add(Opcode.NEGATE, _sum(i, x.operands[0], b))
    if is_op(x, Opcode.MULTIPLY):
        for k in (1, 0):
            factor = _invariant(i, x.operands[k], b)
            if factor is not None:
                return b.add(Opcode.MULTIPLY, _sum(i, x.operands[1 - k], b), factor)
    if is_op(x, Opcode.DIVIDE) and i.shape.element_type.is_float:
        divisor = _invariant(i, x.operands[1], b)
        return None if divisor is None else b.add(Opcode.DIVIDE, _sum(i, x.operands[0], b), divisor)
    return None


def _sum(i: HloInstruction, x: HloInstruction, b: Builder) -> HloInstruction:
    return b.reduce(x, i.operands[1], i.dimensions, i.attributes["to_apply"])


def _invariant(i: HloInstruction, factor: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return the factor in the shape of the result if it is constant along every reduced dimension, else None."""
    value = splat_value(factor)
    if value is not None:
        return b.splat(value, i.shape)
    if not is_op(factor, Opcode.BROADCAST) or any(d in i.dimensions for d in factor.dimensions):
        return None
    kept = [d for d in range(factor.shape.rank) if d not in i.dimensions]
    dims = [kept.index(d) for d in factor.dimensions]
    source = factor.operands[0]
    if not i.shape.rank or (dims == list(range(i.shape.rank))):
        return source
    return b.broadcast(source, i.shape.dimensions, dims)
