"""Rewrites of unbound loop nests that every device uses: merging and tiling of loops, removal of dead arrays."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import (
    has_compound,
    indices_in,
    map_bodies,
    map_compound,
    map_indices,
    names_of,
    same_body,
    walk,
)
from compiler.codegen.nest.work import work_of
from compiler.ir.types import PrimitiveType as T

SHORT_LANES = 16
"""Number of iterations from which on a loop is worth vectors of its own."""
MAX_STAGED = 8
"""Maximum number of arrays whose tiles one nest transposes."""
BLOCK = 16
"""Edge of the blocks that are transposed in registers."""
LINES, WAY_BYTES, LINE_BYTES = 8, 4096, 64
"""Lines that a first-level cache holds of those that are a multiple of so many bytes apart, and the bytes of a line."""
MOST_LINES = LINES * WAY_BYTES // LINE_BYTES
"""Lines of a first-level cache."""
LANE_BYTES = 4
"""Bytes of the elements of which BLOCK fill a vector."""
LARGE_BYTES = 16 << 20
"""Size of the arrays of a nest from which on its tiles are larger."""
MOST_ROW_WORK = 16
"""Maximum number of statements of a row, outside of its loop, that each tile may run again."""
MAX_LARGE = 3
"""Maximum number of accesses for which they are, since all tiles should fit into the second-level cache."""
LARGE_HEIGHT, LARGE_WIDTH = 4, 2
"""By how much they are: what is read along the outer loop, from another page in each row, is then longer than the
distance at which memory is prefetched."""

# ---- dead code


def without_dead_code(body: Body) -> Body:
    """Return the statements without values that nothing uses and without local arrays that are never read.

    Arrays that the statements do not declare are read elsewhere. It takes time linear in the number of statements.
    """
    definitions: dict[str, list[lir.Stmt]] = defaultdict(list)  # of values and, by stores, of local arrays
    arrays = {s.name for s in walk(body) if isinstance(s, lir.LocalArray)}
    work: list[str] = []
    for s in walk(body):
        if isinstance(s, lir.Let):
            definitions[s.name].append(s)
        elif isinstance(s, lir.LocalStore):
            definitions[s.array].append(s)
            if s.array not in arrays:
                work.append(s.array)
        elif not isinstance(s, lir.LocalArray):
            work.extend(names_of(s))
    used: set[str] = set()
    while work:
        name = work.pop()
        if name not in used:
            used.add(name)
            work.extend(n for s in definitions.get(name, ()) for n in names_of(s))
    return _keep(body, used)


def _keep(body: Body, used: set[str]) -> Body:
    out: list[lir.Stmt] = []
    for s in body:
        dead = (isinstance(s, lir.Let | lir.LocalArray) and s.name not in used) or (
            isinstance(s, lir.LocalStore) and s.array not in used
        )
        if not dead:
            out.append(map_bodies(s, lambda inner: _keep(inner, used)))
    return same_body(body, out)


# ---- merging of nested loops


def collapse(body: Body) -> Body:
    """Merge each loop with the loop that is its whole body, and the loops of reductions, where the indices allow it."""
    return tuple(_collapse(s) for s in body)


def _collapse(s: lir.Stmt) -> lir.Stmt:
    s = map_bodies(s, collapse)
    if isinstance(s, lir.Reduce):
        return _collapse_reduce(s)
    if not isinstance(s, For) or len(s.body) != 1 or not isinstance(s.body[0], For):
        return s
    inner = s.body[0]
    if s.kind is not LoopKind.INDEPENDENT or inner.kind is not LoopKind.INDEPENDENT:
        return s
    merged = _merge(s.var, inner.var, _with_tests_of_both(inner.body, s.var, inner.var))
    return s if merged is None else replace(inner, var=merged[0], body=merged[1])


def _collapse_reduce(s: lir.Reduce) -> lir.Reduce:
    vars_, body = list(s.vars), s.body
    k = len(vars_) - 2
    while k >= 0:
        merged = _merge(vars_[k], vars_[k + 1], body)
        if merged is not None:
            vars_[k : k + 2], body = [merged[0]], merged[1]
        k -= 1
    return replace(s, vars=tuple(vars_), body=body)


def _merge(a: Var, b: Var, body: Body) -> tuple[Var, Body] | None:
    """Return one variable for a nest over a and b, and the body with it; None if some index uses them separately."""
    if not all(_is_merged_index(i, a, b) for i in indices_in(body)):
        return None
    merged = Var(b.name, a.extent * b.extent)
    # The merged variable is a * extent(b) + b, the only use of both: drop the term of a and let b stand for the sum.
    mapping: dict[IndexSymbol, IndexExpr] = {a: IndexExpr(), b: ix.of(merged)}
    return merged, map_indices(body, lambda i: i.substitute(mapping))


def _with_tests_of_both(body: Body, a: Var, b: Var) -> Body:
    """Return statements in which tests of a and of what neither loop changes are tests of a * extent(b) + b as well.

    That is if loops over b are short. Longer ones are better off with a test around them.
    """
    if b.extent >= SHORT_LANES:
        return body

    def statement(s: lir.Stmt) -> lir.Stmt:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.IndexTest):
            value, low, high = s.value.value, s.value.low, s.value.high
            rest = value - ix.of(a) - value.const
            if value.coefficient(a) == 1 and not {a, b} & set(rest.variables()):
                n, start = b.extent, value.const
                both = (ix.of(a) + rest) * n + ix.of(b)
                last = None if high is None else (high - start) * n + n - 1
                return replace(s, value=lir.IndexTest(both, None if low is None else (low - start) * n, last))
        return map_bodies(s, lambda inner: tuple(map(statement, inner)))

    return tuple(map(statement, body))


def _is_merged_index(i: IndexExpr, a: Var, b: Var) -> bool:
    """Check whether a and b appear in `i`, also inside quotients and remainders, only as a * extent(b) + b."""
    if i.coefficient(a) != i.coefficient(b) * b.extent:
        return False
    return all(
        _is_merged_index(atom.value, a, b) for atom, _ in i.terms if isinstance(atom, ix.Quotient | ix.Remainder)
    )


# ---- tiling


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a nest is tiled.

    Attributes:
        size: edge of a tile along the inner loop.
        across: edge of a tile along the outer loop; 0 for a square, or the edges of large tiles if the nest is large.
        outer_first: whether neighbors along the outer loop follow each other.
        stage: whether the tiles of accesses that are contiguous along the outer loop are transposed into local arrays.
        array_bytes: sizes of the arrays in memory, by name; those that are not named count as small.
        lanes: elements of 32 bits of a vector, the edge of the smallest blocks that are transposed in registers.
    """

    size: int
    across: int = 0
    outer_first: bool = False
    stage: bool = False
    array_bytes: Mapping[str, int] = field(default_factory=dict)
    lanes: int = BLOCK

    def edges(self, inner: For, outer: For, between: int = 1) -> tuple[int, int] | None:
        """Return the edges of a tile along the outer and the inner loop, or None if the loops need no tiles.

        Args:
            inner: the inner loop.
            outer: the outer loop.
            between: number of iterations of the loops between them.
        """
        body, columns, rows = inner.body, inner.var.extent, outer.var.extent
        height, width = self.across or self.size, self.size
        if not self.stage:
            return (height, width) if rows >= 2 * height and columns >= 2 * width else None
        if not self.across and (fitting := _most_lines_kept(inner)) < width:
            height = width = max(BLOCK // 2, fitting)
            return (height, width) if rows >= 2 * height and columns >= 2 * width else None
        if not self.across and self._is_large(body):
            height, width = LARGE_HEIGHT * self.size, LARGE_WIDTH * self.size
        while width > self.size and columns < 2 * width:
            width //= 2
        if columns < BLOCK and not self.across:
            return self._edges_of_short_rows(inner, outer, between)
        if columns < 2 * width:
            if columns < BLOCK or not _gains_from_narrow_tiles(inner):
                return None
            width = columns
        least = BLOCK if rows > BLOCK // 2 else BLOCK // 2
        while height > least and rows < 2 * height:
            height //= 2
        if height < rows < 2 * height and width <= self.size:
            height = rows
        return (height, width) if rows >= height else None

    def _edges_of_short_rows(self, inner: For, outer: For, between: int) -> tuple[int, int] | None:
        """Return the edges of tiles of a loop over a few elements, or None if it needs none.

        Those that are moved are transposed in registers, if they fill a vector and are no groups that the C compiler
        shuffles. Fewer, or more in wider vectors, are copied one by one; tiles keep the lines that are read in a cache.
        """
        moved = _moved_row(inner)
        if moved is None:
            return None
        t, store = moved
        columns, size = inner.var.extent, SCALAR_BYTES[t]
        if not 1 < size <= LANE_BYTES or outer.var.extent < BLOCK:
            return None
        if columns < self.lanes:
            return (BLOCK // 2, columns) if between * columns > MOST_LINES else None
        is_group = columns * size <= BLOCK and store.offset.coefficient(outer.var) == columns
        return None if is_group else (BLOCK, columns)

    def most_elements(self) -> list[tuple[int, int]]:
        """Return bounds of the elements of a tile, each with the most arrays of which there are such tiles."""
        found = [(2 * (self.across or self.size) * self.size, MAX_STAGED)]  # a tile may be twice as high as wanted
        if not self.across and sum(self.array_bytes.values()) >= LARGE_BYTES:
            found.append((2 * LARGE_HEIGHT * LARGE_WIDTH * self.size**2, MAX_LARGE))
        return found

    def _is_large(self, body: Body) -> bool:
        read = [s.value.buffer for s in walk(body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)]
        written = {s.buffer for s in walk(body) if isinstance(s, lir.Store)}
        return len(read) <= MAX_LARGE and sum(self.array_bytes.get(n, 0) for n in {*read, *written}) >= LARGE_BYTES


def _moved_row(loop: For) -> tuple[T, lir.Store] | None:
    """Return the type and the store of a loop that only moves elements to adjacent places; None for other loops."""
    if len(loop.body) != 2:
        return None
    load, store = loop.body
    if not isinstance(load, lir.Let) or not isinstance(load.value, lir.Load):
        return None
    if not isinstance(store, lir.Store) or store.value != load.name or store.offset.coefficient(loop.var) != 1:
        return None
    return load.type, store


def _gains_from_narrow_tiles(loop: For) -> bool:
    """Check whether a loop that reads few lines along another one gains from transpositions in registers.

    Those of whole vectors are faster than single elements, if not of 64 bits. Others are where the lines evict each
    other from the first-level cache, because they are a multiple of a power of two apart.
    """
    loads = [(s.type, s.value.offset) for s in loop.body if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)]
    strides = [abs(at.coefficient(loop.var)) * SCALAR_BYTES[t] for t, at in loads]
    if any(loop.var.extent > LINES * WAY_BYTES // math.gcd(n, WAY_BYTES) for n in strides if n > LINE_BYTES):
        return True
    return loop.var.extent % BLOCK == 0 and max((SCALAR_BYTES[t] for t, _ in loads), default=0) <= LANE_BYTES


def _most_lines_kept(loop: For) -> int:
    """Return how many iterations of a loop may read a line each, so that the lines stay in the first-level cache.

    Loads in branches are not staged. Their lines may be a multiple of a power of two apart, and evict each other; half
    of the places are left to other accesses.
    """
    top = [s.value for s in loop.body if isinstance(s, lir.Let)]
    found = []
    for s in walk(loop.body):
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load) and s.value not in top:
            stride = abs(s.value.offset.coefficient(loop.var)) * SCALAR_BYTES[s.type]
            if stride > LINE_BYTES:
                found.append(LINES * WAY_BYTES // math.gcd(stride, WAY_BYTES) // 2)
    return min(found, default=MOST_LINES)


def tile_transposes(body: Body, tiling: Tiling) -> Body:
    """Tile each perfect nest in which some access is contiguous along an outer loop and strided inside."""
    return tuple(_tile(s, tiling) for s in body)


def _tile(s: lir.Stmt, tiling: Tiling) -> lir.Stmt:
    nest, lets = _nest_with_values(s)
    if len(nest) < 2 or any(f.kind is not LoopKind.INDEPENDENT for f in nest) or has_loop(nest[-1].body):
        return s
    lane = nest[-1]
    # Strip-mine the outer loop and the lanes, and move the loops over tiles outward. Within a tile, the cache lines
    # that the strided accesses touch are reused before they are evicted.
    outer = next((f for f in nest[:-1] if is_transposed(lane.body, f.var, lane.var)), None)
    edges = None
    if outer is not None:
        edges = tiling.edges(lane, outer, math.prod(f.var.extent for f in nest[nest.index(outer) + 1 : -1]))
    if outer is None or edges is None or work_of(lets) > MOST_ROW_WORK:
        return s
    height, width = edges
    a, b = outer.var, lane.var
    a_out, a_in = Var(a.name + "o", -(-a.extent // height)), Var(a.name + "i", height)
    b_out, b_in = Var(b.name + "o", -(-b.extent // width)), Var(b.name + "i", width)
    mapping: dict[IndexSymbol, IndexExpr] = {
        a: ix.of(a_out) * height + ix.of(a_in), b: ix.of(b_out) * width + ix.of(b_in)
    }  # fmt: skip
    inside = map_indices(lane.body, lambda i: i.substitute(mapping))
    staged: Body = ()
    if tiling.stage:
        staged, inside = _staged(inside, (a_out, a_in, a.extent), (b_out, b_in, b.extent))
    inner: lir.Stmt = bounded(For(b_in, LoopKind.INDEPENDENT, inside), b_out, b.extent, width)
    of_row = map_indices(lets, lambda i: i.substitute(mapping))
    inner = bounded(For(a_in, LoopKind.SERIAL, (*of_row, inner)), a_out, a.extent, height)
    moved = _moved_tile(staged, inside, a_in, b_in)
    walk = [*(a_out if f is outer else f.var for f in nest[:-1]), b_out]
    if tiling.outer_first:
        at = walk.index(a_out)
        walk[at], walk[-1] = b_out, a_out
    body: Body = (*staged, inner) if moved is None else (moved,)
    for var in reversed(walk):
        body = (For(var, LoopKind.INDEPENDENT, body),)
    return body[0]


def _nest_with_values(s: lir.Stmt) -> tuple[list[For], Body]:
    """Return the loops of a nest, and the values that those around others define."""
    nest: list[For] = []
    lets: Body = ()
    while isinstance(s, For):
        nest.append(s)
        *before, last = s.body
        if not isinstance(last, For) or not all(isinstance(x, lir.Let) for x in before):
            break
        lets, s = (*lets, *before), last
    return nest, lets


def _staged(body: Body, a: tuple[Var, Var, int], b: tuple[Var, Var, int]) -> tuple[Body, Body]:
    """Return the statements that transpose tiles, and the body that reads these tiles.

    The two tiled loops are given by the variable of the tile, that of the point in it, and the extent of both.
    """
    (a_out, a_in, a_extent), (b_out, b_in, b_extent) = a, b
    height, size = a_in.extent, b_in.extent
    arrays: dict[tuple[str, IndexExpr], str] = {}
    before: list[lir.Stmt] = []
    out: list[lir.Stmt] = []
    for s in body:  # a load inside a branch may be out of bounds where the branch is not taken
        if not isinstance(s, lir.Let) or not isinstance(s.value, lir.Load):
            out.append(s)
            continue
        at, stride = s.value.offset, s.value.offset.coefficient(b_in)
        origin = at.substitute({a_in: IndexExpr(), b_in: IndexExpr()})
        linear = at == origin + ix.of(a_in) + ix.of(b_in) * stride
        if not linear or stride <= 1 or (len(arrays) >= MAX_STAGED and (s.value.buffer, origin) not in arrays):
            out.append(s)
            continue
        array = arrays.get((s.value.buffer, origin))
        if array is None:
            array = arrays[s.value.buffer, origin] = f"{s.name}_tile"
            rows, columns = (
                None if extent % edge == 0 else ix.const(extent) - ix.of(tile) * edge
                for tile, extent, edge in ((a_out, a_extent, height), (b_out, b_extent, size))
            )
            before.append(lir.LocalArray(array, s.type, height * size))
            before.append(
                lir.TransposeTile(
                    array, s.value.buffer, origin, stride, size, rows, columns, 0 if height == size else height
                )
            )
        out.append(replace(s, value=lir.LocalLoad(array, ix.of(a_in) * size + ix.of(b_in))))
    return tuple(before), tuple(out)


def _moved_tile(staged: Body, inside: Body, row: Var, column: Var) -> lir.TransposeTile | None:
    """Return what transposes a tile from memory to memory, or None if its elements are not only moved.

    Rows of the result whose lines evict each other from the first-level cache are written one after the other.
    """
    if len(staged) != 2 or len(inside) != 2:
        return None
    array, tile = staged
    load, store = inside
    if not isinstance(array, lir.LocalArray) or not isinstance(tile, lir.TransposeTile):
        return None
    if not isinstance(load, lir.Let) or not isinstance(store, lir.Store) or store.value != load.name:
        return None
    pitch = store.offset.coefficient(row)
    to = store.offset.substitute({row: IndexExpr(), column: IndexExpr()})
    if store.offset != to + ix.of(row) * pitch + ix.of(column) or pitch <= 1:
        return None
    lines = LINES * WAY_BYTES // math.gcd(pitch * SCALAR_BYTES[array.type], WAY_BYTES)
    if array.type.is_half or lines < row.extent:
        return None
    return replace(tile, array=store.buffer, to=to, pitch=pitch)


def iterations(s: For, var: Var, start: int) -> For:
    """Return the iterations of a loop from `start` on, as many as another variable has values."""
    at = IndexExpr(((var, 1),), start)
    return replace(s, var=var, body=map_indices(s.body, lambda i: i.substitute({s.var: at})))


def iterations_from(s: For, first: int) -> list[lir.Stmt]:
    """Return a loop over the iterations of another one from a number on; nothing if there are none."""
    if first == s.var.extent:
        return []
    return [iterations(s, Var(f"{s.var.name}q", s.var.extent - first), first)]


def perfect_nest(s: lir.Stmt) -> list[For]:
    """Return a loop and the loops inside it, as long as each is the whole body of the one before."""
    nest: list[For] = []
    while isinstance(s, For):
        nest.append(s)
        if len(s.body) != 1:
            break
        s = s.body[0]
    return nest


def flat_nest(s: For) -> tuple[tuple[Var, ...], Body] | None:
    """Return the variables of a nest of independent loops and its innermost body, or None if it is none.

    What an outer loop defines comes first in the body, so that the loops may be exchanged.
    """
    vars_, before = [], list[lir.Stmt]()
    while True:
        if s.kind is not LoopKind.INDEPENDENT or s.base is not None:
            return None
        vars_.append(s.var)
        if not has_loop(s.body):
            return tuple(vars_), (*before, *s.body)
        *lets, inner = s.body
        if not isinstance(inner, For) or not all(isinstance(x, lir.Let) for x in lets):
            return None
        before += lets
        s = inner


_TILES = frozenset({lir.MatrixProduct, lir.TransposeTile})
_LOOPS = _TILES | {For, lir.While, lir.Reduce, lir.Sort, lir.SortByKey, lir.ForFlagged}


def has_loop(body: Body) -> bool:
    """Check whether the statements contain a loop of any kind, a matrix product or the transposition of a tile."""
    if not has_compound(body):  # most bodies that are asked about
        return not _TILES.isdisjoint(map(type, body))
    return any(type(s) in _LOOPS for s in walk(body))


def are_apart(stores: Sequence[lir.Store], extent: int) -> bool:
    """Check whether a loop's stores to one array, such as those to the halves of a row, are to different parts of it.

    It then does not matter in which order iterations and stores follow each other.

    Args:
        stores: the stores, each to adjacent elements in the order of the loop.
        extent: number of iterations.
    """
    for n, x in enumerate(stores):
        for y in stores[:n]:
            distance = x.offset - y.offset
            if x.buffer == y.buffer and (not distance.is_const or abs(distance.const) < extent):
                return False
    return True


def map_vector_loops(body: Body, f: Callable[[For], Body]) -> Body:
    """Return bound statements with `f` applied to each vector loop that has no loop in it."""

    def statement(s: lir.Stmt) -> Body:
        if isinstance(s, For) and s.kind.is_vector and not has_loop(s.body):
            return f(s)
        return (map_bodies(s, lambda inner: map_vector_loops(inner, f)),)

    return map_compound(body, statement)


def bounded(loop: For, tile: Var, extent: int, size: int) -> For:
    """Return the loop within a tile, bounded by the extent of the whole if the tile size does not divide it."""
    if extent % size == 0:
        return loop
    return replace(loop, base=ix.of(tile) * size, limit=extent)


def is_transposed(body: Body, a: Var, b: Var) -> bool:
    """Check whether some access is contiguous in `a` and strided in `b`."""
    return any(abs(i.coefficient(a)) == 1 and abs(i.coefficient(b)) > 1 for i in indices_in(body))
