"""Short loops that only move elements, as the padding of short rows, are written out: first all loads, then all stores.

The C compiler unrolls them as well, but does not know that what is stored is not read again, and therefore moves one
element after another. Loads that come before all stores become a few vectors.
"""

from __future__ import annotations

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, map_compound
from compiler.codegen.schedules.few_elements import moves_few
from compiler.codegen.schedules.short_loops import Copies

_KINDS = (LoopKind.VECTOR, LoopKind.SERIAL)


def write_out_moves(body: Body) -> Body:
    """Return bound statements without short loops that only move elements inside of other loops."""
    return map_compound(body, lambda s: (map_bodies(s, _inside),))


def _inside(body: Body) -> Body:
    return map_compound(body, _statement)


def _statement(s: lir.Stmt) -> Body:
    if not isinstance(s, For) or s.kind not in _KINDS or not moves_few(s):
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
