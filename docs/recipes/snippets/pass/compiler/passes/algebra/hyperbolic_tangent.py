"""Quotients of hyperbolic functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class HyperbolicTangent(RewritePass):
    """sinh(x) / cosh(x) -> tanh(x). Large x gives 1 instead of infinity / infinity."""

    name: ClassVar[str] = "hyperbolic-tangent"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DIVIDE)
def _quotient(i: HloInstruction, b: Builder) -> HloInstruction | None:
    sinh, cosh = i.operands
    if sinh.opcode is not Opcode.SINH or cosh.opcode is not Opcode.COSH:
        return None
    if sinh.operands[0] is not cosh.operands[0]:
        return None
    return b.add(Opcode.TANH, sinh.operands[0])
