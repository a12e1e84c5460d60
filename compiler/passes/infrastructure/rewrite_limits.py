"""What passes must not change: ends of control edges, computations wrapped by async ops, ownership of fusions."""

from __future__ import annotations

from collections import Counter

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode


def pinned(computation: HloComputation) -> set[HloInstruction]:
    """Return the instructions at either end of a control edge."""
    found: set[HloInstruction] = set()
    if not computation.may_have_control_edges:
        return found
    for i in computation.instructions:
        if i.attributes and i.control_predecessors:
            found.add(i)
            found.update(i.control_predecessors)
    return found


def caller_counts(module: HloModule) -> Counter[HloComputation]:
    """Count the calls of each computation by all instructions; computations without callers are absent."""
    found: Counter[HloComputation] = Counter()
    for c in module.computations:
        for i in c.notable:
            found.update(i.called_computations())
    return found


def treatable(module: HloModule) -> list[HloComputation]:
    """Return the reachable computations, callees first, without those that an async-start wraps around one op."""
    order = module.post_order()
    wrapped = {f for c in order for i in c.notable if i.opcode is Opcode.ASYNC_START for f in i.called_computations()}
    return [c for c in order if c not in wrapped] if wrapped else order


def separate_fusions(module: HloModule) -> None:
    """Clone shared fused computations after instructions have been copied, so that each fusion has its own."""
    owned: set[HloComputation] = set()
    work = list(module.computations)
    while work:
        for i in list(work.pop().notable):
            if i.opcode is not Opcode.FUSION:
                continue
            body: HloComputation = i.attributes["calls"]
            if body in owned:
                body = module.add(body.clone())
                i.set_attribute("calls", body)
                work.append(body)
            owned.add(body)
