"""Long chains of expensive operations in short rows: the stages of `stages` for blocks of rows.

The loop over one short row is a few vectors, so its stages would have few iterations to overlap.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, names_of, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.loop_transforms import flat_nest, has_loop, perfect_nest
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
    out: list[lir.Stmt] = []
    for s in body:
        inner = map_bodies(s, lambda inner: stage_rows(inner, depth))
        out += _staged_sum(inner, depth) if isinstance(inner, lir.Reduce) else [_staged_rows(inner, depth)]
    return tuple(out)


def _staged_rows(s: lir.Stmt, depth: int) -> lir.Stmt:
    if not isinstance(s, For) or s.combined or s.base is not None:
        return s
    found = _rows_of(s)
    if found is None:
        return s
    row, element, before, body = found
    size = _rows_of_block(row, element, equal=s.kind is not LoopKind.SERIAL)
    if not size or work_of(before) > ROW_WORK or is_sparse(For(element, LoopKind.INDEPENDENT, body)):
        return s
    made = _stage_loops(body, row, element, size, depth)
    if made is None:
        return s
    blocks, arrays, loops = made
    if s.kind is LoopKind.SERIAL:
        stored = {x.buffer for x in body if isinstance(x, lir.Store)}
        stored |= {x.array for x in body if isinstance(x, lir.LocalStore)}
        if any(_array_read(x) in stored for loop in loops[:-1] for x in walk((loop,))):
            return s
        loops[-1] = replace(loops[-1], kind=s.kind)
    return For(blocks.block, s.kind, (*arrays, *loops))


def _rows_of(s: For) -> tuple[Var, Var, Body, Body] | None:
    """Return the variables of a loop over rows of single elements, what a row computes before, and an element's body.

    Rows that are added up follow each other.
    """
    inner = s.body[-1] if s.body else None
    if not isinstance(inner, For):
        return None
    if s.kind is LoopKind.SERIAL:
        alone = len(s.body) == 1 and inner.kind is LoopKind.INDEPENDENT and inner.base is None
        return (s.var, inner.var, (), inner.body) if alone and not has_loop(inner.body) else None
    found = flat_nest(s)
    if found is None or len(found[0]) != 2:
        return None
    (row, element), body = found
    return row, element, s.body[:-1], body


def _stage_loops(
    body: Body, row: Var, element: Var, size: int, depth: int
) -> tuple[Blocks, list[lir.LocalArray], list[For]] | None:
    """Return blocks of rows, the arrays in which stages pass on values, and the loops of the stages over a block.

    None: there is one stage only, or it cannot be divided.
    """
    stages = stages_of(For(Var(element.name, size * element.extent), LoopKind.INDEPENDENT, body), depth)
    if stages is None:
        return None
    blocks, loops = Blocks(row, size), list[For]()
    for n in range(stages.count):
        lane = Var(f"{element.name}g{n}", element.extent)
        inner = statements_of_stage(body, stages, n, ix.of(blocks.at) * element.extent + ix.of(lane))
        loop = For(lane, LoopKind.INDEPENDENT, moved(inner, element, ix.of(lane)))
        loops.append(blocks.over(str(n), (loop,)))
    return blocks, [lir.LocalArray(array_of(x), x.type, size * element.extent) for x in stages.passed], loops


def _array_read(x: lir.Stmt) -> str | None:
    """Return the array from which a value is loaded."""
    value = x.value if isinstance(x, lir.Let) else None
    if isinstance(value, lir.Load | lir.PairLoad):
        return value.buffer
    return value.array if isinstance(value, lir.LocalLoad) else None


def _rows_of_block(row: Var, element: Var, equal: bool) -> int:
    """Return the number of rows of a block; 0 if blocks would have too few, or parts of vectors.

    Args:
        row: the variable of the rows.
        element: that of the elements of a row.
        equal: whether all blocks must have as many rows.
    """
    most = min(row.extent, BLOCK // element.extent)
    if most < LEAST_ROWS or element.extent % LANES:
        return 0
    size = max(n for n in range(1, most + 1) if row.extent % n == 0)
    if size < LEAST_ROWS and not equal:
        size = -(-row.extent // -(-row.extent // most))
    return size if size >= LEAST_ROWS else 0


def _staged_sum(s: lir.Reduce, depth: int) -> list[lir.Stmt]:
    """Return a reduction of whole rows as one of blocks of rows, beside one of the rows that are left over."""
    if len(s.vars) < 2 or has_loop(s.body):
        return [s]
    *outer, row, element = s.vars
    size = _rows_of_block(row, element, equal=True)
    rest = 0
    if not size and row.extent >= LEAST_ROWS:
        size = _rows_of_block(row, element, equal=False)
        rest = row.extent % size if size else 0
    if not size or _work_of_row(s.body, element) > ROW_WORK or is_sparse(For(element, LoopKind.INDEPENDENT, s.body)):
        return [s]
    if not rest:
        found = _staged_reduction(s, size, depth)
        return [s if found is None else found]
    whole, last = Var(row.name, row.extent - rest), Var(f"{row.name}x", rest)
    parts = [tuple(replace(r, name=f"{r.name}_{part}") for r in s.reductions) for part in ("whole", "rest")]
    blocks = _staged_reduction(
        lir.Reduce((*outer, whole, element), parts[0], moved(s.body, row, ix.of(whole))), size, depth
    )
    if blocks is None:
        return [s]
    body = moved(s.body, row, ix.of(last) + whole.extent)
    both = [
        accumulators.combination(replace(r, value=y.name), x.name, r.name)
        for r, x, y in zip(s.reductions, *parts, strict=True)
    ]
    return [blocks, *_staged_sum(lir.Reduce((*outer, last, element), parts[1], body), depth), *both]


def _staged_reduction(s: lir.Reduce, size: int, depth: int) -> lir.Reduce | None:
    """Return a reduction over blocks of rows, in which the last stage reduces a block; None: it has one stage."""
    *outer, row, element = s.vars
    combining = accumulators.combine(s)
    made = _stage_loops((*s.body, *combining), row, element, size, depth)
    if made is None:
        return None
    blocks, arrays, loops = made
    *before, last = loops
    of_block = tuple(replace(r, name=f"{r.name}_block") for r in s.reductions)
    rows, lanes = perfect_nest(last)
    of_lanes = tuple(x for x in lanes.body if x not in combining)
    inner = lir.Reduce((rows.var, lanes.var), of_block, of_lanes)
    of_blocks = tuple(replace(r, value=f"{r.name}_block") for r in s.reductions)
    return lir.Reduce((*outer, blocks.block), of_blocks, (*arrays, *before, inner))


def _work_of_row(body: Body, element: Var) -> int:
    """Return the work of the values of a reduction that are the same in a whole row."""
    inside = {element.name}
    for x in body:
        if isinstance(x, lir.Let) and not inside.isdisjoint(names_of(x)):
            inside.add(x.name)
    return work_of(tuple(x for x in body if isinstance(x, lir.Let) and x.name not in inside))
