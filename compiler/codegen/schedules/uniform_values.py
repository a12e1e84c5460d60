"""Vector loops with conditions that are the same for all of their elements, such as the mask of a row.

gcc 12 vectorizes no loop that converts or combines a bool that it finds inside of the loop but that does not vary with
it, and it does not move so cheap an operation in front of the loop. So what does not vary is computed there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import variables_of
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import indices_in, names_defined, names_of, walk
from compiler.codegen.schedules.known_tests import COPYABLE, copy_with
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.ir.types import PrimitiveType as T

FIXED = lir.Apply | lir.Load | lir.LocalLoad | lir.Constant
"""The values that are moved in front of a loop if nothing in them varies.

Tests of indices stay: gcc knows what they say about the addresses of loads."""


def move_uniform_values(body: Body) -> Body:
    """Return bound statements whose vector loops find conditions that do not vary, and what needs them, before them."""
    uses: Counter[str] = Counter()
    numbers = itertools.count()

    def loop(s: For) -> Body:
        if not any(map(_is_condition, s.body)):  # most loops
            return (s,)
        fixed = _fixed(s)
        if not any(map(_is_condition, fixed)):
            return (s,)
        if not uses:
            uses.update(names_defined(body))
        if any(uses[x.name] > 1 for x in fixed):  # other loops define the same names, as for the rest of a range
            if s.combined or not all(isinstance(x, COPYABLE) for x in walk(s.body)):
                return (s,)
            s = replace(s, body=copy_with(s.body, {}, {}, f"_{s.var.name}{next(numbers)}"))
            fixed = _fixed(s)
        return *fixed, replace(s, body=tuple(x for x in s.body if x not in fixed))

    return map_vector_loops(body, loop)


def _is_condition(x: lir.Stmt) -> bool:
    return isinstance(x, lir.Let) and x.type is T.PRED and not isinstance(x.value, lir.Constant)


def _fixed(s: For) -> list[lir.Let]:
    """Return the values of a loop that are the same for all elements, in order, with the constants that they need."""
    varying = {s.var.name, *names_defined(s.body)}
    written = {x.buffer for x in walk(s.body) if isinstance(x, lir.Store | lir.Update)}
    written |= {x.array for x in walk(s.body) if isinstance(x, lir.LocalStore)}
    found = []
    for x in s.body:
        if isinstance(x, lir.Let) and isinstance(x.value, FIXED) and varying.isdisjoint(_needed(x)):
            array = x.value.array if isinstance(x.value, lir.LocalLoad) else None
            if (x.value.buffer if isinstance(x.value, lir.Load) else array) not in written:
                found.append(x)
                varying.discard(x.name)
    needed = {name for x in found for name in _needed(x)}
    return [x for x in found if not isinstance(x.value, lir.Constant) or x.name in needed]


def _needed(s: lir.Let) -> set[str]:
    """Return the names of the values and the loop variables that a value needs."""
    return {*names_of(s), *(v.name for v in variables_of(indices_in((s,))))}
