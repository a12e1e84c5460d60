"""Loads of the next step of a sequential loop, which run while the thread computes this one.

A thread of a GPU waits for a value that it loads in the step that needs it. What a load needs and what depends on no
state of the loop is known a step before.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_indices, names_of, walk
from compiler.ir.types import PrimitiveType as T

MAX_LOADS = 8
"""Maximum number of loads of a step that are made ahead; each takes a register."""
MAX_COST = 32
"""Maximum number of statements that are repeated for the loads."""


def load_ahead(loop: For, unsafe: frozenset[str]) -> Body:
    """Return a sequential loop of at least one step whose loads are made a step before, after those of the first step.

    Args:
        loop: the loop.
        unsafe: buffers that the kernel may write.
    """
    lets = {s.name: s for s in loop.body if isinstance(s, lir.Let)}
    wanted, needed = _loads(loop, lets, unsafe)
    made = tuple(s for n, s in lets.items() if n in needed)
    if loop.var.extent < 2 or not 0 < len(wanted) <= MAX_LOADS or len(made) > MAX_COST:
        return (loop,)
    var = loop.var
    more, inside = f"{var.name}_more", f"{var.name}_inside"
    following = map_indices(made, lambda i: i.substitute({var: ix.of(var) + 1}))
    ahead: Body = (
        lir.Let(more, T.PRED, lir.IndexTest(ix.of(var) + 1, None, var.extent - 1)),
        lir.If(more, (*following, *(lir.Assign(_next(n), n) for n in wanted))),
    )
    if loop.base is not None and loop.limit is not None:
        rest = loop.base + ix.of(var) + 1
        ahead = (lir.Let(inside, T.PRED, lir.IndexTest(rest, None, loop.limit - 1)), lir.If(inside, ahead))
    body = (
        *(lir.Let(n, lets[n].type, lir.Current(_next(n))) for n in wanted),
        *ahead,
        *(s for s in loop.body if not (isinstance(s, lir.Let) and s.name in wanted)),
    )
    return (
        *map_indices(made, lambda i: i.substitute({var: ix.const(0)})),
        *(lir.Accumulator(_next(n), lets[n].type, n) for n in wanted),
        replace(loop, body=body),
    )


def _next(name: str) -> str:
    return f"{name}_next"


def _loads(loop: For, lets: dict[str, lir.Let], unsafe: frozenset[str]) -> tuple[list[str], set[str]]:
    """Return the loads that depend on the step and on no state, and all definitions that these need."""
    stored = {s.array for s in walk(loop.body) if isinstance(s, lir.LocalStore)}
    free: dict[str, set[str]] = {}  # what each definition without state needs of the loop, itself included
    varying = {loop.var.name}
    wanted: list[str] = []
    for name, s in lets.items():
        v = s.value
        inside = [n for n in names_of(s) if n in lets]
        is_state = isinstance(v, lir.Current) or (isinstance(v, lir.LocalLoad) and v.array in stored)
        is_state |= isinstance(v, lir.Load) and v.buffer in unsafe
        if is_state or any(n not in free for n in inside):
            continue
        free[name] = {name}.union(*(free[n] for n in inside))
        if not varying.isdisjoint(names_of(s)):
            varying.add(name)
            if isinstance(v, lir.Load):
                wanted.append(name)
    return wanted, set().union(*(free[n] for n in wanted))
