"""Tests of an element inside of a tile that are tests of the tile.

Where an array of a concatenation ends between two tiles, `32 * tile + row <= 255` is `tile <= 7`: the test is the same
for the whole tile, and loops over its elements need no branches.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body
from compiler.codegen.nest.traversal import map_bodies

__all__ = ["tests_of_tiles"]


def tests_of_tiles(body: Body) -> Body:
    """Return statements whose index tests depend on as few variables as possible."""
    return tuple(map(_statement, body))


def _statement(s: lir.Stmt) -> lir.Stmt:
    if isinstance(s, lir.Let) and isinstance(s.value, lir.IndexTest):
        return replace(s, value=_of_tile(s.value))
    return map_bodies(s, tests_of_tiles)


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
