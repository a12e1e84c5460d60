"""Vector loops whose stores begin within a cache line: their first elements are computed apart.

A stencil with a border stores a row from its second element on. Every vector of the width of a cache line then crosses
one, and a store that does takes as long as two.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Multiple, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.loop_transforms import iterations, map_vector_loops
from compiler.codegen.schedules.tails import takes_a_vector
from compiler.ir.types import PrimitiveType

LINE = 64
"""Bytes of a cache line."""
LEAST_VECTORS = 24
"""Number of vectors in a loop from which on their stores make up for the elements that are computed apart."""
MAX_STATEMENTS = 60
"""Maximum number of statements of a loop that is repeated for its first elements, which takes time to compile."""


def align_stores(body: Body, types: Mapping[str, PrimitiveType]) -> Body:
    """Return bound statements in which vector loops store from the beginning of cache lines on.

    Args:
        body: the statements of a kernel, with all loops bound.
        types: of the arguments, by name.
    """
    return map_vector_loops(body, lambda s: _parts(s, types))


def _parts(s: For, types: Mapping[str, PrimitiveType]) -> Body:
    before = _before_line(s, types)
    if not before:
        return (s,)
    first = iterations(s, Var(f"{s.var.name}a", before), 0)
    rest = iterations(s, Var(f"{s.var.name}b", s.var.extent - before), before)
    return For(first.var, LoopKind.VECTOR, first.body), rest


def _before_line(s: For, types: Mapping[str, PrimitiveType]) -> int:
    """Return the number of elements before the first that all stores of a loop put at the beginning of a line.

    It is 0 if that is the first one, if there is none, and for loops that are too short or too long to be divided, or
    whose functions take much longer than a store.
    """
    if s.combined or s.base is not None:
        return 0
    statements = list(walk(s.body))
    stores = [x for x in statements if isinstance(x, lir.Store | lir.StorePair | lir.StreamStore | lir.Update)]
    if not stores or len(statements) > MAX_STATEMENTS or any(map(takes_a_vector, statements)):
        return 0
    places = {_place(x, s.var, types) if isinstance(x, lir.Store) else None for x in stores}
    if len(places) != 1 or (place := places.pop()) is None:
        return 0
    first, lanes = place
    return (lanes - first) % lanes if s.var.extent >= LEAST_VECTORS * lanes else 0


def _place(x: lir.Store, var: Var, types: Mapping[str, PrimitiveType]) -> tuple[int, int] | None:
    """Return at which element of a line a store begins, and the elements of a line; None if that varies."""
    if x.buffer not in types:
        return None
    lanes = LINE // SCALAR_BYTES[types[x.buffer]]
    for symbol, step in x.offset.terms:
        if symbol == var:
            if step != 1:
                return None
            continue
        if isinstance(symbol, Multiple):
            step *= symbol.factor.low
        elif not isinstance(symbol, Var):
            return None
        if step % lanes:
            return None
    return x.offset.const % lanes, lanes
