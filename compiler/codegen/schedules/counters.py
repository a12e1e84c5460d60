"""Counters of a loop as sums: a carried integer that grows by a constant in every step is known in advance."""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.ir.opcodes import Opcode

LIMIT = 1 << 31
"""What a counter grows by in a whole loop is less, so that it fits into all types of counters."""


def with_known_counters(body: Body) -> Body:
    """Return the statements of a kernel in which sequential loops compute counters from the number of the step."""
    return _in_scope(body, {})


def _in_scope(body: Body, known: dict[str, int]) -> Body:
    known = known | _constants(body)
    starts = {s.name: s.init for s in body if isinstance(s, lir.Accumulator)}
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For):
            if s.kind is LoopKind.SERIAL and starts:
                s = replace(s, body=_replaced(s.body, starts, _counters(s, starts, known)))
            s = replace(s, body=_in_scope(s.body, known))
        out.append(s)
    return tuple(out)


def _constants(body: Body) -> dict[str, int]:
    """Return the integers that definitions among these statements are equal to."""
    return {
        s.name: int(s.value.value)
        for s in body
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Constant) and s.type.is_integer
    }


def _counters(loop: For, starts: dict[str, str], known: dict[str, int]) -> dict[str, IndexExpr]:
    """Return the accumulators that are counters in a loop, with what they have grown by before a step."""
    lets = {s.name: s for s in loop.body if isinstance(s, lir.Let)}
    known = known | _constants(loop.body)
    found: dict[str, IndexExpr] = {}
    assigns = [s for s in walk(loop.body) if isinstance(s, lir.Assign)]
    for name in starts:
        mine = [s for s in assigns if s.name == name]
        growth = _growth(lets.get(mine[0].value), name, lets, known) if len(mine) == 1 else None
        if growth is not None and mine[0] in loop.body:
            value = ix.of(loop.var) * growth
            if value.range[0] >= 0 and value.range[1] + abs(growth) < LIMIT:
                found[name] = value
    return found


def _growth(s: lir.Let | None, name: str, lets: dict[str, lir.Let], known: dict[str, int]) -> int | None:
    """Return by how much a new value is more than an accumulator, if that is a constant."""
    if s is None or not isinstance(s.value, lir.Apply) or s.value.op.opcode is not Opcode.ADD or s.type.bits < 32:
        return None
    if not s.type.is_integer:
        return None
    for current, constant in (s.value.args, s.value.args[::-1]):
        let = lets.get(current)
        if let is not None and let.value == lir.Current(name) and constant in known:
            return known[constant]
    return None


def _replaced(body: Body, starts: dict[str, str], counters: dict[str, IndexExpr]) -> Body:
    """Return statements that compute counters from their starts; a counter is assigned after all reads."""
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Current) and s.value.name in counters:
            grown, accumulator = f"{s.name}_grown", s.value.name
            out.append(lir.Let(grown, s.type, lir.IndexValue(counters[accumulator])))
            s = replace(s, value=lir.Apply(binary(Opcode.ADD, s.type), (starts[accumulator], grown)))
        out.append(map_bodies(s, lambda inner: _replaced(inner, starts, counters)))
    return tuple(out)
