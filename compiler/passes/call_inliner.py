"""Call inlining: a `call` becomes the body of what it calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloModule, Opcode
from compiler.passes.base import Options, number_option
from compiler.passes.control import pinned, separate_fusions, treatable
from compiler.passes.registry import register


@register
@dataclass(frozen=True)
class CallInliner(Options):
    """Replace every call by a copy of its callee, callees first, so that none is left.

    A call with control edges stays: they order the call as a whole. Computations that nothing calls any more go.

    Attributes:
        max_ops: callees of more instructions stay calls.
    """

    name: ClassVar[str] = "call-inliner"
    max_ops: int = number_option(1_000_000, 0, 1_000_000)

    def run(self, module: HloModule) -> bool:
        """See the class."""
        inlined = sum(self._inline_all(c) for c in treatable(module))
        if inlined:
            module.remove_unreachable()
            separate_fusions(module)
        return inlined > 0

    def _inline_all(self, computation: HloComputation) -> int:
        calls = [i for i in computation.instructions if i.opcode is Opcode.CALL]
        if not calls:
            return 0
        fixed = pinned(computation)
        count = 0
        for call in calls:
            callee: HloComputation = call.attributes["to_apply"]
            if call in fixed or len(callee) > self.max_ops:
                continue
            computation.replace_uses(call, computation.inline(callee, call.operands))
            computation.remove(call)
            count += 1
        return count
