"""Call inlining: a `call` becomes the body of what it calls."""

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
    """Replace every call by a copy of its callee, so that none is left.

    A call with control edges stays: they order the call as a whole. So do calls that would make the module larger than
    can be worked on. Computations that nothing calls any more go.

    Attributes:
        max_ops: callees of more instructions, once their own calls are inlined, stay calls.
    """

    name: ClassVar[str] = "call-inliner"
    max_ops: int = number_option(1_000_000, 0, 1_000_000)

    def run(self, module: HloModule) -> bool:
        """See the class."""
        treated = treatable(module)
        inlining = _Inlining(treated, self.max_ops, MAX_INSTRUCTIONS - module.instruction_count)
        # From the entry down: a callee is copied as it was written, and nobody copies what was copied already. From
        # the bottom up a chain of calls would be copied a quadratic number of times.
        if not sum([inlining.expand(c) for c in reversed(treated) if inlining.stays(c)]):
            return False
        module.remove_unreachable()
        separate_fusions(module)
        return True


class _Inlining:
    """What one run inlines.

    Args:
        treated: the computations to treat, callees first.
        max_ops: see `CallInliner`.
        budget: instructions that may be made.
    """

    def __init__(self, treated: list[HloComputation], max_ops: int, budget: int) -> None:
        self.max_ops, self.budget = max_ops, budget
        self.sizes: dict[HloComputation, int] = {}
        self.wanted: dict[HloComputation, list[HloInstruction]] = {}
        for c in treated:
            self.wanted[c] = self._wanted(c)
            # A call and the callee's parameters go, the rest of the callee comes.
            self.sizes[c] = len(c) + sum([self.sizes[_callee(i)] - 1 - len(i.operands) for i in self.wanted[c]])
        self._staying = {treated[-1]} if treated else set()

    def _wanted(self, computation: HloComputation) -> list[HloInstruction]:
        """The calls of a computation that may be inlined."""
        calls = [i for i in computation.notable if i.opcode is Opcode.CALL]
        fixed = pinned(computation) if calls else set()
        return [i for i in calls if i not in fixed and self.sizes.get(_callee(i), self.max_ops + 1) <= self.max_ops]

    def stays(self, computation: HloComputation) -> bool:
        """Whether anything but inlined calls leads to this computation; asked of callers before their callees."""
        return computation in self._staying

    def expand(self, computation: HloComputation) -> int:
        """Inline the calls of a computation, and the calls of what that puts there; how many."""
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
