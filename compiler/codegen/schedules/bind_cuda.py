"""Binding of loop nests to a GPU: blocks, threads, registers, shared memory and barriers.

Each nest of a kernel is bound by the file for its form: loops over single elements (`cuda_flat`), those that transpose
(`cuda_tiles`), reductions of rows and columns (`cuda_rows`), scatters (`cuda_scatters`), and all others
(`cuda_blocks`). Nests that do not depend on each other run at the same time, each on blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from compiler.codegen.lowering.reductions import UNROLL_LIMIT
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import bodies_of, indices_in, names_of, names_used, walk
from compiler.codegen.schedules.bind_tiles import bind_tiles, has_tiles
from compiler.codegen.schedules.block_loops import bind_block_loop
from compiler.codegen.schedules.cuda_blocks import SHARED_BYTES, bind_whole
from compiler.codegen.schedules.cuda_flat import FlatNest, is_element
from compiler.codegen.schedules.cuda_rows import RowNest
from compiler.codegen.schedules.cuda_scatters import scatter_nest
from compiler.codegen.schedules.cuda_shapes import BLOCK_BYTES, COMBINE_BYTES, WARP
from compiler.codegen.schedules.cuda_tiles import TILE_BYTES, TileNest
from compiler.codegen.schedules.lanes import NEAR, column_bytes_bound
from compiler.codegen.schedules.local_memory import local_bytes
from compiler.codegen.schedules.loop_transforms import collapse, without_dead_code
from compiler.codegen.schedules.row_cache import kept_bytes_bound
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.short_loops import unroll_short_reductions
from compiler.codegen.schedules.thread_loops import bind_thread_loop, suits_threads
from compiler.codegen.schedules.thread_scans import bind_scans
from compiler.codegen.schedules.thread_sorts import bind_sorts
from compiler.errors import UnsupportedError

__all__ = ["SHARED_BYTES", "bind_cuda", "binds_surely"]


ROW_BYTES = BLOCK_BYTES - COMBINE_BYTES // 4
"""Shared memory in which the only nest of a kernel keeps rows; the rest is for its accumulators."""
_BOUNDED = (
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
"""The statements of which the shared memory is bounded without binding."""


class Nest(Protocol):
    """A nest that runs on blocks of its own."""

    @property
    def combine_bytes(self) -> int:
        """Bytes of shared memory per thread of a block in which it combines accumulators."""
        ...

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        ...

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads; unless they may combine, each reduces by itself."""
        ...


def bind_cuda(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return a nest bound to the blocks and threads of a GPU.

    Raises:
        UnsupportedError: the nest needs too much local or shared memory, or has no form that a GPU runs.
    """
    if has_tiles(kernel):
        return bind_tiles(kernel, BLOCK_BYTES)
    if suits_threads(kernel, schedule):
        return bind_thread_loop(replace(kernel, body=without_dead_code(kernel.body)), schedule)
    if kernel.kind == "block-loop":
        return bind_block_loop(kernel, schedule)
    if kernel.kind == "scan":
        return bind_scans(kernel, schedule)
    if kernel.kind in ("sort", "top-k"):
        return bind_sorts(kernel, schedule)
    # A block would combine its threads and wait for that, which takes longer than few elements in every thread.
    body = unroll_short_reductions(collapse(without_dead_code(kernel.body)), UNROLL_LIMIT)
    if kernel.kind == "scatter" and not kernel.must_alias:
        raise UnsupportedError(
            "a scatter into an array that the kernel computes itself has no kernel in this language: all elements come "
            "before the updates, and the blocks of a GPU do not wait for each other"
        )
    first, parts = _independent(body)
    kernel = replace(kernel, resident=schedule.gpu.resident, in_place=_shared_safely(kernel, body, first, parts))
    room = 0 if any(isinstance(s, lir.Reduce) for s in walk(body)) else TILE_BYTES // max(1, len(parts))
    row_room = ROW_BYTES if len(parts) == 1 else 0
    nests = [_nest_of(part, kernel, schedule, room, row_room) for part in parts]
    if not parts or any(n is None for n in nests):
        if kernel.nests > 1 and any(isinstance(s, lir.Reduce) for s in body):
            raise UnsupportedError(
                "outputs of different shapes, of which one is a reduction of whole arrays, have no common kernel in "
                "this language: every block of a GPU would repeat the reduction"
            )
        body, threads = bind_whole(body, schedule)
        return replace(kernel, body=body, threads=threads)
    body, threads = _side_by_side([n for n in nests if n is not None], schedule)
    tiled = kernel.kind == "loop" and any(isinstance(n, TileNest) for n in nests)
    body = _with_own_values(first, body)
    return replace(kernel, kind="transpose" if tiled else kernel.kind, body=body, threads=threads)


def _with_own_values(first: Body, nests: Body) -> Body:
    """Return definitions and the nests after them; what one nest alone needs is computed by its blocks alone."""
    if len(nests) < 2 or not all(isinstance(n, For) for n in nests):
        return (*first, *nests)
    used = [set(names_used((n,))) for n in nests]
    own: list[list[lir.Stmt]] = [[] for _ in nests]
    kept: list[lir.Stmt] = []
    needed = set[str]()  # by definitions that stay
    for s in reversed(first):
        users = [n for n, names in enumerate(used) if isinstance(s, lir.Let) and s.name in names]
        if isinstance(s, lir.Let) and len(users) == 1 and s.name not in needed and not _is_constant(s):
            own[users[0]].insert(0, s)
            used[users[0]].update(names_of(s))
        else:
            kept.insert(0, s)
            needed.update(names_of(s))
    made = (replace(n, body=(*o, *n.body)) for n, o in zip(nests, own, strict=True) if isinstance(n, For))
    return (*kept, *made)


def _is_constant(s: lir.Let) -> bool:
    return isinstance(s.value, lir.Constant)


def _shared_safely(
    kernel: lir.Kernel, body: Body, first: Body, parts: list[Body]
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Return the pairs of arguments that may share a buffer although blocks do not wait for each other.

    What is read by the statements that every thread runs, or by another nest than the one that writes the buffer, may
    be overwritten before it is read.
    """
    if not kernel.in_place:
        return ()
    if not parts:
        first, parts = (
            tuple(s for s in body if isinstance(s, lir.Let)),
            [(s,) for s in body if not isinstance(s, lir.Let)],
        )
    if len(parts) == 1 and not any(isinstance(s, For) for s in walk(parts[0])):
        return kernel.in_place  # one thread writes, and what the others read is not used
    early = set(_loaded(first))
    names = [a.name for a in kernel.arguments]
    readers: dict[str, set[int]] = {}
    writer: dict[str, int] = {}
    for n, p in enumerate(parts):
        for name in _loaded(p):
            readers.setdefault(name, set()).add(n)
        for name in _stored(p):
            writer.setdefault(name, n)

    def is_safe(read: str, written: str) -> bool:
        return read not in early and readers.get(read, set()) <= {writer.get(written)}

    return tuple(pair for pair in kernel.in_place if is_safe(names[pair[0]], names[pair[1]]))


def _loaded(body: Body) -> Iterator[str]:
    """Yield the arguments that statements load."""
    for s in walk(body):
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            yield s.value.buffer


def _stored(body: Body) -> Iterator[str]:
    """Yield the arguments that statements store."""
    for s in walk(body):
        if isinstance(s, lir.Store):
            yield s.buffer


def _side_by_side(nests: list[Nest], schedule: Schedule) -> tuple[Body, int]:
    """Return the bound nests, which share one number of threads per block, and that number.

    Raises:
        UnsupportedError: blocks of the size that the schedule asks for need too much shared memory.
    """
    threads = max(n.threads(schedule) for n in nests)
    total = sum(n.combine_bytes for n in nests)
    if schedule.block and threads * total > COMBINE_BYTES:
        raise UnsupportedError(
            f"blocks of {threads} threads need {threads * total} bytes of shared memory to combine accumulators, more "
            f"than {COMBINE_BYTES}"
        )
    while threads > WARP and threads * total > COMBINE_BYTES:
        threads //= 2
    may_combine = threads * total <= COMBINE_BYTES
    return tuple(n.bind(threads, schedule, may_combine) for n in nests), threads


def _nest_of(part: Body, kernel: lir.Kernel, schedule: Schedule, room: int, row_room: int) -> Nest | None:
    """Return the nest of some statements, whose tiles and rows have so many bytes of shared memory; None for others."""
    types = kernel.types
    if kernel.kind == "scatter":
        return scatter_nest(part, types, schedule)
    if any(isinstance(s, lir.Reduce) for s in part):
        return RowNest.of(For(Var("whole", 1), LoopKind.INDEPENDENT, part), types, schedule, row_room)
    if is_element(part):
        return FlatNest.of(For(Var("once", 1), LoopKind.INDEPENDENT, part), types, schedule)
    if len(part) != 1:
        return None
    tiled = TileNest.of(part[0], types, schedule, room)
    return tiled or FlatNest.of(part[0], types, schedule) or RowNest.of(part[0], types, schedule, row_room)


# ---- nests that do not depend on each other


def _independent(body: Body) -> tuple[Body, list[Body]]:
    """Return definitions that every thread computes, and the other statements in parts that share no names.

    There are no parts if the statements share local arrays.
    """
    if any(isinstance(s, lir.LocalArray | lir.Accumulator | lir.CombineThreads) for s in body):
        return body, []
    first: list[lir.Stmt] = []
    known: set[str] = set()
    rest: list[lir.Stmt] = []
    top = {n for s in body for n in _results(s)}
    for s in body:
        if isinstance(s, lir.Let) and top.intersection(names_of(s)) <= known:
            first.append(s)
            known.add(s.name)
        else:
            rest.append(s)
    parts: list[tuple[set[str], list[lir.Stmt]]] = []
    for s in rest:
        names = {*_results(s), *(top.intersection(names_used((s,))) - known)}
        joined = [p for p in parts if not names.isdisjoint(p[0])]
        parts = [p for p in parts if names.isdisjoint(p[0])]
        found = names.union(*(p[0] for p in joined))
        order = {id(x): n for n, x in enumerate(rest)}
        inside = sorted([x for p in joined for x in p[1]] + [s], key=lambda x: order[id(x)])
        parts.append((found, inside))
    return tuple(first), [tuple(inside) for _, inside in parts]


def _results(s: lir.Stmt) -> Iterator[str]:
    """Yield the names that a statement outside of loops defines for those that follow."""
    if isinstance(s, lir.Let):
        yield s.name
    elif isinstance(s, lir.Reduce):
        yield from (r.name for r in s.reductions)


# ---- buildability


def _reduces_once(body: Body) -> bool:
    """Check whether there is a reduction outside of all loops of more than one iteration."""
    return any(
        isinstance(s, lir.Reduce)
        or (not (isinstance(s, For) and s.var.extent > 1) and any(_reduces_once(x) for x in bodies_of(s)))
        for s in body
    )


def _reads_along_columns(s: For) -> bool:
    """Check whether a loop around reductions may be one over columns, see `lanes.is_column_loop`."""
    return any(
        0 < abs(i.coefficient(s.var)) <= NEAR for x in s.body if isinstance(x, lir.Reduce) for i in indices_in(x.body)
    )


def binds_surely(kernel: lir.Kernel, schedule: Schedule) -> bool:
    """Check whether a nest surely has a kernel, without making it; False where only binding and printing show it."""
    statements = list(walk(kernel.body))
    if not all(isinstance(s, _BOUNDED) for s in statements):
        return False
    if kernel.nests > 1 and _reduces_once(kernel.body):
        return False  # every block would repeat the reduction
    # Not every scatter has a loop over its updates: there may be one window alone.
    if kernel.kind == "scatter" or any(isinstance(s, For) and s.kind is LoopKind.ATOMIC for s in statements):
        return False
    combined = sum(max(4, SCALAR_BYTES[r.type]) for s in statements if isinstance(s, lir.Reduce) for r in s.reductions)
    if schedule.block * combined > COMBINE_BYTES:
        return False
    width = schedule.columns + 1  # or more, of which there are a tile and a rest
    total = local_bytes(kernel.body) + kept_bytes_bound(kernel.body, schedule.cache)
    for s in statements:
        if isinstance(s, For) and _reads_along_columns(s):
            total += column_bytes_bound(s, width, schedule)
    return total <= SHARED_BYTES
