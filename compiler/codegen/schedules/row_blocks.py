"""Rows in blocks: where the loops over a row wait for each other, each runs for several rows before the next one does.

In a softmax or a normalization, a loop over the elements of a row waits for the result of the loop before: the lanes of
a sum are combined, and the result is broadcast again. Few rows fit into the window in which a processor looks for
instructions that need not wait. Loops over a block of rows, one for each step, have independent iterations. Local
arrays hold the results of the rows in between, and the elements of the block stay in the first-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Reduce
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_bodies, names_used, walk
from compiler.codegen.nest.work import EXPENSIVE_STATEMENTS, work_of
from compiler.codegen.schedules.loop_transforms import flat_nest, has_loop
from compiler.codegen.schedules.short_rows import Blocks
from compiler.codegen.schedules.stages import is_long_value
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

LEAST_ROWS, MOST_ROWS = 4, 16
"""Rows of the smallest and of the largest block."""
BLOCK_BYTES = 16 * 1024
"""Maximum size of the elements of a block, which stay in the first-level cache."""
CHEAP_ROW, NEAR_ROW = 64, 512
NEAR_BYTES = 4 << 20
"""Elements from which on reductions of cheap values stay together, because memory is then read while a row is computed;
the same where the arrays that a loop reads and stores come from caches, which is up to so many bytes of them."""
LEAST_TOTAL = 16
"""Least number of rows for which blocks are worth their loops."""
LEAST_CHAIN = 2
"""Least number of reductions that follow from each other: rows with one overlap well enough."""
DIVIDED_CHAIN = 1
"""The same for rows that are divided by what their reductions give, such as their norm: the division by one value is
prepared by a chain of some fifty cycles, often after a root, which is more than the processor overlaps. Roots alone are
that for rows of up to ROOT_ROW elements."""
ROOT_ROW = 128
TASKS, TASK_WORK = 16, 50_000
"""Least number of blocks of a long loop, which threads share, and statements of a block of a shorter one."""


def block_rows(body: Body, sizes: Mapping[str, int]) -> Body:
    """Return a nest, before it is bound, in which loops over rows are divided into blocks where steps wait.

    Args:
        body: the statements.
        sizes: the bytes of the arguments, by name.
    """
    return tuple(_blocked(map_bodies(s, lambda inner: block_rows(inner, sizes)), sizes) for s in body)


def _blocked(s: lir.Stmt, sizes: Mapping[str, int]) -> lir.Stmt:
    if not isinstance(s, For) or s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.combined:
        return s
    if not any(isinstance(x, Reduce) for x in s.body) or not all(map(_is_movable, s.body)):
        return s
    least = _least_chain(s, sizes)
    rows = _rows_of_block(s) if least else 0
    stages = _stages_of(s.body) if rows >= LEAST_ROWS else []
    if not stages or sum(any(isinstance(x, Reduce) for x in stage) for stage in stages) < least:
        return s
    return _RowBlocks(s, Blocks(s.var, rows), stages).loop() or s


def _is_movable(s: lir.Stmt) -> bool:
    if isinstance(s, For):
        return s.base is None and flat_nest(s) is not None
    if isinstance(s, Reduce):
        return not has_loop(s.body)
    return isinstance(s, lir.Let | lir.Store | lir.LocalArray)


def _least_chain(s: For, sizes: Mapping[str, int]) -> int:
    """Return the least number of reductions that follow from each other for which blocks are worthwhile, or 0.

    There must be enough rows, whose reductions are of few elements or of functions that take long, or which are divided
    or scaled by what their reductions give.
    """
    reductions = [x for x in s.body if isinstance(x, Reduce)]
    if s.var.extent < LEAST_TOTAL:
        return 0
    if _divides_by_result(s):
        return DIVIDED_CHAIN
    accessed = {x.value.buffer for x in walk(s.body) if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)}
    accessed |= {x.buffer for x in walk(s.body) if isinstance(x, lir.Store)}
    is_near = sum(sizes.get(name, 0) for name in accessed) <= NEAR_BYTES
    longest = max(math.prod(v.extent for v in x.vars) for x in reductions)
    if is_near and longest <= ROOT_ROW and any(_is_root(x) for x in s.body):
        return DIVIDED_CHAIN
    if longest < CHEAP_ROW or (is_near and longest <= NEAR_ROW):
        return LEAST_CHAIN
    lets = [y for x in reductions for y in walk(x.body) if isinstance(y, lir.Let)]
    return LEAST_CHAIN if any(map(is_long_value, lets)) else 0


def _is_root(s: lir.Stmt) -> bool:
    value = s.value if isinstance(s, lir.Let) else None
    return isinstance(value, lir.Apply) and value.op.opcode in (Opcode.SQRT, Opcode.RSQRT)


def _quotients(body: Body) -> list[lir.Apply]:
    values = [x.value for x in walk(body) if isinstance(x, lir.Let)]
    return [x for x in values if isinstance(x, lir.Apply) and x.op.opcode is Opcode.DIVIDE]


def _divides_by_result(s: For) -> bool:
    """Check whether the elements of a row are divided by a value that follows from the reductions before."""
    results: set[str] = set()
    for x in s.body:
        if isinstance(x, lir.Let):
            results |= {x.name} if not results.isdisjoint(names_used((x,))) else set()
        elif isinstance(x, For | Reduce):
            if any(y.args[1] in results for y in _quotients(x.body)):
                return True
            results |= {r.name for r in x.reductions} if isinstance(x, Reduce) else set()
    return False


def _rows_of_block(s: For) -> int:
    """Return the number of rows of a block, if possible one that divides the number of rows."""
    tasks = max(1, min(TASKS, work_of((s,)) // TASK_WORK))
    most = min(MOST_ROWS, BLOCK_BYTES // max(1, _row_bytes(s)), s.var.extent // tasks)
    return max((n for n in range(most // 2 + 1, most + 1) if s.var.extent % n == 0), default=most)


def _row_bytes(s: For) -> int:
    """Return the bytes of the elements of a row that the loops over it read and write."""
    sizes: dict[str, int] = {}
    for sweep in s.body:
        if isinstance(sweep, lir.LocalArray):
            sizes[sweep.name] = sweep.size * SCALAR_BYTES[sweep.type]
        if not isinstance(sweep, For | Reduce):
            continue
        vars_, body = (sweep.vars, sweep.body) if isinstance(sweep, Reduce) else flat_nest(sweep) or ((), ())
        elements = math.prod(v.extent for v in vars_)
        types = {x.name: x.type for x in walk(body) if isinstance(x, lir.Let)}
        for x in walk(body):
            value = x.value if isinstance(x, lir.Let) else None
            if isinstance(value, lir.Load) and value.offset.coefficient(s.var):
                sizes[value.buffer] = elements * SCALAR_BYTES[types[x.name]]  # type: ignore[union-attr]
            elif isinstance(x, lir.Store):
                sizes[x.buffer] = elements * SCALAR_BYTES[types.get(x.value, T.F32)]
    return sum(sizes.values())


def _stages_of(body: Body) -> list[Body]:
    """Return the statements in groups, each of which uses no result of a reduction in the same group."""
    stages: list[list[lir.Stmt]] = [[]]
    pending: set[str] = set()
    for s in body:
        if isinstance(s, lir.LocalArray):
            continue
        if not pending.isdisjoint(names_used((s,))):
            stages.append([])
            pending = set()
        stages[-1].append(s)
        if isinstance(s, Reduce):
            pending |= {r.name for r in s.reductions}
    return [part for stage in stages for part in _with_values_apart(tuple(stage))]


def _with_values_apart(stage: Body) -> list[Body]:
    """Return a stage with the values before its first loop in a stage of their own if they take long."""
    loops = [n for n, x in enumerate(stage) if isinstance(x, For | Reduce)]
    head = stage[: loops[0]] if loops else ()
    return [head, stage[loops[0] :]] if work_of(head) >= EXPENSIVE_STATEMENTS else [stage]


@dataclass
class _RowBlocks:
    """The stages of a loop over rows.

    Attributes:
        rows: the loop over all rows.
        blocks: its blocks.
        stages: the statements of one row in groups that follow each other.
        arrays: type of the value that is kept for each row of a block, by its name.
    """

    rows: For
    blocks: Blocks
    stages: Sequence[Body]
    arrays: dict[str, T] = field(default_factory=dict)

    def loop(self) -> For | None:
        """Return the loop over the blocks; None if a value cannot be kept."""
        at = ix.of(self.blocks.at)
        defined = [_values_in(stage) for stage in self.stages]
        loops: list[lir.Stmt] = []
        before = [self._before(n, defined) for n in range(len(self.stages))]
        if T.PRED in self.arrays.values():
            return None
        of_row = {x.name: x for x in self.rows.body if isinstance(x, lir.LocalArray)}
        for n, stage in enumerate(self.stages):
            stores = [lir.LocalStore(_array(x), at, x) for x in defined[n] if x in self.arrays]
            body = _with_arrays_of_rows((*before[n], *stage, *stores), of_row, at)
            loops.append(self.blocks.over(f"s{n}", body))
        size = self.blocks.size
        arrays = [replace(x, size=x.size * size) for x in of_row.values()]
        arrays += [lir.LocalArray(_array(name), t, size) for name, t in self.arrays.items()]
        return For(self.blocks.block, LoopKind.INDEPENDENT, (*arrays, *loops))

    def _before(self, n: int, defined: Sequence[dict[str, lir.Let | T]]) -> list[lir.Let]:
        """Return the definitions of the values that a stage takes from those before it."""
        has_stores = any(isinstance(x, lir.Store) for stage in self.stages[:n] for x in walk(stage))
        known = {name: x for values in defined[:n] for name, x in values.items()}
        found: dict[str, lir.Let] = {}

        def need(name: str) -> None:
            let = known.get(name)
            if let is None or name in found:
                return
            if isinstance(let, lir.Let) and _is_cheap(let, has_stores):
                for operand in names_used((let,)):
                    need(operand)
                found[name] = let
            else:
                t = let.type if isinstance(let, lir.Let) else let
                self.arrays[name] = t
                found[name] = lir.Let(name, t, lir.LocalLoad(_array(name), ix.of(self.blocks.at)))

        for name in names_used(self.stages[n]):
            need(name)
        return list(found.values())


def _values_in(stage: Body) -> dict[str, lir.Let | T]:
    """Return the definitions of a stage by name, and the types of the results of its reductions."""
    found: dict[str, lir.Let | T] = {x.name: x for x in stage if isinstance(x, lir.Let)}
    return found | {r.name: r.type for x in stage if isinstance(x, Reduce) for r in x.reductions}


def _is_cheap(let: lir.Let, has_stores: bool) -> bool:
    """Check whether a value may be read again instead of being kept, also if memory was written since."""
    if isinstance(let.value, lir.Load):
        return not has_stores
    return isinstance(let.value, lir.Constant | lir.IndexValue | lir.IndexTest)


def _array(name: str) -> str:
    return f"{name}_of_rows"


def _with_arrays_of_rows(body: Body, of_row: dict[str, lir.LocalArray], at: ix.IndexExpr) -> Body:
    """Return statements in which each row of a block has elements of its own in some arrays."""

    def moved(s: lir.Stmt) -> lir.Stmt:
        if isinstance(s, lir.LocalStore) and s.array in of_row:
            return replace(s, offset=s.offset + at * of_row[s.array].size)
        if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad) and s.value.array in of_row:
            return replace(s, value=replace(s.value, offset=s.value.offset + at * of_row[s.value.array].size))
        return map_bodies(s, lambda inner: tuple(map(moved, inner)))

    return tuple(map(moved, body))
