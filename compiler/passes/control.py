"""Control edges: what passes must leave where it is because others are ordered against it."""

from __future__ import annotations

from collections import Counter

from compiler.ir import HloComputation, HloInstruction, HloModule


def pinned(computation: HloComputation) -> set[HloInstruction]:
    """Instructions at either end of a control edge."""
    found: set[HloInstruction] = set()
    if not computation.may_have_control_edges:
        return found
    for i in computation.instructions:
        if i.attributes and i.control_predecessors:
            found.add(i)
            found.update(i.control_predecessors)
    return found


def caller_counts(module: HloModule) -> Counter[HloComputation]:
    """How many attribute slots of instructions name each computation; absent means none."""
    found: Counter[HloComputation] = Counter()
    for c in module.computations:
        for i in c.notable:
            found.update(i.called_computations())
    return found
