"""Functions of windows over short rows: sums lie in a local array, and functions fill vectors across rows.

A window is read in loops over rows, which do not become one loop over all elements because a row of what it reads is
longer. What remains over after the whole vectors of a row is computed one by one, for which a function takes as long as
for a vector. The loop after that over the sums, which have no gaps, is one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_bodies, names_of, same_body
from compiler.codegen.schedules.loop_transforms import collapse
from compiler.codegen.schedules.padded_planes import plane_loops, with_body
from compiler.codegen.schedules.stages import array_of, levels, values_to_pass

LANES = 16
"""Elements of a vector."""
LONGEST = 128
"""Elements of a row from which on those that remain over after its vectors do not matter."""
LEAST_READ = 4
"""Elements that a window reads at least."""
MOST_SUMS, MAX_BYTES = 2, 8 << 10
"""Number of values that local arrays hold for one loop, at most, and the bytes of each array."""


def flatten_functions(body: Body) -> Body:
    """Return unbound statements in which functions of windows over short rows are loops of their own."""
    out: list[lir.Stmt] = []
    for s in body:
        plane = plane_loops(s)
        divided = None if plane is None else _divided(s, *plane)
        if divided is None:
            out.append(map_bodies(s, flatten_functions))
        else:
            out += divided
    return same_body(body, out)


def _divided(s: lir.Stmt, row: Var, column: Var, body: Body) -> list[lir.Stmt] | None:
    """Return a loop over windows, and one over functions of their sums; None if that is not possible or not faster."""
    lets = [x for x in body if isinstance(x, lir.Let)]
    level = levels(lets)
    if column.extent % LANES == 0 or column.extent >= LONGEST or not any(level.values()):
        return None
    if not all(isinstance(x, lir.Let | lir.Store) for x in body):
        return None
    first = [x for x in lets if not level[x.name]]
    later = [x for x in body if not isinstance(x, lir.Let) or level[x.name]]
    results = [r.value for r in s.reductions] if isinstance(s, lir.Reduce) else []
    names = values_to_pass(first, {*results, *(n for x in later for n in names_of(x))})
    passed = [x for x in first if x.name in names]
    size = row.extent * column.extent
    if not 0 < len(passed) <= MOST_SUMS or any(size * SCALAR_BYTES[x.type] > MAX_BYTES for x in passed):
        return None
    if sum(isinstance(x.value, lir.Load | lir.LocalLoad) for x in first) < LEAST_READ * len(passed):
        return None
    at = ix.linearize([ix.of(row), ix.of(column)], [row.extent, column.extent])
    sums = _needed(first, names)
    loads = tuple(
        replace(x, value=lir.LocalLoad(array_of(x), at)) if isinstance(x, lir.Let) and x.name in names else x
        for x in body
    )
    rest = collapse((with_body(s, _needed(loads, {*results, *_used_by_stores(body)}, keep_stores=True)),))
    if not _is_flat(rest[0]):
        return None
    stores = (lir.LocalStore(array_of(x), at, x.name) for x in passed)
    windows = For(row, LoopKind.INDEPENDENT, (For(column, LoopKind.INDEPENDENT, (*sums, *stores)),))
    return [*(lir.LocalArray(array_of(x), x.type, size) for x in passed), windows, *rest]


def _used_by_stores(body: Body) -> set[str]:
    return {x.value for x in body if isinstance(x, lir.Store)}


def _needed(body: Sequence[lir.Stmt], names: set[str], keep_stores: bool = False) -> Body:
    """Return the values of these names and what they need, and the stores if they are to be kept."""
    needed = set(names)
    kept: list[lir.Stmt] = []
    for x in reversed(body):
        if isinstance(x, lir.Let) and x.name in needed:
            kept.append(x)
            needed.update(names_of(x))
        elif keep_stores and isinstance(x, lir.Store):
            kept.append(x)
    return tuple(reversed(kept))


def _is_flat(s: lir.Stmt) -> bool:
    """Check whether a loop over a plane has become one over all of its elements."""
    return len(s.vars) == 1 if isinstance(s, lir.Reduce) else plane_loops(s) is None
