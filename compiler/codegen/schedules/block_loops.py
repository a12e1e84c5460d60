"""Binding of loops that a block of a GPU runs: its threads, the memory of its arrays, and loops side by side.

Loops that follow each other without a barrier do not depend on each other. If a block has enough threads, each of them
has warps of its own, so that they run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import bodies_of, map_bodies, map_indices, walk
from compiler.codegen.schedules.counters import with_known_counters
from compiler.codegen.schedules.cuda_blocks import SHARED_BYTES
from compiler.codegen.schedules.cuda_shapes import BLOCK_BYTES, MAX_THREADS, WARP
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir.types import PrimitiveType as T


def bind_block_loop(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return a nest of `block_loop` bound to blocks and their threads.

    Raises:
        UnsupportedError: its arrays exceed the shared memory of a block.
    """
    body = with_known_counters(without_dead_code(kernel.body))
    arrays = [s for s in walk(body) if isinstance(s, lir.LocalArray)]
    held = sum(s.size * SCALAR_BYTES[s.type] for s in arrays)
    if held > BLOCK_BYTES:
        raise UnsupportedError(f"the kernel needs {held} bytes of shared memory, more than {BLOCK_BYTES}")
    scope = Scope.SHARED if held <= SHARED_BYTES else Scope.DYNAMIC
    most = schedule.block // WARP * WARP or MAX_THREADS
    repeated = (x for x in walk(body) if isinstance(x, lir.While) or _is_sequential(x))
    longest = max((sum(map(_whole_warps, group)) for s in repeated for group in _groups(s)), default=WARP)
    binding = _Block(scope, max(WARP, min(most, longest)))
    return replace(kernel, body=tuple(binding.top(s) for s in body), threads=binding.threads)


def _is_of_threads(s: lir.Stmt) -> bool:
    return isinstance(s, For) and s.kind is LoopKind.INDEPENDENT


def _is_sequential(s: lir.Stmt) -> bool:
    return isinstance(s, For) and s.kind is LoopKind.SERIAL


def _whole_warps(s: For) -> int:
    return -(-s.var.extent // WARP) * WARP


def _groups(s: lir.Stmt) -> Iterator[list[For]]:
    """Yield the loops for threads that follow each other, of a block."""
    for body in bodies_of(s):
        for together, found in groupby(body, _is_of_threads):
            group = list(found)
            if together:
                yield [x for x in group if isinstance(x, For)]
            else:
                yield from (inner for x in group for inner in _groups(x))


class _Block:
    """The binding of the statements of one kernel for blocks of so many threads."""

    def __init__(self, scope: Scope, threads: int) -> None:
        self.scope, self.threads = scope, threads
        self.count = 0  # of loops side by side, which distinguishes their names

    def top(self, s: lir.Stmt) -> lir.Stmt:
        if not isinstance(s, For):
            return s
        return replace(s, kind=LoopKind.BLOCK, body=self._body(s.body))

    def _body(self, body: Body) -> Body:
        out: list[lir.Stmt] = []
        for together, found in groupby(body, _is_of_threads):
            group = tuple(found)
            if together:
                out += self._side_by_side([s for s in group if isinstance(s, For)])
            else:
                out += map(self._statement, group)
        return tuple(out)

    def _statement(self, s: lir.Stmt) -> lir.Stmt:
        if isinstance(s, lir.LocalArray):
            return replace(s, scope=self.scope)
        if isinstance(s, lir.Barrier):
            return lir.Barrier(warp=self.threads == WARP)
        return map_bodies(s, self._body)

    def _side_by_side(self, loops: list[For]) -> Body:
        """Return loops that do not depend on each other, each on warps of its own if there are enough."""
        total = sum(map(_whole_warps, loops))
        if len(loops) == 1 or total > self.threads:
            return tuple(replace(s, kind=LoopKind.THREAD) for s in loops)
        self.count += 1
        var, start = Var(f"w{self.count}_", total), 0
        body: list[lir.Stmt] = []
        for s in loops:
            here, mine = ix.of(var) - start, f"{s.var.name}_here"
            body.append(lir.Let(mine, T.PRED, lir.IndexTest(ix.of(var), start, start + s.var.extent - 1)))
            body.append(lir.If(mine, (lir.Let(s.var.name, T.S32, lir.IndexValue(here)), *_with_runtime(s.body, s.var))))
            start += _whole_warps(s)
        return (For(var, LoopKind.THREAD, tuple(body)),)


def _with_runtime(body: Body, var: Var) -> Body:
    """Return statements in which a number known at run time takes the place of a loop variable."""
    number: dict[ix.IndexSymbol, ix.IndexExpr] = {var: ix.of(ix.Runtime(var.name, 0, var.extent - 1))}
    return map_indices(body, lambda i: i.substitute(number))
