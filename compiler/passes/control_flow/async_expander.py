"""Async expansion: merges async pairs of start and done into a single op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.patterns import single_use
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned

_WHOLE = {
    Opcode.COPY_START: Opcode.COPY,
    Opcode.ALL_REDUCE_START: Opcode.ALL_REDUCE,
    Opcode.ALL_GATHER_START: Opcode.ALL_GATHER,
    Opcode.COLLECTIVE_PERMUTE_START: Opcode.COLLECTIVE_PERMUTE,
}
_DONES = frozenset(
    {
        Opcode.ASYNC_DONE, Opcode.COPY_DONE, Opcode.ALL_REDUCE_DONE, Opcode.ALL_GATHER_DONE,
        Opcode.COLLECTIVE_PERMUTE_DONE,
    }
)  # fmt: skip


@register
@dataclass(frozen=True)
class AsyncExpander(ComputationPass):
    """Replace async pairs by a call, copy pairs by a copy, and pairs of collectives by the collective.

    For devices that execute sequentially, and for passes that look into called computations. A pair is kept if a loop
    carries its state, if it has control edges, or if the called computation has side effects or another thread.
    """

    name: ClassVar[str] = "async-expander"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        dones = computation.of_opcode(*_DONES)
        fixed = pinned(computation) if dones else set()
        return sum(_expand(i, computation, fixed) for i in dones) > 0


def _expand(done: HloInstruction, computation: HloComputation, fixed: set[HloInstruction]) -> bool:
    chain = [done]
    while chain[-1].opcode in _DONES or chain[-1].opcode is Opcode.ASYNC_UPDATE:
        before = chain[-1].operand(0)
        if not single_use(before):
            return False
        chain.append(before)
    start = chain[-1]
    whole = Opcode.CALL if start.opcode is Opcode.ASYNC_START else _WHOLE.get(start.opcode)
    if whole is None or any(i in fixed for i in chain):
        return False
    attributes = _attributes(start, whole)
    if attributes is None:
        return False
    new = computation.add(whole, start.operands, done.shape, name=done.name, attributes=attributes)
    computation.replace_uses(done, new)
    for i in chain:
        computation.remove(i)
    return True


def _attributes(start: HloInstruction, whole: Opcode) -> dict[str, Any] | None:
    if whole is Opcode.CALL:
        called = start.called_computations()
        if len(called) != 1 or called[0].has_side_effect or "execution_thread" in called[0].attributes:
            return None
        if len(called[0].parameters) != len(start.operands):  # updates bind the others
            return None
        return {"to_apply": called[0]}
    named = {*whole.row.required, *whole.row.optional, "metadata", "frontend_attributes"}
    return {k: v for k, v in start.attributes.items() if k in named}
