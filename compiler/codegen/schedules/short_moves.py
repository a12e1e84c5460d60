"""Short loops that only move elements, as the padding of short rows, are written out: first all loads, then all stores.

The C compiler unrolls them as well, but does not know that what is stored is not read again, and therefore moves one
element after another. Loads that come before all stores become a few vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, map_compound, walk
from compiler.codegen.schedules.few_elements import LONGEST_MOVE
from compiler.codegen.schedules.short_loops import Copies

WITHOUT_TESTS, SEVERAL = 4, 3
"""Iterations of the longest loop that is written out without tests, and of that which also stores
into several arrays or places: longer ones are vectors."""
_KINDS = (LoopKind.VECTOR, LoopKind.SERIAL)
_MOVES = (lir.Load, lir.Constant, lir.IndexTest, lir.Current)


def write_out_moves(body: Body) -> Body:
    """Return bound statements without short loops that only move elements inside of other loops."""
    return map_compound(body, lambda s: (map_bodies(s, _inside),))


def _inside(body: Body) -> Body:
    return map_compound(body, _statement)


def _statement(s: lir.Stmt) -> Body:
    if not isinstance(s, For) or not _is_short_move(s):
        return (map_bodies(s, _inside),)
    copies = Copies(s.var).of(s.body)
    lets = {x.name: x for x in copies if isinstance(x, lir.Let)}
    stores = [x for x in copies if isinstance(x, lir.Store)]
    out: list[lir.Stmt] = []
    for n in range(count := len(stores) // s.var.extent):
        own = stores[n::count]  # the copies of one store, which are adjacent
        out += [lets.pop(x.value) for x in own if x.value in lets]
        out += own
    return tuple(out)


def _is_short_move(s: For) -> bool:
    if s.kind not in _KINDS or s.base is not None or s.combined or not 1 < s.var.extent <= LONGEST_MOVE:
        return False
    statements = list(walk(s.body))
    allowed = lir.Let | lir.Store | lir.If | lir.Accumulator | lir.Assign
    if not all(
        isinstance(x, allowed) and (not isinstance(x, lir.Let) or isinstance(x.value, _MOVES)) for x in statements
    ):
        return False
    stores = sum(isinstance(x, lir.Store) for x in statements)
    most = LONGEST_MOVE if any(isinstance(x, lir.If) for x in statements) else WITHOUT_TESTS if stores == 1 else SEVERAL
    return s.var.extent <= most and _is_written(s, statements)


def _is_written(s: For, statements: Sequence[lir.Stmt]) -> bool:
    """Check whether the tests of a loop are decided for each of its iterations, and its elements are adjacent."""
    tests = [x.value.value for x in statements if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest)]
    stores = [x.offset for x in statements if isinstance(x, lir.Store)]
    decided = all(set(i.variables()) <= {s.var} for i in tests)
    return decided and bool(stores) and all(i.coefficient(s.var) == 1 for i in stores)
