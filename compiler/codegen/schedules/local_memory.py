"""An upper bound of the local arrays that binding to a CPU makes, found without binding.

Each rewrite that makes arrays has a bound of its own beside it. The bounds hold whether or not the rewrite applies, and
also if loops are merged before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import For
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import bodies_of, indices_in, names_of, walk
from compiler.codegen.schedules import edges, stages, streams
from compiler.codegen.schedules.distribution import VALUE_BYTES, is_by_rows
from compiler.codegen.schedules.flat_functions import flatten_functions
from compiler.codegen.schedules.flat_rows import flat_bytes
from compiler.codegen.schedules.halves import halves_bytes_bound
from compiler.codegen.schedules.lane_accumulators import lane_bytes_bound
from compiler.codegen.schedules.lanes import NEAR, column_bytes_bound
from compiler.codegen.schedules.loop_transforms import Tiling, has_loop, perfect_nest, staged_bytes_bound
from compiler.codegen.schedules.padded_planes import pad_planes
from compiler.codegen.schedules.row_blocks import blocks_bound
from compiler.codegen.schedules.row_cache import ROW_CACHE_BYTES, has_expensive, kept_bytes_bound
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.shared_values import MIN_WORK, SHARED_BYTES, work_bound
from compiler.codegen.schedules.short_rows import rows_bound
from compiler.codegen.schedules.sparse_loads import MOST_BYTES, separated_bytes
from compiler.codegen.schedules.splits import PARTIAL_BYTES, partial_bytes_bound
from compiler.codegen.schedules.transposed_rows import SORTS, transposed_bytes

BOUNDED = (
    lir.Let,
    lir.Store,
    lir.Accumulator,
    lir.Assign,
    lir.LocalArray,
    lir.LocalStore,
    lir.If,
    lir.For,
    lir.Reduce,
    lir.ForFlagged,
    lir.TransposeTile,
    lir.StoreTransposed,
    lir.RepeatElements,
)
"""The statements for which the local memory that binding needs is bounded without binding."""
SPLIT_COPIES = 3
"""Copies of a reduction that is split: whole parts, the last part, and their results."""
TILE_COPIES = 2
"""Copies of what is in a loop over columns: whole tiles, and the rest."""


def local_bytes_bound(kernel: lir.Kernel, schedule: Schedule) -> float:
    """Return an upper bound of the bytes of the local arrays that `bind_c` makes.

    It is infinite for statements and schedules whose rewrites are not counted, such as scans and rare work.
    """
    statements = list(walk(kernel.body))
    if schedule.rare or not all(isinstance(s, BOUNDED) for s in statements):
        return math.inf
    total: float = declared_bytes(statements) + kept_bytes_bound(kernel.body, schedule.cache)
    if schedule.vector:
        total += halves_bytes_bound(kernel)
        total += _window_bytes(kernel, schedule)
    if schedule.vector and schedule.short:
        types = kernel.types
        total += flat_bytes(kernel.body, types) + transposed_bytes(kernel.body, types, kernel.kind in SORTS)
    if schedule.hoist:
        total += _shared_bytes(kernel.body, schedule.cache)
    sizes = kernel.sizes
    tiling = Tiling(schedule.tile, schedule.across, array_bytes=sizes)
    for s in kernel.body:
        if schedule.tile and kernel.kind == "loop":
            total += TILE_COPIES * staged_bytes_bound(s, tiling)  # of values that are shared, and of the others
        total += _nest_bytes(s, _edge_copies(kernel.kind, s, schedule), schedule)
    return total


def _window_bytes(kernel: lir.Kernel, schedule: Schedule) -> int:
    """Return the bytes of the planes that windows read and of their sums, beside the arrays of the nest."""
    body = pad_planes(kernel, kernel.body) if schedule.edges else kernel.body
    body = flatten_functions(body) if schedule.stages else body
    return 0 if body is kernel.body else declared_bytes(tuple(walk(body))) - declared_bytes(tuple(walk(kernel.body)))


def declared_bytes(statements: Sequence[lir.Stmt]) -> int:
    """Return the bytes of the local arrays that a nest has before it is bound."""
    return sum(s.size * SCALAR_BYTES[s.type] for s in statements if isinstance(s, lir.LocalArray))


def reads_along_columns(s: For) -> bool:
    """Check whether a loop around reductions may be one over columns, see `lanes.is_column_loop`."""
    return any(
        0 < abs(i.coefficient(s.var)) <= NEAR for x in s.body if isinstance(x, lir.Reduce) for i in indices_in(x.body)
    )


def _shared_bytes(body: lir.Body, level: int) -> int:
    """Return a bound of the values that all iterations of a loop share, and of those that their loops keep.

    The loops that compute them may have elements of their own in common, for each choice of the loops inside.
    """
    total, inside = 0, 0
    for s in body:
        inside += _shared_bytes(s.body, level) if isinstance(s, For) and _depth(s) > 2 else 0
        lets = _shareable(s) if isinstance(s, For) and has_loop(s.body) else []
        if work_bound(lets) >= MIN_WORK:
            choices = (1 << _depth(s) - 1) - 1
            total += ROW_CACHE_BYTES * choices if level and (level > 1 or has_expensive(lets)) else 0
            total = max(total, 1)
    return inside + (total + SHARED_BYTES if total else 0)


def _shareable(s: For) -> list[lir.Let]:
    """Return the values inside a loop that do not depend on its variable."""
    found: list[lir.Let] = []
    own: set[str] = set()  # names that depend on it, or are not known to be independent of it
    for x in walk(s.body):
        if isinstance(x, lir.Reduce):
            own.update(r.name for r in x.reductions)
        elif isinstance(x, lir.Let):
            index = lir.index_of(x.value)
            if (
                s.var in (index.variables() if index is not None else ())
                or not own.isdisjoint(names_of(x))
                or isinstance(x.value, lir.Current | lir.LocalLoad)
            ):
                own.add(x.name)
            else:
                found.append(x)
    return found


def _depth(s: lir.Stmt) -> int:
    """Return the most loops that are inside each other."""
    own = len(s.vars) if isinstance(s, lir.Reduce) else int(isinstance(s, For))
    return own + max((_depth(x) for inner in bodies_of(s) for x in inner), default=0)


def _edge_copies(kind: str, s: lir.Stmt, schedule: Schedule) -> int:
    """Return the most copies of the loops of a nest that the split of its edges makes: each has two statements."""
    tests = any(isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest) for x in walk((s,)))
    if not tests or not schedule.edges:
        return 1
    return edges.MAX_STATEMENTS // 2 if kind in edges.KINDS else edges.MAX_RANGES if kind in edges.REDUCTIONS else 1


def _nest_bytes(s: lir.Stmt, copies: int, schedule: Schedule) -> float:
    """Return a bound of the arrays of one nest, of which there are some copies."""
    nest = perfect_nest(s)
    body = nest[-1].body if nest else (s,)
    results = math.prod(f.var.extent for f in nest)
    loops = [x for x in body if isinstance(x, For | lir.Reduce)]
    # Several loops over the same rows are neither split nor divided into nests of their own.
    sweeps = 1 if nest and len(loops) > 1 and is_by_rows(nest, loops) else len(loops)
    partial = _partial_bytes(body, results, schedule) if sweeps == len(loops) else 0
    total = partial
    if partial:
        copies *= SPLIT_COPIES
    if nest and sweeps > 1:
        total += min(VALUE_BYTES, results * _bytes_of(body))
    for x in walk((s,)):
        if isinstance(x, lir.Reduce):
            total += copies * lane_bytes_bound(len(x.reductions), schedule)
        elif isinstance(x, For) and any(isinstance(y, lir.Reduce) for y in x.body):
            is_last = bool(nest) and x is nest[-1]
            if reads_along_columns(x) or (partial and is_last):  # the parts of adjacent results are adjacent
                width = results if is_last else schedule.columns + 1
                merged = x.var.extent if x.var.extent <= schedule.short else 1  # columns that one loop reduces
                total += copies * merged * column_bytes_bound(x, width, schedule, sweeps if is_last else 1)
        if isinstance(x, For | lir.Reduce):
            if schedule.stages and schedule.vector:
                total += copies * (rows_bound(x) + (blocks_bound(x) if isinstance(x, For) else 0))
            total += TILE_COPIES * copies * _leaf_bytes(x, schedule)
    return total


def _partial_bytes(body: lir.Body, results: int, schedule: Schedule) -> float:
    """Return a bound of the results of parts of the reductions of one nest."""
    reductions = [x for x in body if isinstance(x, lir.Reduce)]
    total: float = 0
    for r in reductions:
        extent = math.prod(v.extent for v in r.vars)
        total += partial_bytes_bound(results, extent, sum(SCALAR_BYTES[x.type] for x in r.reductions), schedule)
    if schedule.splits and total * len(reductions) > PARTIAL_BYTES:
        return math.inf  # of the nests that they may be divided into, each has an equal share
    return min(PARTIAL_BYTES, total)


def _leaf_bytes(x: For | lir.Reduce, schedule: Schedule) -> int:
    """Return a bound of the arrays of a loop over single elements."""
    if has_loop(x.body) or not schedule.vector:
        return 0
    total = stages.bytes_bound(x.body) if schedule.stages else 0
    if schedule.stages and isinstance(x, For):
        total += min(separated_bytes(x), MOST_BYTES)
    if schedule.stream:
        total += streams.BLOCK * sum(max(SCALAR_BYTES.values()) for y in x.body if isinstance(y, lir.Store))
    return total


def _bytes_of(body: lir.Body) -> int:
    """Return the bytes of the values that statements define, without those of the loops among them."""
    types = [x.type for x in body if isinstance(x, lir.Let)]
    types += [r.type for x in body if isinstance(x, lir.Reduce) for r in x.reductions]
    return sum(SCALAR_BYTES[t] for t in types)
