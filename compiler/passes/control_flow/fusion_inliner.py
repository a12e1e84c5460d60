"""Fusion inlining: fusions written in the text are taken apart, so that our own passes and policies decide anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class FusionInliner(InstructionPass):
    """Replace each fusion by the instructions of its body; for modules that another compiler has optimised."""

    name: ClassVar[str] = "fusion-inliner"

    def run(self, module: HloModule) -> bool:
        """See the class."""
        changed = super().run(module)
        if changed:
            module.remove_unreachable()
        return changed

    def visit(self, instruction: HloInstruction) -> bool:
        """Inline one fusion."""
        computation = instruction.parent
        if instruction.opcode is not Opcode.FUSION or instruction.control_predecessors or computation is None:
            return False
        body: HloComputation = instruction.attributes["calls"]
        computation.replace_uses(instruction, computation.inline(body, instruction.operands))
        computation.remove(instruction)  # whatever its effects: they are in the copy
        return True
