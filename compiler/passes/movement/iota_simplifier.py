"""Iota simplification: computes a counter along one dimension and broadcasts it to the others."""

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
class IotaSimplifier(RewritePass):
    """Rewrite an iota of several dimensions -> broadcast of a 1-d iota, and one along a dimension of size 1 -> zero."""

    name: ClassVar[str] = "iota-simplifier"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.IOTA)
def _iota(i: HloInstruction, b: Builder) -> HloInstruction | None:
    at: int = i.attributes["iota_dimension"]
    size = i.shape.dimensions[at]
    if size == 1 and i.shape.num_elements:
        return b.splat(0, i.shape)
    if i.shape.rank == 1 or i.shape.num_elements == 0:
        return None
    counter = b.add(Opcode.IOTA, shape=i.shape.with_dimensions((size,)), iota_dimension=0)
    return b.broadcast(counter, i.shape.dimensions, (at,))
