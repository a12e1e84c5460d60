"""Long chains of expensive operations in short rows: the stages of `stages` for blocks of rows.

The loop over one short row is a few vectors, so its stages would have few iterations to overlap.
"""

from __future__ import annotations

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.loop_transforms import flat_nest
from compiler.codegen.schedules.short_rows import Blocks
from compiler.codegen.schedules.sparse_loads import is_sparse
from compiler.codegen.schedules.stages import BLOCK, array_of, moved, stages_of, statements_of_stage

LEAST_ROWS = 4
"""Rows of the smallest block."""
ROW_WORK = 8
"""Work of the values of a whole row, which each stage would compute for each element."""
LANES = 8
"""Rows hold a multiple of so many elements: vectors that mask some of theirs store and load local arrays slowly."""


def stage_rows(body: Body, depth: int) -> Body:
    """Return a nest, before it is bound, whose loops over rows are divided into stages where blocks have enough rows.

    Each stage is a loop over a block of rows, because that over one row has too few iterations to overlap.
    """
    return tuple(_staged_rows(map_bodies(s, lambda inner: stage_rows(inner, depth)), depth) for s in body)


def _staged_rows(s: lir.Stmt, depth: int) -> lir.Stmt:
    if not isinstance(s, For) or s.combined or not s.body or not isinstance(s.body[-1], For):
        return s
    found = flat_nest(s)
    if found is None or len(found[0]) != 2:
        return s
    (row, element), body = found
    if work_of(s.body[:-1]) > ROW_WORK:
        return s
    most = min(row.extent, BLOCK // element.extent)
    size = max(n for n in range(1, most + 1) if row.extent % n == 0) if most else 0
    if size < LEAST_ROWS or element.extent % LANES or is_sparse(s.body[-1]):
        return s
    stages = stages_of(For(Var(element.name, size * element.extent), LoopKind.INDEPENDENT, body), depth)
    if stages is None:
        return s
    blocks = Blocks(row, size)
    loops: list[lir.Stmt] = []
    for n in range(stages.count):
        lane = Var(f"{element.name}g{n}", element.extent)
        inner = statements_of_stage(body, stages, n, ix.of(blocks.at) * element.extent + ix.of(lane))
        loop = For(lane, LoopKind.INDEPENDENT, moved(inner, element, ix.of(lane)))
        loops.append(blocks.over(str(n), (loop,)))
    arrays = [lir.LocalArray(array_of(x), x.type, size * element.extent) for x in stages.passed]
    return For(blocks.block, LoopKind.INDEPENDENT, (*arrays, *loops))
