"""Vector loops that compute several values by long functions: function by function instead of value by value.

An iteration may compute many values in the same way, such as the elements of a short row that is summed. A processor
overlaps what is within its window of some 200 to 500 instructions. It holds few values if each passes through several
transcendental functions. With the first function of all values, then the second of all values, and so on, there are as
many instructions, and those that are near each other do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import names_of
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.codegen.schedules.stages import are_waiting, is_long_value, levels

LEAST_VALUES = 2
"""Number of long functions per function of the longest chain from which on they are computed in turn."""


def interleave_values(body: Body) -> Body:
    """Return bound statements whose vector loops compute the long functions of several values in turn."""
    return map_vector_loops(body, lambda s: (_interleaved(s),))


def _interleaved(s: For) -> For:
    if not all(isinstance(x, lir.Let | lir.Store | lir.LocalStore) for x in s.body) or _reads_what_it_stores(s.body):
        return s
    lets = [x for x in s.body if isinstance(x, lir.Let)]
    level = levels(lets)
    deepest, long = max(level.values(), default=0), sum(map(is_long_value, lets))
    if deepest < 2 or long < LEAST_VALUES * deepest or not are_waiting(lets, level):
        return s
    turns = _turns(lets, level)
    # Stores stay behind all loads, because a result may be in the memory of an argument.
    stores = [x for x in s.body if not isinstance(x, lir.Let)]
    return replace(s, body=(*sorted(lets, key=lambda x: turns[x.name]), *stores))


def _reads_what_it_stores(body: Body) -> bool:
    """Check whether an array is read after it is written."""
    written: set[str] = set()
    for x in body:
        match x:
            case lir.Store():
                written.add(x.buffer)
            case lir.LocalStore():
                written.add(x.array)
            case lir.Let(value=lir.Load(buffer=name) | lir.LocalLoad(array=name)) if name in written:
                return True
    return False


def _turns(lets: Sequence[lir.Let], level: Mapping[str, int]) -> dict[str, int]:
    """Return the turn of each value: with the long function that it needs last, or else where it is needed first."""
    turns = {name: max(0, n - 1) for name, n in level.items()}
    last = max(turns.values())
    needed: dict[str, int] = {}
    for x in reversed(lets):
        if not level[x.name]:
            turns[x.name] = needed.get(x.name, last)
        for name in names_of(x):
            needed[name] = min(needed.get(name, last), turns[x.name])
    return turns
