"""Rewrite passes that spare some instructions, such as those that a library computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.base import HloPass, InstructionPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.rewrite_limits import treatable
from compiler.passes.infrastructure.rewriting import RewritePass, Rule, rewrite

Keeps = Callable[[HloInstruction], bool]
"""Says whether an instruction is kept as it is."""

KEPT_OPCODES = frozenset(
    {
        Opcode.CONVOLUTION,
        Opcode.DOT,
        Opcode.REDUCE,
        Opcode.REDUCE_WINDOW,
        Opcode.RNG_BIT_GENERATOR,
        Opcode.SCATTER,
        Opcode.SORT,
        Opcode.TOPK,
    }
)
"""Opcodes that may be kept; `Keeps` is only asked about these."""


def sparing(hlo_pass: HloPass, keeps: Keeps) -> HloPass:
    """Return a pass that rewrites all but kept instructions, if it rewrites single ones; return others unchanged."""
    if isinstance(hlo_pass, RewritePass):
        return Sparing(hlo_pass, keeps)
    return SparingVisits(hlo_pass, keeps) if isinstance(hlo_pass, InstructionPass) else hlo_pass


@dataclass(frozen=True)
class _SparingPass(ABC):
    """A pass without the instructions that `keeps` selects; itself a pass."""

    within: HloPass
    keeps: Keeps

    @property
    def name(self) -> str:
        """The name of the inner pass."""
        return self.within.name

    def run(self, module: HloModule) -> bool:
        """Run the inner pass on each computation; return whether the module changed."""
        changed = False
        for computation in treatable(module):
            changed |= self.rewrite(computation)
        return changed

    @abstractmethod
    def rewrite(self, computation: HloComputation) -> bool:
        """Run the inner pass on one computation; return whether it changed."""


@dataclass(frozen=True)
class SparingVisits(_SparingPass):
    """A pass that visits instructions, except for those that `keeps` selects; itself a pass."""

    within: InstructionPass

    def rewrite(self, computation: HloComputation) -> bool:
        """Visit each instruction once, operands first; return whether the computation changed."""
        changed = False
        for i in self.within.visited(computation):
            if i.parent is computation and not (i.opcode in KEPT_OPCODES and self.keeps(i)):
                changed |= self.within.visit(i)
        return changed


@dataclass(frozen=True)
class Sparing(_SparingPass):
    """The rules of a rewrite pass, except for the instructions that `keeps` selects; itself a pass."""

    within: RewritePass

    def rewrite(self, computation: HloComputation) -> bool:
        """Apply the rules until nothing changes; return whether the computation changed."""
        return rewrite(computation, self._rules_of)

    def _rules_of(self, opcode: Opcode) -> tuple[Rule, ...]:
        rules = tuple(self.within.rules_of()(opcode))
        return tuple(map(self._guarded, rules)) if opcode in KEPT_OPCODES else rules

    def _guarded(self, rule: Rule) -> Rule:
        def guarded(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return None if self.keeps(i) else rule(i, b)

        return guarded
