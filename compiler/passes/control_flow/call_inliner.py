"""Call inlining: replaces a `call` by the body of the computation it calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.callgraph import MAX_INSTRUCTIONS
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, separate_fusions, treatable


@register
@dataclass(frozen=True)
class CallInliner(Options):
    """Replace every call by a copy of its callee.

    Calls with control edges are kept, because the edges order the call as a whole, and so are calls that would make the
    module too large. Computations without callers are removed.

    Attributes:
        max_ops: calls of callees with more instructions, counted after inlining into the callee, are kept.
    """

    name: ClassVar[str] = "call-inliner"
    max_ops: int = number_option(1_000_000, 0, 1_000_000)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        treated = treatable(module)
        inlining = _Inlining(treated, self.max_ops, MAX_INSTRUCTIONS - module.instruction_count)
        # From the entry down, a callee is copied before calls in it are expanded, so that no copy is copied again. From
        # the bottom up, a chain of calls would be copied a quadratic number of times.
        if not sum([inlining.expand(c) for c in reversed(treated) if inlining.stays(c)]):
            return False
        module.remove_unreachable()
        separate_fusions(module)
        return True


class _Inlining:
    """The plan of one run.

    Args:
        treated: the computations to process, callees first.
        max_ops: see `CallInliner`.
        budget: maximum number of new instructions.
    """

    def __init__(self, treated: list[HloComputation], max_ops: int, budget: int) -> None:
        self.max_ops, self.budget = max_ops, budget
        self.sizes: dict[HloComputation, int] = {}
        self.wanted: dict[HloComputation, list[HloInstruction]] = {}
        for c in treated:
            self.wanted[c] = self._wanted(c)
            # Inlining removes the call and the callee's parameters, and adds the rest of the callee.
            self.sizes[c] = len(c) + sum([self.sizes[_callee(i)] - 1 - len(i.operands) for i in self.wanted[c]])
        self._staying = {treated[-1]} if treated else set()

    def _wanted(self, computation: HloComputation) -> list[HloInstruction]:
        """Return the calls of a computation that may be inlined."""
        calls = [i for i in computation.notable if i.opcode is Opcode.CALL]
        fixed = pinned(computation) if calls else set()
        return [i for i in calls if i not in fixed and self.sizes.get(_callee(i), self.max_ops + 1) <= self.max_ops]

    def stays(self, computation: HloComputation) -> bool:
        """Check whether calls remain that reach this computation; ask for callers before their callees."""
        return computation in self._staying

    def expand(self, computation: HloComputation) -> int:
        """Inline the calls of a computation, also those in inlined code; return how many."""
        count = 0
        work = []
        for call in self.wanted[computation]:
            size = self.sizes[_callee(call)]
            if size <= self.budget:
                self.budget -= size
                work.append(call)
        work.reverse()
        while work:
            call = work.pop()
            callee = _callee(call)
            copies = computation.inline_with_mapping(callee, call.operands)
            computation.replace_uses(call, copies[callee.root])
            computation.remove(call)
            count += 1
            work += [copies[i] for i in reversed(self.wanted[callee])]
        for i in computation.notable:
            self._staying.update(i.called_computations())
        return count


def _callee(call: HloInstruction) -> HloComputation:
    callee: HloComputation = call.attributes["to_apply"]
    return callee
