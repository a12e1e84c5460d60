"""Tests of an element inside of a tile that are tests of the tile.

Where an array of a concatenation ends between two tiles, `32 * tile + row <= 255` is `tile <= 7`: the test is the same
for the whole tile, and loops over its elements need no branches. In column reductions the branches are around the loops
over the rows of a tile.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_bodies, map_compound, walk
from compiler.codegen.schedules.known_tests import COPYABLE, copy_with
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.ir.types import PrimitiveType as T

__all__ = ["branch_on_tiles", "tests_of_tiles"]

MOST_TESTS = 3
"""Maximum number of tests around a loop, each of which may double its copies."""
MAX_STATEMENTS = 60
"""Maximum number of statements of a loop that is copied for the outcomes of a test."""


def tests_of_tiles(body: Body) -> Body:
    """Return statements whose index tests depend on as few variables as possible."""
    return tuple(map(_statement, body))


def _statement(s: lir.Stmt) -> lir.Stmt:
    if isinstance(s, lir.Let) and isinstance(s.value, lir.IndexTest):
        return replace(s, value=_of_tile(s.value))
    return map_bodies(s, tests_of_tiles)


def branch_on_tiles(body: Body) -> Body:
    """Return statements whose branches on tests that are the same for a whole loop are around the loop."""
    numbers = itertools.count()

    def statements(given: Body, left: int) -> Body:
        return map_compound(given, lambda s: statement(s, left))

    def statement(s: lir.Stmt, left: int) -> Body:
        test = _fixed_test(s) if isinstance(s, For) and left else None
        if test is None:
            return (map_bodies(s, lambda inner: statements(inner, left)),)
        name = f"tile{next(numbers)}"
        sides = [copy_with((s,), {test: outcome}, {}, f"_{name}{outcome:d}") for outcome in (True, False)]
        then, otherwise = (statements(side, left - 1) for side in sides)
        return lir.Let(name, T.PRED, test), lir.If(name, then, otherwise)

    branched = statements(body, MOST_TESTS)
    return body if branched == body else without_dead_code(branched)


def _fixed_test(s: For) -> lir.IndexTest | None:
    """Return a test that decides a branch in a small loop and has one outcome in the whole loop; None without one."""
    inside = list(walk((s,)))
    if len(inside) > MAX_STATEMENTS or not any(isinstance(x, lir.If) for x in inside):
        return None
    if not all(isinstance(x, COPYABLE) for x in inside):
        return None
    changed = {x.var for x in inside if isinstance(x, For)}
    conditions = {x.condition for x in inside if isinstance(x, lir.If)}
    for x in inside:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest) and x.name in conditions:
            needed = set(x.value.value.variables())
            if needed and changed.isdisjoint(needed) and all(isinstance(v, Var) for v in needed):
                return x.value
    return None


def _of_tile(t: lir.IndexTest) -> lir.IndexTest:
    """Return an equal test of the multiples of one coefficient alone, or the test itself."""
    for step in sorted({abs(c) for _, c in t.value.terms if abs(c) > 1}, reverse=True):
        whole, rest = t.value.split(step)
        if not whole.terms or not rest.terms:
            continue
        least, most = rest.range
        low = None if t.low is None else -((least - t.low) // step)
        high = None if t.high is None else (t.high - most) // step
        # Both bounds must be between two multiples, wherever the rest is in its range.
        if low is not None and t.low is not None and step * (low - 1) + most >= t.low:
            continue
        if high is not None and t.high is not None and step * (high + 1) + least <= t.high:
            continue
        return lir.IndexTest(whole, low, high)
    return t
