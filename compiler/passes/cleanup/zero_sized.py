"""Zero-sized elimination: arrays without elements are not computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, Trait
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()
_KEPT = (Opcode.PARAMETER, Opcode.CONSTANT, Opcode.BROADCAST, Opcode.IOTA)


@register
@dataclass(frozen=True)
class ZeroSizedElimination(RewritePass):
    """Replace an op without side effects whose result has no elements by a broadcast constant of that shape."""

    name: ClassVar[str] = "zero-sized-elimination"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(*(op for op in Opcode if op not in _KEPT and not op.has(Trait.SIDE_EFFECT)))
def _empty(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not i.shape.is_array or i.shape.num_elements or i.shape.element_type.is_complex:
        return None
    return b.splat(0, i.shape)
