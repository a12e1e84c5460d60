"""Reductions of columns: loops that combine several rows with the accumulators at once.

A loop over rows around one over the lanes of columns reads and writes each accumulator once for each row. With four
rows in one iteration, it does so once for four. gcc could do this itself (unroll and jam), but then also moves what is
the same for a row into the loop over lanes, which it does not vectorize if that is a bool. An array that comes from
memory as a whole is read in order: memory delivers four rows at once at half the rate or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, map_compound
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.known_tests import copy_with
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

ROWS = 4
"""Rows of one iteration."""
MOST_WORK = 8
"""Work of a row from which on the accumulators do not matter."""
LIGHT = frozenset({Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.NEGATE, Opcode.CONVERT, Opcode.AND, Opcode.OR})
"""Operations of such a row. A maximum takes several instructions, of which the next one needs the result."""
FAR_BYTES = 16 << 20
"""Bytes of an array up to which its rows come from a cache."""


def join_rows(body: Body, sizes: Mapping[str, int]) -> Body:
    """Return bound statements whose loops over rows of column reductions combine several rows at once.

    Args:
        body: the statements.
        sizes: the bytes of the arguments, by name.
    """

    def joined(s: lir.Stmt) -> Body:
        if isinstance(s, For) and _is_light(s) and not _reads_far(s, sizes):
            return _joined(s)
        return (map_bodies(s, lambda inner: join_rows(inner, sizes)),)

    return map_compound(body, joined)


def _reads_far(s: For, sizes: Mapping[str, int]) -> bool:
    """Check for a loop over whole rows of an array which is larger than a cache."""
    (lanes,) = s.body
    assert isinstance(lanes, For)  # noqa: S101 - `_is_light` found one
    loads = (x.value for x in lanes.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load))
    return any(sizes.get(x.buffer, 0) > FAR_BYTES and x.offset.coefficient(s.var) == lanes.var.extent for x in loads)


def _is_light(s: For) -> bool:
    """Check for a loop over rows that contains one over lanes alone, which does little with their accumulators."""
    if s.kind is not LoopKind.SERIAL or s.base is not None or s.var.extent < 2 * ROWS or len(s.body) != 1:
        return False
    (lanes,) = s.body
    if not isinstance(lanes, For) or lanes.kind is not LoopKind.VECTOR or lanes.combined:
        return False
    if not all(isinstance(x, lir.Let | lir.LocalStore) for x in lanes.body) or work_of(lanes.body) > MOST_WORK:
        return False
    stores = [x for x in lanes.body if isinstance(x, lir.LocalStore)]
    lets = [x for x in lanes.body if isinstance(x, lir.Let)]
    if any(x.type is T.PRED or (isinstance(x.value, lir.Apply) and x.value.op.opcode not in LIGHT) for x in lets):
        return False
    return bool(stores) and all(s.var not in x.offset.variables() for x in stores)


def _joined(s: For) -> Body:
    (lanes,) = s.body
    assert isinstance(lanes, For)  # noqa: S101 - `_is_light` found one
    v, whole = s.var, s.var.extent // ROWS
    group, lane = Var(f"{v.name}j", whole), lanes.var
    rows: list[lir.Stmt] = []
    for k in range(ROWS):
        at: dict[IndexSymbol, IndexExpr] = {v: ix.of(group) * ROWS + k}
        rows += copy_with(lanes.body, {}, at, f"_{lane.name}{k}")
    out: list[lir.Stmt] = [replace(s, var=group, body=(replace(lanes, body=tuple(rows)),), poll=-(-s.poll // ROWS))]
    if v.extent % ROWS:
        rest = Var(f"{v.name}k", v.extent % ROWS)
        last: dict[IndexSymbol, IndexExpr] = {v: ix.of(rest) + whole * ROWS}
        out.append(replace(s, var=rest, body=(replace(lanes, body=copy_with(lanes.body, {}, last, "_r")),), poll=0))
    return tuple(out)
