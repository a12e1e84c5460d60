"""Splitting of reductions: parts of a long reduction are reduced at the same time, and their results afterwards.

How a reduction is split depends on its size alone and never on the number of threads, so its result does not either.
"""

from __future__ import annotations

import math
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_indices, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.distribution import distributed, is_by_rows
from compiler.codegen.schedules.lanes import is_column_loop
from compiler.codegen.schedules.loop_transforms import has_loop, perfect_nest, without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError

MAX_PARTS = 256
"""Maximum number of parts of a reduction to a single value."""
PARTIAL_BYTES = 128 * 1024
"""Maximum size of the results of all parts, which are on the stack of the calling thread."""
ENOUGH_TASKS = 64
"""Number of independent iterations that keep the threads of any machine busy."""
PART_BYTES = 2 << 20
"""Size of the rows of a column reduction from which on they are divided: tiles of columns of more rows touch too many
pages, and what one tile leaves in the cache is gone before its neighbor reads the same lines."""
THREAD_GRAINS = 10
"""Number of grains of work from which on a loop runs on several threads; waking them costs more than a shorter loop."""
BLOCK_BYTES = 512 * 1024
"""Maximum size of a tile of columns that is still in the cache of a core when it is read again."""
LANE_BYTES = 4
"""Size of the elements of a tile."""
ALIGNED = 64
"""Parts of consecutive elements start at multiples of this, so that they are whole cache lines."""


def split_reductions(body: Body, schedule: Schedule) -> Body:
    """Return the statements of a kernel with its long reductions split into parts.

    Raises:
        UnsupportedError: the schedule asks for more parts than fit.
    """
    out: list[lir.Stmt] = []
    for s in body:
        nests = distributed(s) if _is_distributed(s, schedule) else None
        if nests is None:
            out += _split(s, schedule, PARTIAL_BYTES)
            continue
        room = PARTIAL_BYTES // sum(isinstance(x, lir.Reduce) for x in walk((s,)))
        for x in nests:
            out += _split(x, schedule, room)
    return without_dead_code(tuple(out))


def _is_distributed(s: lir.Stmt, schedule: Schedule) -> bool:
    """Check whether the reductions of a block that is no row, and its outputs, should be nests of their own."""
    nest = perfect_nest(s)
    sweeps = [x for x in nest[-1].body if isinstance(x, For | lir.Reduce)] if nest else []
    if len(sweeps) < 2 or is_by_rows(nest, sweeps):
        return False
    if schedule.splits:
        return schedule.splits > 1
    if not schedule.threads or work_of((s,)) < THREAD_GRAINS * schedule.grain:
        return False
    columns = nest[-1]
    if not is_column_loop(columns):
        return True
    width = min(columns.var.extent, schedule.columns)
    tiles = math.prod(f.var.extent for f in nest[:-1]) * -(-columns.var.extent // width)
    block = max(map(_rows_of, sweeps)) * _room_of_row(columns.var.extent, width)
    return tiles < _enough_tiles(work_of((s,)), schedule) or block > BLOCK_BYTES


def _enough_tiles(work: int, schedule: Schedule) -> int:
    """Return the number of tiles that are tasks enough: parts of a small reduction gain less than they cost."""
    few = 2 * THREAD_GRAINS * schedule.grain
    return 1 if work < few else min(ENOUGH_TASKS // 8, max(2, work // few))


def _room_of_row(columns: int, width: int) -> int:
    """Return the bytes of a cache that a row of a tile takes.

    Rows at a large power of two from each other share few sets. They may fill these, unlike the whole cache, of which
    BLOCK_BYTES are a quarter.
    """
    stride = columns * LANE_BYTES
    return max(width * LANE_BYTES, (stride & -stride) // 4)


def _rows_of(sweep: lir.Stmt) -> int:
    vars_ = sweep.vars if isinstance(sweep, lir.Reduce) else [x.var for x in walk((sweep,)) if isinstance(x, For)]
    return math.prod(v.extent for v in vars_)


def _split(s: lir.Stmt, schedule: Schedule, room: int) -> list[lir.Stmt]:
    nest = perfect_nest(s)
    inside: Body = nest[-1].body if nest else (s,)
    found = [x for x in inside if isinstance(x, lir.Reduce)]
    if len(found) != 1 or has_loop(found[0].body) or any(f.kind is not LoopKind.INDEPENDENT for f in nest):
        return [s]
    if any(isinstance(x, For | lir.LocalArray) for x in inside):
        return [s]
    reduce, results = found[0], math.prod(f.var.extent for f in nest)
    parts = schedule.splits or _default_parts(s, nest, reduce, schedule, room)
    parts = min(parts, reduce.vars[0].extent)
    if parts <= 1:
        return [s]
    size = -(-reduce.vars[0].extent // parts)
    if not nest and len(reduce.vars) == 1:
        size = -(-size // ALIGNED) * ALIGNED
    held = (parts + 1) * results * sum(SCALAR_BYTES[r.type] for r in reduce.reductions)
    if held > room:
        if not schedule.splits:
            return [s]
        raise UnsupportedError(f"the parts of a reduction need {held} bytes, more than {room}")
    return _in_parts(nest, inside, reduce, size)


def _default_parts(s: lir.Stmt, nest: list[For], reduce: lir.Reduce, schedule: Schedule, room: int) -> int:
    """Return the number of parts by the amount of work: one unless threads would be idle or the caches too small."""
    work, results = work_of((s,)), math.prod(f.var.extent for f in nest)
    if not schedule.threads or work < THREAD_GRAINS * schedule.grain:
        return 1
    if results == 1:
        return min(MAX_PARTS, work // schedule.grain)
    if not may_be_split(results, reduce.vars[0].extent):
        return 1
    width = sum(SCALAR_BYTES[r.type] for r in reduce.reductions)
    most = max(1, room // (results * width) - 1)
    if is_column_loop(nest[-1]):
        size = results * math.prod(v.extent for v in reduce.vars) * width
        tiles = results // nest[-1].var.extent * -(-nest[-1].var.extent // schedule.columns)
        parts = 1 if tiles >= _enough_tiles(work, schedule) else -(-ENOUGH_TASKS // 4 // tiles)
        parts = max(parts, min(ENOUGH_TASKS // 4, size // PART_BYTES))
    else:
        parts = -(-ENOUGH_TASKS // 4 // results)
    return min(parts, most, work // schedule.grain)


def may_be_split(results: int, extent: int) -> bool:
    """Check whether reductions of `extent` elements each are split by default if they have enough work."""
    return results == 1 or results * 8 <= extent * ENOUGH_TASKS


def _in_parts(nest: list[For], inside: Body, reduce: lir.Reduce, size: int) -> list[lir.Stmt]:
    """Return a nest that reduces parts of `size` iterations into arrays, and a nest that reduces these."""
    v, *others = reduce.vars
    whole, rest = divmod(v.extent, size)
    parts = whole + (rest > 0)
    dims = [f.var.extent for f in nest]
    at, results = ix.linearize([ix.of(f.var) for f in nest], dims), math.prod(dims)
    names = {r.name: f"{r.name}_parts" for r in reduce.reductions}
    out: list[lir.Stmt] = [
        lir.LocalArray(names[r.name], r.type, parts * results, lir.Scope.KERNEL) for r in reduce.reductions
    ]
    before = inside[: inside.index(reduce)]

    def part(number: ix.IndexExpr, extent: int) -> Body:
        step = Var(f"{v.name}p", extent)
        body = map_indices(reduce.body, lambda i: i.substitute({v: number * size + ix.of(step)}))
        one = replace(reduce, vars=(step, *others) if extent > 1 else tuple(others), body=body)
        stores = [lir.LocalStore(names[r.name], number * results + at, r.name) for r in reduce.reductions]
        return (*before, one, *stores) if one.vars else (*before, *body, *_stored(one, stores))

    number = Var(f"{v.name}o", whole)
    stage: list[lir.Stmt] = [For(number, LoopKind.INDEPENDENT, _nested(nest, part(ix.of(number), size)))]
    if rest:
        once = Var(f"{v.name}e", 1)  # a scope for the names of the remainder
        stage.append(For(once, LoopKind.INDEPENDENT, _nested(nest, part(ix.const(whole), rest))))
    last = Var(f"{v.name}q", parts)
    loads = tuple(
        lir.Let(f"{r.name}_part", r.type, lir.LocalLoad(names[r.name], ix.of(last) * results + at))
        for r in reduce.reductions
    )
    combined = lir.Reduce((last,), tuple(replace(r, value=f"{r.name}_part") for r in reduce.reductions), loads)
    final = tuple(combined if x is reduce else x for x in inside)
    return [*out, *stage, *_nested(nest, final)]


def _stored(reduce: lir.Reduce, stores: list[lir.LocalStore]) -> list[lir.Stmt]:
    values = {r.name: r.value for r in reduce.reductions}
    return [replace(s, value=values[s.value]) for s in stores]


def _nested(nest: list[For], body: Body) -> Body:
    for f in reversed(nest):
        body = (replace(f, body=body),)
    return body
