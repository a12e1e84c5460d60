"""Map inlining: a map is the elementwise ops of its function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.builder import Builder
from compiler.passes.registry import register
from compiler.passes.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class MapInliner(RewritePass):
    """Replace a map whose function is made of elementwise ops and constants by those ops on arrays."""

    name: ClassVar[str] = "map-inliner"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.MAP)
def _inline(i: HloInstruction, b: Builder) -> HloInstruction | None:
    function: HloComputation = i.attributes["to_apply"]
    order = function.post_order()
    if not all(_is_simple(f) for f in order):
        return None
    values: dict[HloInstruction, HloInstruction] = {}
    for f in order:
        values[f] = _lift(f, i, [values[o] for o in f.operands], b)
    return values[function.root]


def _is_simple(f: HloInstruction) -> bool:
    if f.opcode is Opcode.PARAMETER or (f.opcode is Opcode.CONSTANT and f.shape.is_scalar):
        return True
    return f.opcode.is_elementwise and f.opcode is not Opcode.MAP and f.shape.is_scalar


def _lift(f: HloInstruction, i: HloInstruction, operands: list[HloInstruction], b: Builder) -> HloInstruction:
    if f.opcode is Opcode.PARAMETER:
        return i.operands[f.parameter_number or 0]
    if f.opcode is Opcode.CONSTANT:
        scalar = b.constant(f.value)
        return scalar if i.shape.rank == 0 else b.broadcast(scalar, i.shape.dimensions, ())
    return b.with_operands(f, operands, f.shape.with_dimensions(i.shape.dimensions))
