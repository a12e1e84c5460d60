"""Dead code elimination: removes dead instructions and unreachable computations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class DeadCodeElimination:
    """Remove instructions without users and side effects, and computations that the entry does not reach.

    Dead control predecessors are removed, too, because an order relative to an op without effect constrains nothing;
    their own control predecessors take their place.
    """

    name: ClassVar[str] = "dce"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        gone = 0
        for computation in module.post_order():
            gone += computation.remove_dead()
            _drop_removed_predecessors(computation)
        gone += module.remove_unreachable()
        return gone > 0


def _drop_removed_predecessors(computation: HloComputation) -> None:
    if not computation.may_have_control_edges:
        return
    for i in computation.instructions:
        if not i.control_predecessors:
            continue
        live = _live_predecessors(i.control_predecessors, computation)
        i.set_control_predecessors(live)


def _live_predecessors(
    predecessors: tuple[HloInstruction, ...], computation: HloComputation
) -> tuple[HloInstruction, ...]:
    found: dict[HloInstruction, None] = {}
    work = list(reversed(predecessors))
    while work:
        p = work.pop()
        if p.parent is computation:
            found[p] = None
        else:
            work.extend(reversed(p.control_predecessors))
    return tuple(found)
