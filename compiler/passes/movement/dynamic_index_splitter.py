"""Dynamic index splitting: replaces a vector of start indices by scalars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DynamicIndexSplitter(RewritePass):
    """Convert the legacy form of dynamic-slice and dynamic-update-slice, with an index vector, to scalar indices."""

    name: ClassVar[str] = "dynamic-index-splitter"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE)
def _split(i: HloInstruction, b: Builder) -> HloInstruction | None:
    first = 1 if i.opcode is Opcode.DYNAMIC_SLICE else 2
    starts = i.operands[first:]
    if len(starts) != 1 or starts[0].shape.rank != 1:
        return None
    scalars = [b.reshape(b.slice(starts[0], [SliceDim(n, n + 1)]), ()) for n in range(starts[0].shape.dimensions[0])]
    return b.with_operands(i, [*i.operands[:first], *scalars])
