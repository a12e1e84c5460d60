"""Binding of loop nests to a GPU: blocks, threads, shared memory and barriers.

A nest has one of two forms. Flat: a nest of independent loops without reductions runs one element per thread. Block:
any other nest runs one iteration of its outer loops per block; its inner loops are strided over the threads of the
block, and reductions are combined across them. A local array is kept in registers if each element is accessed by one
thread only, and in shared memory otherwise; a loop in which threads access each other's elements is followed by a
barrier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.codegen.lowering.reductions import UNROLL_LIMIT
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.bind_c import check_local_bytes
from compiler.codegen.schedules.lanes import column_bytes_bound, tile_columns
from compiler.codegen.schedules.local_memory import BOUNDED, declared_bytes, reads_along_columns
from compiler.codegen.schedules.loop_transforms import Tiling, collapse, tile_transposes, without_dead_code
from compiler.codegen.schedules.row_cache import cache_rows, kept_bytes_bound
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.short_loops import unroll_short_reductions
from compiler.codegen.schedules.thread_loops import bind_thread_loop, suits_threads
from compiler.errors import UnsupportedError

EVERY_THREAD, ANY_THREAD = 0, -1
"""How threads access a local array; see `_owners`."""
SHARED_BYTES = 48 * 1024
"""Static shared memory that a block may use on any GPU."""


def bind_cuda(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return a nest bound to the blocks and threads of a GPU.

    Raises:
        UnsupportedError: the nest needs too much local or shared memory.
    """
    if suits_threads(kernel, schedule):
        return bind_thread_loop(replace(kernel, body=without_dead_code(kernel.body)), schedule)
    # A block would combine its threads and wait for that, which takes longer than few elements in every thread.
    body = unroll_short_reductions(collapse(without_dead_code(kernel.body)), UNROLL_LIMIT)
    if any(isinstance(s, lir.Scan) for s in body):
        raise UnsupportedError("a scan has no kernel in this language")
    if kernel.kind == "scatter" and not kernel.must_alias:
        raise UnsupportedError(
            "a scatter into an array that the kernel computes itself has no kernel in this language: all elements come "
            "before the updates, and the blocks of a GPU do not wait for each other"
        )
    if kernel.nests > 1 and any(isinstance(s, lir.Reduce) for s in body):
        raise UnsupportedError(
            "outputs of different shapes, of which one is a reduction of whole arrays, have no common kernel in this "
            "language: every block of a GPU would repeat the reduction"
        )
    body, kind = cache_rows(body, schedule.cache), kernel.kind
    body = tile_columns(body, schedule)
    if schedule.tile and kind == "loop":
        tiled = tile_transposes(body, Tiling(schedule.tile, schedule.across, bool(schedule.walk)))
        kind = "transpose" if tiled != body else kind
        body = tiled
    whole = any(isinstance(s, lir.LocalArray) for s in body)
    body = tuple(x for s in body for x in _top(s, whole))
    check_local_bytes(body)
    threads = _threads_for(body, schedule.block)
    body = _with_scopes(body, threads)
    return replace(kernel, body=body, kind=kind, threads=threads)


def binds_surely(kernel: lir.Kernel, schedule: Schedule) -> bool:
    """Check whether a nest surely has a kernel, without making it; False where only binding and printing show it."""
    statements = list(lir.walk(kernel.body))
    if kernel.nests > 1 or schedule.tile or schedule.cache > 1 or not all(isinstance(s, BOUNDED) for s in statements):
        return False
    # Not every scatter has a loop over its updates: there may be one window alone.
    if kernel.kind == "scatter" or any(isinstance(s, For) and s.kind is LoopKind.ATOMIC for s in statements):
        return False
    width = schedule.columns + 1  # or more, of which there are a tile and a rest
    total = declared_bytes(statements) + kept_bytes_bound(kernel.body, schedule.cache)
    for s in statements:
        if isinstance(s, For) and any(isinstance(x, lir.Reduce) for x in s.body) and reads_along_columns(s):
            total += column_bytes_bound(s, width, schedule)
    return total <= SHARED_BYTES


# ---- loop kinds


def _top(s: lir.Stmt, whole: bool) -> Body:
    """Bind a statement outside of all loops; with `whole`, all of them share local arrays and run in every block."""
    if isinstance(s, For) and not whole and _is_flat(s):
        return (_flat(s),)
    if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and not _is_leaf(s):
        return (_blocks(s),)
    return _inner(s)


def _is_leaf(s: For) -> bool:
    """Check whether the iterations of a loop are single elements; sequential loops may be inside."""
    inside = [x for x in lir.walk(s.body) if isinstance(x, For)]
    independent = any(f.kind is LoopKind.INDEPENDENT for f in inside)
    others = any(
        isinstance(x, lir.Reduce | lir.LocalArray | lir.While | lir.Sort | lir.SortByKey) for x in lir.walk(s.body)
    )
    return not independent and not others


def _is_flat(s: For) -> bool:
    """Check whether a nest is one path of independent loops to single elements."""
    while True:
        if s.kind is LoopKind.ATOMIC:
            return True
        if s.kind is not LoopKind.INDEPENDENT:
            return False
        if _is_leaf(s):
            return True
        loops = [x for x in s.body if isinstance(x, For)]
        if len(loops) != 1 or any(isinstance(x, lir.Store | lir.Reduce | lir.LocalArray) for x in s.body):
            return False
        s = loops[0]


def _flat(s: For) -> For:
    if s.kind is LoopKind.ATOMIC or _is_leaf(s):
        return replace(s, kind=LoopKind.GRID)
    return replace(s, kind=LoopKind.GRID, body=tuple(_flat(x) if isinstance(x, For) else x for x in s.body))


def _blocks(s: For) -> For:
    (only, *more) = s.body
    if not more and isinstance(only, For) and only.kind is LoopKind.INDEPENDENT and not _is_leaf(only):
        return replace(s, kind=LoopKind.BLOCK, body=(_blocks(only),))
    return replace(s, kind=LoopKind.BLOCK, body=_body(s.body))


def _body(body: Body) -> Body:
    return tuple(x for s in body for x in _inner(s))


def _inner(s: lir.Stmt) -> Body:
    """Bind a statement that all threads of a block run."""
    if isinstance(s, lir.Reduce):
        return _reduce(s)
    if isinstance(s, For) and s.kind in (LoopKind.INDEPENDENT, LoopKind.ATOMIC):
        if _is_leaf(s):
            return (replace(s, kind=LoopKind.THREAD if s.kind is LoopKind.INDEPENDENT else LoopKind.SERIAL),)
        return (replace(s, kind=LoopKind.SERIAL, body=_body(s.body)),)
    return (lir.map_bodies(s, _body),)


def _reduce(s: lir.Reduce) -> Body:
    combined = accumulators.combined_of(s)
    loop = For(s.vars[-1], LoopKind.THREAD, (*s.body, *accumulators.combine(s)), combined)
    for v in reversed(s.vars[:-1]):
        loop = For(v, LoopKind.SERIAL, (loop,))
    return (*accumulators.start(s), loop, lir.CombineThreads(combined), *accumulators.results(s))


def _threads_for(body: Body, requested: int) -> int:
    """Return the threads per block: whole warps, at most `requested` threads and as many as the longest loop needs."""
    longest = 1
    for s in lir.walk(body):
        innermost = (
            isinstance(s, For)
            and s.kind is LoopKind.GRID
            and not any(isinstance(x, For) and x.kind is LoopKind.GRID for x in s.body)
        )
        if isinstance(s, For) and (s.kind is LoopKind.THREAD or innermost):
            longest = max(longest, s.var.extent)
    return max(32, min(requested // 32 * 32, -(-longest // 32) * 32, 1024))


# ---- local arrays


def _with_scopes(body: Body, threads: int) -> Body:
    """Return the statements with a scope for each local array, and with barriers."""
    arrays = [x for x in lir.walk(body) if isinstance(x, lir.LocalArray)]
    owners = _owners(body)
    scopes: dict[str, Scope] = {}
    for a in arrays:
        if owners[a.name] == {a.size} and a.size <= threads:
            scopes[a.name] = Scope.REGISTER
        elif owners[a.name] == {EVERY_THREAD}:
            scopes[a.name] = Scope.PRIVATE
        else:
            scopes[a.name] = Scope.SHARED
    held = sum(a.size * SCALAR_BYTES[a.type] for a in arrays if scopes[a.name] is Scope.SHARED)
    if held > SHARED_BYTES:
        raise UnsupportedError(f"the kernel needs {held} bytes of shared memory, more than {SHARED_BYTES}")
    exchanged = {name for name, found in owners.items() if len(found) > 1 or ANY_THREAD in found}
    return _placed(body, scopes, exchanged)


def _placed(body: Body, scopes: dict[str, Scope], exchanged: set[str]) -> Body:
    out: list[lir.Stmt] = []
    for n, s in enumerate(body):
        if isinstance(s, lir.LocalArray):
            s = replace(s, scope=scopes[s.name])
        elif not isinstance(s, For) or s.kind not in (LoopKind.THREAD, LoopKind.GRID):
            s = lir.map_bodies(s, lambda inner: _placed(inner, scopes, exchanged))
        out.append(s)
        combines = n + 1 < len(body) and isinstance(body[n + 1], lir.CombineThreads)
        if isinstance(s, For) and not combines and any(name in exchanged for name, _, _ in _accesses((s,), None)):
            out.append(lir.Barrier())
    return tuple(out)


def _owners(body: Body) -> dict[str, set[int]]:
    """Return which threads access each local array, with one value for each way it is accessed.

    n > 0: lane e mod n of a loop of n lanes accesses element e. EVERY_THREAD: an access outside of loops over lanes, by
    every thread. ANY_THREAD: any other access.
    """
    found: dict[str, set[int]] = {x.name: set() for x in lir.walk(body) if isinstance(x, lir.LocalArray)}
    for name, offset, lane in _accesses(body, None):
        found[name].add(EVERY_THREAD if lane is None else _owner(offset, lane))
    return found


def _owner(offset: ix.IndexExpr, lane: ix.Var) -> int:
    others = [c for a, c in offset.terms if a != lane]
    regular = all(c % lane.extent == 0 for c in (*others, offset.const))
    return lane.extent if regular and offset.coefficient(lane) == 1 else ANY_THREAD


def _accesses(body: Body, lane: ix.Var | None) -> Iterator[tuple[str, ix.IndexExpr, ix.Var | None]]:
    """Yield (array, offset, variable of the enclosing loop over threads or None) for every access to a local array."""
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad):
            yield s.value.array, s.value.offset, lane
        elif isinstance(s, lir.LocalStore):
            yield s.array, s.offset, lane
        elif isinstance(s, lir.If):
            yield from _accesses((*s.then, *s.otherwise), lane)
        elif isinstance(s, lir.While):
            yield from _accesses((*s.test, *s.body), lane)
        elif isinstance(s, For):
            yield from _accesses(s.body, s.var if lane is None and s.kind is LoopKind.THREAD else lane)
