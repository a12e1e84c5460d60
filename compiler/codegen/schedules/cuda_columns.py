"""Adjacent columns that a thread of a GPU reduces together: it reads them in one access of up to 16 bytes.

A thread that reads one element of bf16 or int8 at a time has too few bytes under way, and every access costs the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime, Var
from compiler.codegen.nest.loop_ir import Body
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_indices, names_of, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.cuda_shapes import (
    ACCESS_BYTES,
    COMBINE_BYTES,
    FULL_THREADS,
    LEAST_ROWS,
    MAX_THREADS,
    floor_power,
)
from compiler.codegen.schedules.cuda_wide import Lane
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType

__all__ = ["join_columns"]

MOST_COLUMNS = 8
MOST_WORK = 128
"""Statements of all columns for one row, whose values need registers."""
_JOINED = lir.Let | lir.Store | lir.Reduce | lir.If | lir.Accumulator | lir.Assign
_VALUES = lir.Current | lir.Constant | lir.Apply | lir.Load | lir.IndexValue | lir.IndexTest


def join_columns(var: Var, body: Body, types: Mapping[str, PrimitiveType], schedule: Schedule) -> tuple[Var, Body, int]:
    """Return the variable of groups of columns, the statements of a group, and the number of columns of a group.

    They are those of one column if only that is possible, or if threads would be idle.

    Args:
        var: variable of the columns.
        body: the statements of a column.
        types: element types of the arguments of the kernel.
        schedule: may set the number of columns (`gpu.width`).
    """
    reduces = [s for s in body if isinstance(s, lir.Reduce)]
    if len(reduces) != 1 or not all(isinstance(s, lir.Let | lir.Store | lir.Reduce) for s in body):
        return var, body, 1
    (reduce,) = reduces
    if not all(isinstance(s, _JOINED) and not (isinstance(s, lir.Let) and not isinstance(s.value, _VALUES))
               for s in walk(body)):  # fmt: skip
        return var, body, 1
    width = _most_columns(var, reduce, types, schedule)
    while width > 1 and not _is_possible(var, body, reduce, width):
        width //= 2
    if width < 2:
        return var, body, 1
    lane = _lane(var, width)
    group = next(v for v in lane.word.variables() if isinstance(v, Var))
    return group, _joined(lane, body, types), width


def _lane(var: Var, width: int) -> Lane:
    return Lane.of(var, ix.of(Var(f"{var.name}g", var.extent // width)), width)


def _most_columns(var: Var, reduce: lir.Reduce, types: Mapping[str, PrimitiveType], schedule: Schedule) -> int:
    """Return how many columns a thread should reduce if their elements are adjacent.

    The threads of a block combine the accumulators of each column in turn, which few rows are not worth.
    """
    along = _lane(var, 1)
    sizes = [types[load.buffer].byte_size for load in _loads(reduce.body) if along.place(load.offset) != load.offset]
    if not sizes or min(sizes) < 1:
        return 1
    wanted = ACCESS_BYTES // max(sizes)
    if schedule.gpu.width:
        wanted = min(floor_power(schedule.gpu.width), ACCESS_BYTES // min(sizes))
    combined = sum(max(4, SCALAR_BYTES[r.type]) for r in reduce.reductions)
    rows = math.prod(v.extent for v in reduce.vars)
    loads = var.extent * rows // FULL_THREADS  # of each of as many threads as keep the memory busy
    most = [
        MOST_COLUMNS,
        COMBINE_BYTES // (combined * MAX_THREADS),
        MOST_WORK // max(1, work_of(reduce.body)),
        1 << 30 if schedule.gpu.width else loads // (LEAST_ROWS * len(reduce.reductions)),
    ]
    return min(wanted, floor_power(max(1, min(most))))


def _is_possible(var: Var, body: Body, reduce: lir.Reduce, width: int) -> bool:
    """Check whether what a row of a group reads is adjacent, or the same for all columns."""
    if var.extent % width:
        return False
    lane = _lane(var, width)
    own = _dependent(lane, body)

    if any(isinstance(s, lir.If) and s.condition in own for s in walk(body)):
        return False

    def is_adjacent(i: IndexExpr) -> bool:
        known = not any(isinstance(v, Runtime) and v.name in own for v in i.variables())
        return known and (lane.is_uniform(i) or lane.is_wide(i))

    return all(is_adjacent(lane.place(load.offset)) for load in _loads(reduce.body))


def _loads(body: Body) -> list[lir.Load]:
    return [s.value for s in walk(body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)]


def _dependent(lane: Lane, body: Body) -> set[str]:
    """Return the names of the values that differ between the columns of a group."""
    own = {r.name for s in body if isinstance(s, lir.Reduce) for r in s.reductions}
    statements = [(s, set(names_of(placed))) for s in walk(body) for placed in map_indices((s,), lane.place)]
    count = -1
    while len(own) > count:  # an accumulator is declared before what it becomes is known
        count = len(own)
        for s, names in statements:
            if isinstance(s, lir.Let | lir.Accumulator | lir.Assign) and (lane.u.name in names or names & own):
                own.add(s.name)
    return own


def _joined(lane: Lane, body: Body, types: Mapping[str, PrimitiveType]) -> Body:
    """Return the statements of a group of columns."""
    own = _dependent(lane, body)
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, lir.Reduce):
            reductions = tuple(
                replace(r, name=_named(r.name, lane, own, k), value=_named(r.value, lane, own, k))
                for k in range(lane.width)
                for r in s.reductions
            )
            out.append(lir.Reduce(s.vars, reductions, _joined_row(lane, s.body, own)))
        elif isinstance(s, lir.Store) and types[s.buffer].byte_size * lane.width <= ACCESS_BYTES and _is_wide(s, lane):
            array = f"{s.buffer}_wide{len(out)}"
            out.append(lir.LocalArray(array, types[s.buffer], lane.width))
            out += [lir.LocalStore(array, ix.const(k), _named(s.value, lane, own, k)) for k in range(lane.width)]
            out.append(lir.WideStore(s.buffer, lane.place(s.offset) - ix.of(lane.u), array, lane.width))
        else:
            out += _copies(s, lane, own)
    return tuple(out)


def _is_wide(s: lir.Store, lane: Lane) -> bool:
    offset = lane.place(s.offset)
    return lane.is_wide(offset) and not any(isinstance(v, Runtime) for v in offset.variables())


def _joined_row(lane: Lane, body: Body, own: set[str]) -> Body:
    """Return the statements of a row of a group: first what is the same for all columns and what is loaded."""
    out: list[lir.Stmt] = []
    columns: list[list[lir.Stmt]] = [[] for _ in range(lane.width)]
    arrays: dict[tuple[str, IndexExpr], str] = {}
    for s in body:
        if isinstance(s, lir.If):
            out += [x for column in columns for x in column]
            columns = [[] for _ in range(lane.width)]
            out.append(lir.If(s.condition, _joined_row(lane, s.then, own), _joined_row(lane, s.otherwise, own)))
            continue
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load) and s.name in own:
            offset = lane.place(s.value.offset) - ix.of(lane.u)
            key = s.value.buffer, offset
            if key not in arrays:
                arrays[key] = f"{s.name}_wide"
                out.append(lir.LocalArray(arrays[key], s.type, lane.width))
                out.append(lir.WideLoad(arrays[key], s.value.buffer, offset, lane.width))
            s = replace(s, value=lir.LocalLoad(arrays[key], ix.of(lane.u)))
        copies = _copies(s, lane, own)
        if len(copies) == 1:
            out += copies
            continue
        for column, copy in zip(columns, copies, strict=True):
            column.append(copy)
    return (*out, *(x for column in columns for x in column))


def _named(name: str, lane: Lane, own: set[str], k: int) -> str:
    return f"{name}_{lane.u.name}{k}" if name in own else name


def _copies(s: lir.Stmt, lane: Lane, own: set[str]) -> list[lir.Stmt]:
    """Return a statement for each column, or once if it is the same for all of them."""
    if isinstance(s, lir.Let | lir.Accumulator | lir.Assign) and s.name not in own:
        return list(map_indices((s,), lane.place))
    return [_copy(s, lane, own, k) for k in range(lane.width)]


def _copy(s: lir.Stmt, lane: Lane, own: set[str], k: int) -> lir.Stmt:
    def named(name: str) -> str:
        return _named(name, lane, own, k)

    def index(i: IndexExpr) -> IndexExpr:
        placed = lane.place(i)
        at: dict[IndexSymbol, IndexExpr] = {lane.u: ix.const(k)}
        for v in placed.variables():
            if isinstance(v, Runtime) and v.name in own:
                at[v] = ix.of(replace(v, name=named(v.name)))
        return placed.substitute(at)

    (placed,) = map_indices((s,), index)
    if isinstance(placed, lir.Store):
        return replace(placed, value=named(placed.value))
    if isinstance(placed, lir.Accumulator):
        return replace(placed, name=named(placed.name), init=named(placed.init))
    if isinstance(placed, lir.Assign):
        return replace(placed, name=named(placed.name), value=named(placed.value))
    assert isinstance(placed, lir.Let)  # noqa: S101 - checked by `join_columns`
    value = placed.value
    if isinstance(value, lir.Apply):
        value = replace(value, args=tuple(map(named, value.args)))
    elif isinstance(value, lir.Current):
        value = lir.Current(named(value.name))
    return replace(placed, name=named(placed.name), value=value)
