"""Fusion inlining: dissolves fusions of the input, so that our own passes and policies can fuse again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class FusionInliner(InstructionPass):
    """Replace each fusion by its fused instructions, for modules that another compiler optimized."""

    name: ClassVar[str] = "fusion-inliner"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = super().run(module)
        if changed:
            module.remove_unreachable()
        return changed

    def visit(self, instruction: HloInstruction) -> bool:
        """Inline a fusion."""
        computation = instruction.parent
        if instruction.opcode is not Opcode.FUSION or instruction.control_predecessors or computation is None:
            return False
        body: HloComputation = instruction.attributes["calls"]
        computation.replace_uses(instruction, computation.inline(body, instruction.operands))
        computation.remove(instruction)  # also if it has side effects, which the copy has, too
        return True
