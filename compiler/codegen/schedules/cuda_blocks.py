"""Nests of any form on a GPU: an iteration of the outer loops per block, and inner loops strided over its threads.

Flat nests of independent loops without reductions run one element per thread. Reductions are combined across the
threads of a block. A local array is kept in registers if each element is accessed by one thread only, and in shared
memory otherwise; a loop in which threads access each other's elements is followed by a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.lanes import tile_columns
from compiler.codegen.schedules.local_memory import check_local_bytes
from compiler.codegen.schedules.row_cache import cache_rows
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError

EVERY_THREAD, ANY_THREAD = 0, -1
"""How threads access a local array; see `_owners`."""
SHARED_BYTES = 48 * 1024
"""Static shared memory that a block may use on any GPU."""
BLOCK = 256
"""Threads of a block by default."""


def bind_whole(body: Body, schedule: Schedule) -> tuple[Body, int]:
    """Return statements bound to blocks and threads, and the number of threads of a block.

    Raises:
        UnsupportedError: they need too much local or shared memory.
    """
    body = tile_columns(cache_rows(body, schedule.cache), schedule)
    whole = any(isinstance(s, lir.LocalArray) for s in body)
    body = tuple(x for s in body for x in _top(s, whole))
    check_local_bytes(body)
    threads = _threads_for(body, schedule.block or BLOCK)
    return _with_scopes(body, threads), threads


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
    inside = [x for x in walk(s.body) if isinstance(x, For)]
    independent = any(f.kind is LoopKind.INDEPENDENT for f in inside)
    others = any(
        isinstance(x, lir.Reduce | lir.LocalArray | lir.While | lir.Sort | lir.SortByKey) for x in walk(s.body)
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
    return (map_bodies(s, _body),)


def _reduce(s: lir.Reduce) -> Body:
    combined = accumulators.combined_of(s)
    loop = For(s.vars[-1], LoopKind.THREAD, (*s.body, *accumulators.combine(s)), combined)
    for v in reversed(s.vars[:-1]):
        loop = For(v, LoopKind.SERIAL, (loop,))
    return (*accumulators.start(s), loop, lir.CombineThreads(combined), *accumulators.results(s))


def _threads_for(body: Body, requested: int) -> int:
    """Return the threads per block: whole warps, at most `requested` threads and as many as the longest loop needs."""
    longest = 1
    for s in walk(body):
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
    arrays = [x for x in walk(body) if isinstance(x, lir.LocalArray)]
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
            s = map_bodies(s, lambda inner: _placed(inner, scopes, exchanged))
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
    found: dict[str, set[int]] = {x.name: set() for x in walk(body) if isinstance(x, lir.LocalArray)}
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
