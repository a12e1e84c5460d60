"""Binding of scans to a CPU: a `Scan` becomes loops over accumulators.

Along the fastest-varying dimension, the combinations of one row depend on each other, so several rows advance together,
in vectors where each step computes long functions.
Few long rows are divided into tracks of equal length: their totals are reduced first, and each track then continues
from the total of those before it. Along another dimension, adjacent columns advance together in vectors. How a scan is
divided depends on its size alone and never on the number of threads, so its result does not either.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scan
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import indices_in, map_indices, names_defined
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.stages import is_long_value
from compiler.ir.opcodes import Opcode

MIN_COLUMNS = 16
"""Number of adjacent columns from which on they advance together in vectors."""
ENOUGH_TASKS = 64
"""Number of tracks and of tiles of columns that keep the threads of any machine busy."""
MIN_TRACK = 512
"""Minimum number of elements of a track."""
LIGHT, LIGHT_ALIASED = 2, 4
"""By how much fewer rows with light steps advance together, and rows whose elements share a set of the first-level
cache: each row needs lines of its own there, and a set holds few."""
EXTREMES = frozenset({Opcode.MAXIMUM, Opcode.MINIMUM})
"""Combiners that take twice as long as a sum for floats, because they test for NaN."""
SET_BYTES, NEAR_BYTES = 4096, 1024
"""Distance of elements that share a set of the first-level cache, and of those of which few sets hold all."""
ELEMENT_BYTES = 4
"""Size of the elements for which these distances are counted."""
LANES, MIN_LANES, LONG_LANES, ALIASED_LANES = 16, 32, 64, 128
"""Tiles of columns are multiples of a vector of 32-bit elements, and have at least so many columns: threads that write
narrow tiles beside each other wait for the cache lines that both write. Tiles are wider where each step computes long
functions, which overlap, and where elements share sets of the cache, which do not hold all lines that the next tile
needs again."""
LONG_WORK = 12
"""Operations of a step from which on rows advance together in vectors, as those of a running sum of random numbers."""
FEWEST, HALF, CONFLICT_BYTES = 4, 8, 2048
"""Fewest rows that advance together in vectors where each step computes long functions, as in a running sum of
exponentials; half a vector, of which tiles of more rows are multiples; and the distance of rows from which on the cache
holds the lines of no more than one vector of them."""


def expand_scans(body: Body, schedule: Schedule) -> Body:
    """Return the statements of a kernel with its scans as loops."""
    return tuple(x for s in body for x in (_expand(s, schedule) if isinstance(s, Scan) else (s,)))


def _expand(s: Scan, schedule: Schedule) -> Body:
    outer, inner = s.rows
    if inner.extent >= MIN_COLUMNS:
        return _columns(s, schedule)
    row = Var(f"{outer.name}f", outer.extent * inner.extent)
    is_aliased = _is_aliased(s, outer if inner.extent == 1 else inner, SET_BYTES)
    s = _moved(s, {outer: ix.of(row).floordiv(inner.extent), inner: ix.of(row).mod(inner.extent)})
    tracks = schedule.splits or min(s.step.extent // MIN_TRACK, -(-ENOUGH_TASKS // row.extent))
    tracks = min(tracks, s.step.extent)
    is_light = work_of(s.body) == work_of(s.body, expensive=1)
    fewer = (LIGHT_ALIASED if is_aliased else LIGHT) if is_light else 1
    if s.combiner in EXTREMES and s.carries[0].type.is_float:
        fewer = max(1, fewer // 2)
    chains = max(1, schedule.chains // fewer)
    if s.combiner is not None and row.extent < 2 * schedule.chains and tracks > 1:
        return _tracks(s, row, s.combiner, tracks, chains)
    if schedule.vector and row.extent >= FEWEST and (_has_long_values(s) or _operations(s) >= LONG_WORK):
        most = LANES if _is_aliased(s, row, CONFLICT_BYTES) else 2 * LANES
        tiles = -(-row.extent // most)
        return _in_lanes(s, row, min(row.extent, -(-row.extent // tiles // HALF) * HALF))
    return _chains(s, row, chains)


def _is_aliased(s: Scan, var: Var, distance: int) -> bool:
    """Check whether the elements of adjacent values of a variable are a multiple of a distance in bytes apart."""
    steps = [i.coefficient(var) * ELEMENT_BYTES for i in indices_in(s.body)]
    return any(step and step % distance == 0 for step in steps)


def _has_long_values(s: Scan) -> bool:
    """Check whether each step computes long functions."""
    return any(isinstance(x, lir.Let) and is_long_value(x) for x in s.body)


def _operations(s: Scan) -> int:
    """Return the number of statements of a step that compute; rows of loads are no faster in vectors."""
    return work_of(tuple(x for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)))


def _moved(s: Scan, at: dict[IndexSymbol, IndexExpr]) -> Scan:
    """Return the scan with index expressions in place of some variables."""
    return replace(s, body=map_indices(s.body, lambda i: i.substitute(at)))


# ---- adjacent columns in vectors


def _columns(s: Scan, schedule: Schedule) -> Body:
    outer, inner = s.rows
    tiles = max(1, ENOUGH_TASKS // outer.extent)
    is_wide = inner.extent <= ALIASED_LANES or _is_aliased(s, s.step, NEAR_BYTES)
    least = ALIASED_LANES if is_wide else LONG_LANES if _has_long_values(s) else MIN_LANES
    size = min(schedule.columns, max(least, -(-inner.extent // tiles // LANES) * LANES), inner.extent)
    return _nested(outer, _in_lanes(s, inner, size))


def _in_lanes(s: Scan, inner: Var, size: int) -> Body:
    """Return a loop over tiles of `size` values of a variable, which advance together in vectors."""
    tile, lane = Var(f"{inner.name}t", -(-inner.extent // size)), Var(f"{inner.name}l", size)
    s = _moved(s, {inner: ix.of(tile) * size + ix.of(lane)})

    def lanes(body: Body) -> For:
        loop = For(lane, LoopKind.INDEPENDENT, body)
        return loop if inner.extent % size == 0 else replace(loop, base=ix.of(tile) * size, limit=inner.extent)

    arrays = {c.name: f"{c.name}_lanes" for c in s.carries}
    here = ix.of(lane)
    first = tuple(lir.LocalStore(arrays[c.name], here, c.start) for c in s.carries)
    before = tuple(lir.Let(c.name, c.type, lir.LocalLoad(arrays[c.name], here)) for c in s.carries)
    after = tuple(lir.LocalStore(arrays[c.name], here, c.next) for c in s.carries)
    body: Body = (
        *(lir.LocalArray(arrays[c.name], c.type, size) for c in s.carries),
        lanes(first),
        For(s.step, LoopKind.SERIAL, (lanes((*before, *s.body, *after)),)),
    )
    return _nested(tile, body)


def _nested(var: Var, body: Body) -> Body:
    """Return a loop over a variable; also if it has one value, as a scope for the names in the body."""
    return (For(var, LoopKind.INDEPENDENT, body),)


# ---- several rows at once


def _chains(s: Scan, row: Var, count: int, start: tuple[str, IndexExpr] | None = None) -> Body:
    """Return loops over rows, at most `count` of which advance together.

    `start` is an array of initial values and a row's place in it.
    """
    count = min(count, row.extent)
    together, rest = divmod(row.extent, count)
    out: list[lir.Stmt] = []
    if together:
        block = Var(f"{row.name}b", together)
        out += _nested(block, _advance(s, row, [ix.of(block) * count + k for k in range(count)], start))
    if rest:
        one = Var(f"{row.name}r", rest)
        out += _nested(one, _advance(s, row, [ix.of(one) + together * count], start))
    return tuple(out)


def _advance(s: Scan, row: Var, rows: list[IndexExpr], start: tuple[str, IndexExpr] | None) -> Body:
    """Return one loop over the steps of the given rows."""
    before: list[lir.Stmt] = []
    steps: list[lir.Stmt] = []
    for k, at in enumerate(rows):
        mine = _renamed(_moved(s, {row: at}), f"_{k}")
        for c in mine.carries:
            first = c.start
            if start is not None:
                array, place = start
                first = f"{c.name}_first"
                before.append(lir.Let(first, c.type, lir.LocalLoad(array, place.substitute({row: at}))))
            before.append(lir.Accumulator(f"{c.name}_now", c.type, first))
            steps.append(lir.Let(c.name, c.type, lir.Current(f"{c.name}_now")))
        steps += mine.body
        steps += [lir.Assign(f"{c.name}_now", c.next) for c in mine.carries]
    return (*before, For(s.step, LoopKind.SERIAL, tuple(steps)))


def _renamed(s: Scan, suffix: str) -> Scan:
    """Return the scan with a suffix on the names of its carries and on those that its body defines."""
    own = {*names_defined(s.body), *(c.name for c in s.carries)}

    def new(name: str) -> str:
        return name + suffix if name in own else name

    def renamed(x: lir.Stmt) -> lir.Stmt:
        if isinstance(x, lir.Store):
            return replace(x, value=new(x.value))
        if not isinstance(x, lir.Let):
            raise TypeError(f"the body of a scan has no {type(x).__name__}")
        value = x.value
        if isinstance(value, lir.Apply):
            value = replace(value, args=tuple(map(new, value.args)))
        return replace(x, name=new(x.name), value=value)

    carries = tuple(replace(c, name=new(c.name), next=new(c.next)) for c in s.carries)
    read = {v for v in ix.variables_of(indices_in(s.body)) if isinstance(v, Runtime) and v.name in own}
    at: dict[IndexSymbol, IndexExpr] = {v: ix.of(replace(v, name=new(v.name))) for v in read}
    body = map_indices(s.body, lambda i: i.substitute(at)) if at else s.body
    return replace(s, carries=carries, body=tuple(map(renamed, body)))


# ---- few long rows in tracks


def _tracks(s: Scan, row: Var, combiner: Opcode, count: int, chains: int) -> Body:
    """Return loops over tracks of equal length, preceded by their totals, and the scans of what is left of each row."""
    (carry,) = s.carries
    size, rest = divmod(s.step.extent, count)
    part, short = Var(f"{s.step.name}p", count), Var(f"{s.step.name}s", size)
    totals, starts = f"{carry.name}_totals", f"{carry.name}_starts"
    place = ix.of(row) * (count + 1)  # one value per track, and one for what is left

    inside = _moved(s, {s.step: ix.of(part) * size + ix.of(short)}).body
    values = tuple(x for x in inside if not isinstance(x, lir.Store))
    total = lir.Reduction(f"{carry.name}_total", carry.type, combiner, s.value)
    # What the values do not need, such as the combination with the carry, is dead code here.
    reduced = without_dead_code((lir.Reduce((short,), (total,), values),))
    stored = lir.LocalStore(totals, place + ix.of(part), total.name)

    number = Var(f"{row.name}k", row.extent * count)
    of_row, of_part = ix.of(number).floordiv(count), ix.of(number).mod(count)
    one = replace(_moved(s, {row: of_row, s.step: of_part * size + ix.of(short)}), step=short)
    last = Var(f"{s.step.name}e", rest)
    left = replace(_moved(s, {s.step: ix.of(last) + count * size}), step=last)
    return (
        *(lir.LocalArray(name, carry.type, row.extent * (count + 1), lir.Scope.KERNEL) for name in (totals, starts)),
        *_nested(row, _nested(part, (*reduced, stored))),
        For(row, LoopKind.SERIAL, _starts(carry, combiner, part, place, (totals, starts))),
        *_chains(one, number, chains, (starts, of_row * (count + 1) + of_part)),
        *(_nested(row, _advance(left, row, [ix.of(row)], (starts, place + count))) if rest else ()),
    )


def _starts(carry: lir.Carry, combiner: Opcode, part: Var, place: IndexExpr, arrays: tuple[str, str]) -> Body:
    """Return statements that store, for each track of a row, the combination of the tracks before it."""
    (totals, starts), t = arrays, carry.type
    now, before, each, after = (f"{carry.name}_{x}" for x in ("sum", "before", "each", "after"))
    step = (
        lir.Let(before, t, lir.Current(now)),
        lir.LocalStore(starts, place + ix.of(part), before),
        lir.Let(each, t, lir.LocalLoad(totals, place + ix.of(part))),
        lir.Let(after, t, lir.Apply(binary(combiner, t), (before, each))),
        lir.Assign(now, after),
    )
    whole = f"{carry.name}_whole"
    return (
        lir.Accumulator(now, t, carry.start),
        For(part, LoopKind.SERIAL, step),
        lir.Let(whole, t, lir.Current(now)),
        lir.LocalStore(starts, place + part.extent, whole),
    )
