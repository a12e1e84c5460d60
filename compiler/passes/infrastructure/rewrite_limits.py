"""What passes must leave as it is: ends of control edges, single ops run asynchronously, and whose body is whose."""

from __future__ import annotations

from collections import Counter

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode


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


def treatable(module: HloModule) -> list[HloComputation]:
    """The computations that the entry reaches, callees first, but for those that async-start wraps around one op."""
    order = module.post_order()
    wrapped = {f for c in order for i in c.notable if i.opcode is Opcode.ASYNC_START for f in i.called_computations()}
    return [c for c in order if c not in wrapped] if wrapped else order


def separate_fusions(module: HloModule) -> None:
    """Give each fusion a body of its own again, after instructions have been copied."""
    owned: set[HloComputation] = set()
    work = list(module.computations)
    while work:
        for i in list(work.pop().notable):
            if i.opcode is not Opcode.FUSION:
                continue
            body: HloComputation = i.attributes["calls"]
            if body in owned:
                body = i.attributes["calls"] = module.add(body.clone())
                work.append(body)
            owned.add(body)
