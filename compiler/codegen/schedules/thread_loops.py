"""Binding of loop kernels to the threads of a GPU: each thread runs all iterations of the loop for its positions.

A nest whose tiles have fewer positions than a vector has one tile per thread. Its state is then in registers, threads
neither wait for nor vote with each other, and a thread ends when its own positions do. What all positions share is
computed once per thread, so that several positions per thread share it.

Expensive work that only a select needs runs behind a branch on the predicate, if the schedule has `rare`: a warp skips
it when none of its threads needs it. Blocks of few threads make that likely, and keep all multiprocessors busy when
there are few positions.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.codegen.nest.traversal import map_bodies, map_indices, walk
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.counters import with_known_counters
from compiler.codegen.schedules.cuda_shapes import MAX_THREADS, WARP, floor_power
from compiler.codegen.schedules.loads_ahead import load_ahead
from compiler.codegen.schedules.loop_transforms import has_loop, without_dead_code
from compiler.codegen.schedules.rare_analysis import RareWork, find_rare, other_operand
from compiler.codegen.schedules.schedule import LANES, Schedule
from compiler.codegen.schedules.shared_ahead import find_shared, run_ahead
from compiler.errors import UnsupportedError
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

ENOUGH_BLOCKS, MIN_BLOCK, MAX_BLOCK = 512, 8, 128
"""Number of blocks that occupy a GPU of up to 132 multiprocessors with 4 schedulers each, and the bounds of their
sizes by default: adjacent threads should read whole sectors of 32 bytes."""
MAX_STATE = 512
"""Maximum number of elements in the local arrays of a thread: those beyond 255 registers are in memory."""


def suits_threads(kernel: lir.Kernel, schedule: Schedule) -> bool:
    """Check whether a nest is a loop kernel in tiles for single threads."""
    return kernel.kind == "loop-kernel" and schedule.lanes < LANES


def bind_thread_loop(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return a loop kernel in which each thread runs a tile.

    Raises:
        UnsupportedError: a thread would hold too many elements.
    """
    held = sum(s.size for s in walk(kernel.body) if isinstance(s, lir.LocalArray))
    if held > MAX_STATE:
        raise UnsupportedError(f"a thread would hold {held} elements, more than {MAX_STATE}")
    shared = frozenset(kernel.arguments[read].name for read, _ in (*kernel.in_place, *kernel.must_alias))
    written = frozenset(a.name for a in kernel.arguments if a.is_output)
    binding = _Threads(schedule, shared, shared | written)
    body = with_known_counters(_with_tiles(kernel.body))
    tiles = next(s.var.extent for s in body if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT)
    block = schedule.block or _block_of(tiles)
    ahead = binding.ahead(body, block) if tiles > 1 else None  # one position shares no state
    if ahead is not None:
        body, threads = ahead
        return replace(kernel, body=without_dead_code(body), threads=threads)
    body = tuple(x for s in body for x in binding.top(s))
    return replace(kernel, body=body, threads=block)


def _block_of(threads: int) -> int:
    """Return the threads of a block by which so many threads run on all multiprocessors."""
    per_block = threads // ENOUGH_BLOCKS
    return min(MAX_BLOCK, max(MIN_BLOCK, floor_power(max(1, per_block))))


def _with_tiles(body: Body) -> Body:
    """Return the statements with a loop over tiles, also if there is one tile alone."""
    first = next((n for n, s in enumerate(body) if not isinstance(s, lir.Let)), len(body))
    rest = body[first:]
    if len(rest) == 1 and isinstance(rest[0], For) and rest[0].kind is LoopKind.INDEPENDENT:
        return body
    return (*body[:first], For(Var("tile0", 1), LoopKind.INDEPENDENT, rest))


class _Threads:
    """The binding of the statements of one kernel.

    Attributes:
        shared: inputs whose buffers outputs may overwrite.
        unsafe: these and the outputs.
        count: number of branches so far, which distinguishes their names.
    """

    def __init__(self, schedule: Schedule, shared: frozenset[str], unsafe: frozenset[str]) -> None:
        self.schedule = schedule
        self.unsafe = unsafe
        self.shared = shared
        self.count = 0

    def top(self, s: lir.Stmt) -> Body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT:
            return (replace(s, kind=LoopKind.GRID, body=self._body(s.body)),)
        return self._statement(s)

    def ahead(self, body: Body, block: int) -> tuple[Body, int] | None:
        """Return the statements of a kernel whose shared state a warp makes ahead, and the threads of a block, or None.

        Args:
            body: statements with one loop over tiles.
            block: number of positions of a block.
        """
        steps = self.schedule.gpu.ahead
        if not steps or -(-block // WARP) * WARP + WARP > MAX_THREADS:
            return None
        *first, tile = body
        if not isinstance(tile, For) or not all(isinstance(s, lir.Let) for s in first):
            return None
        known = [s.name for s in first if isinstance(s, lir.Let)]
        flat = replace(tile, body=_of_one_lane(tile.body))
        state = find_shared(flat, known, self.unsafe, steps)
        if state is None:
            return None
        loop, threads = run_ahead(state, steps, block, self._with_branches(state.position), self.unsafe)
        return (*first, *loop), threads

    def _body(self, body: Body) -> Body:
        inside = tuple(x for s in body for x in _without_lane(s))
        return tuple(x for s in self._with_branches(inside) for x in self._statement(s))

    def _statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, lir.LocalArray):
            return (replace(s, scope=Scope.REGISTER if s.size == 1 else Scope.PRIVATE),)
        if isinstance(s, lir.Reduce):
            return self._reduce(s)
        if isinstance(s, For):
            short = s.kind is LoopKind.INDEPENDENT and s.var.extent < LANES
            loop = replace(s, kind=LoopKind.UNROLLED if short else LoopKind.SERIAL, body=self._body(s.body))
            return load_ahead(loop, self.unsafe) if self.schedule.gpu.ahead and not short else (loop,)
        if isinstance(s, lir.While):  # its body may use what the test defines, so nothing of it goes into a branch
            test = tuple(x for t in s.test for x in self._statement(t))
            return (replace(s, test=test, body=self._body(s.body)),)
        return (map_bodies(s, self._body),)

    def _reduce(self, s: lir.Reduce) -> Body:
        body: Body = (*self._body(s.body), *accumulators.combine(s))
        for v in reversed(s.vars):
            body = (For(v, LoopKind.UNROLLED if v.extent < LANES else LoopKind.SERIAL, body),)
        return (*accumulators.start(s), *body, *accumulators.results(s))

    # ---- branches around rare work

    def _with_branches(self, body: Body) -> Body:
        """Return the statements of one iteration or position with rare work behind branches."""
        if not self.schedule.rare or has_loop(body) or any(isinstance(s, lir.While) for s in body):
            return body
        arrays = tuple(s for s in body if isinstance(s, lir.LocalArray))
        rest = tuple(s for s in body if not isinstance(s, lir.LocalArray))
        found = find_rare(For(Var("_", 1), LoopKind.SERIAL, rest), self.shared)
        if found is None or not _is_separable(found):
            return body
        self.count += 1
        first, branch, after = _branched(found, f"b{self.count}")
        return (*arrays, *self._with_branches(first), *branch, *after)


def _without_lane(s: lir.Stmt) -> Body:
    """Return the body of a loop over one lane; any other statement as it is."""
    if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.var.extent == 1:
        return map_indices(s.body, lambda i: i.substitute({s.var: ix.const(0)}))
    return (s,)


def _of_one_lane(body: Body) -> Body:
    """Return statements with all loops over one lane removed."""
    return tuple(map_bodies(x, _of_one_lane) for s in body for x in _without_lane(s))


def _is_separable(rare: RareWork) -> bool:
    """Check whether what the branch computes needs no result of a select that the branch itself assigns."""
    outputs = set(rare.outputs)
    return all(outputs.isdisjoint(rare.graph.uses[n]) for n in rare.moved)


def _branched(rare: RareWork, tag: str) -> tuple[Body, Body, Body]:
    """Return the statements before a branch, the branch with what it assigns, and the statements after it."""
    graph, statements = rare.graph, rare.graph.statements
    lets = {s.name: s for s in statements if isinstance(s, lir.Let)}
    selects = graph.selects(rare.predicate, rare.holds)
    last = rare.moved | rare.stores | rare.late
    first = tuple(
        s for n, s in enumerate(statements)
        if n not in last and not (isinstance(s, lir.Let) and s.name in rare.outputs)
    )  # fmt: skip
    before: list[lir.Stmt] = []
    then = [statements[n] for n in sorted(rare.moved)]
    results: list[lir.Stmt] = []
    for x in rare.outputs:
        now = f"{x}_{tag}"
        before.append(lir.Accumulator(now, lets[x].type, other_operand(x, selects, rare.outputs)))
        then.append(lir.Assign(now, selects[x][0]))
        results.append(lir.Let(x, lets[x].type, lir.Current(now)))
    condition = rare.predicate
    if not rare.holds:
        condition = f"{rare.predicate}_{tag}not"
        negation = ScalarOp(Opcode.NOT, T.PRED, T.PRED)
        before.append(lir.Let(condition, T.PRED, lir.Apply(negation, (rare.predicate,))))
    after = tuple(statements[n] for n in sorted(rare.stores | rare.late))
    return first, (*before, lir.If(condition, tuple(then)), *results), after
