"""Column tiles: a loop over columns around reductions becomes loops over rows around lanes of adjacent columns.

In a reduction along columns, consecutive iterations of the column loop read consecutive elements, and those of the
reduction do not. The two are therefore exchanged within a tile of columns: each accumulator becomes an array with one
element per column, and each part of the body becomes a loop over the lanes of the tile, as do loops over the rows that
use the results. Values that one part defines and another uses are computed again if that is cheap and kept in an array
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import indices_in, map_bodies, map_indices, names_used, walk
from compiler.codegen.nest.work import is_expensive, work_of
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.edges import worthwhile_ranges
from compiler.codegen.schedules.index_tests import tests_of
from compiler.codegen.schedules.joined_rows import FAR_BYTES, LIGHT
from compiler.codegen.schedules.loop_transforms import flat_nest, has_loop
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType

NEAR = 4
"""Distance up to which the elements of adjacent columns are read together, as in a sum of pairs."""
MAX_HELD, LIGHT_WORK = 4, 12
"""Maximum number of values per column that are held in registers, and number of statements of a loop over rows up to
which it matters whether those are that it only reads."""
MAX_RECOMPUTED = 8
"""Maximum number of definitions that are repeated to recompute a value in another loop."""

WIDE_COLUMNS, WHOLE_ROW = 2048, 16 << 10
"""Columns of a tile, and bytes of the results of a row that is one tile, of an array that comes from memory: narrow
tiles visit each page many times, and tiles of whole rows read all in order. Parts of rows are wide only where several
rows are joined."""
NEAR_BYTES = 1 << 20
"""Bytes of an array up to which its rows come from a cache of the core, where the order in which they are read does not
matter. Tiles of several values per column are narrow so that registers hold them."""
STREAMED_BYTES = 4 << 20
"""Bytes of what a reduction reads and stores from which on its expensive functions wait for memory, unless its rows are
read and stored in order."""


def with_wide_columns(body: Body, schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """Return the schedule by which a kernel tiles the columns of its only reduction, whose arrays may be large.

    Args:
        body: the statements.
        schedule: gives the number of columns of a tile that reads from the caches.
        sizes: the bytes of the arguments, by name.
    """
    reductions = [s for s in walk(body) if isinstance(s, lir.Reduce)]
    columns = [s for s in walk(body) if isinstance(s, For) and is_column_loop(s)]
    if len(reductions) != 1 or len(columns) != 1 or reductions[0] not in columns[0].body:
        return schedule
    (reduce,), width = reductions, columns[0].var.extent
    lets = [x for x in reduce.body if isinstance(x, lir.Let)]
    reads = {x.value.buffer for x in lets if isinstance(x.value, lir.Load)}
    held = sum(SCALAR_BYTES[r.type] for r in reduce.reductions)
    is_row = width * held <= WHOLE_ROW
    is_single = len(reduce.reductions) == 1
    sweeps = tuple(x for x in columns[0].body if x is not reduce)
    inside = sum(isinstance(x, lir.Store) for x in walk(sweeps))
    stores_rows = sum(isinstance(x, lir.Store) for x in walk(body)) > inside  # in the reduction, or beside the columns
    if is_row and is_single and not stores_rows and schedule.columns * held > schedule.unit.room:
        # The accumulators are in the first-level cache, however wide a tile is.
        return schedule.with_values({"columns": max(schedule.columns, width)})
    if any(map(is_expensive, lets)):
        return _with_streamed_rows(columns[0], reduce, schedule, sizes)
    largest = max((sizes.get(name, 0) for name in reads), default=0)
    is_one_row = is_row and _values_held(columns[0]) == (1, 0)
    if work_of(reduce.body) > LIGHT_WORK or largest <= (NEAR_BYTES if is_one_row else FAR_BYTES):
        return schedule
    if is_row:
        return schedule.with_values({"columns": max(schedule.columns, width)})
    ops = {x.value.op.opcode for x in lets if isinstance(x.value, lir.Apply)} | {r.combiner for r in reduce.reductions}
    return schedule.with_values({"columns": max(schedule.columns, WIDE_COLUMNS)}) if ops <= LIGHT else schedule


def _with_streamed_rows(columns: For, reduce: lir.Reduce, schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """Return the schedule of a reduction with expensive functions, which has whole rows if it stores large ones."""
    if any(isinstance(x, For) for x in columns.body) or not any(isinstance(x, lir.Store) for x in reduce.body):
        return schedule
    loads = [x.value.buffer for x in reduce.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    stores = [x.buffer for x in reduce.body if isinstance(x, lir.Store)]
    moved = sum(sizes.get(name, 0) for name in {*stores, *loads})
    read = [x.type for x in columns.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    held = columns.var.extent * sum(SCALAR_BYTES[t] for t in (*read, *(r.type for r in reduce.reductions)))
    if moved <= STREAMED_BYTES or held > WHOLE_ROW:
        return schedule
    # What it reads per column stays in a cache: tiles are not narrower for it.
    return schedule.with_values({"columns": max(schedule.columns, 2 * MAX_HELD * columns.var.extent)})


def tile_columns(body: Body, schedule: Schedule, in_vectors: bool = False) -> Body:
    """Return the statements with every loop over columns around a reduction tiled.

    Args:
        body: the statements.
        schedule: gives the number of columns of a tile.
        in_vectors: whether the lanes are those of a processor's vectors, rather than threads.
    """
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For) and is_column_loop(s):
            values = _values_held(s) if in_vectors else (1, 0)
            tile = schedule.column_tile(s.var.extent, *values)
            out += _tiled(s, s.var.extent if in_vectors and _has_edges(s, schedule) else tile)
        else:
            out.append(map_bodies(s, lambda inner: tile_columns(inner, schedule, in_vectors)))
    return tuple(out)


def _has_edges(s: For, schedule: Schedule) -> bool:
    """Check for a loop of at most two tiles with edges, which are split out if the tests depend on the lane alone."""
    if not schedule.edges or s.var.extent > 2 * schedule.columns:
        return False
    loops = [For(s.var, s.kind, x.body) for x in s.body if isinstance(x, lir.Reduce)]
    return any(worthwhile_ranges(x, tests_of(x), priced=True) for x in loops)


def is_column_loop(s: For) -> bool:
    """Check whether the reductions in a loop read along its variable rather than along their own."""
    if s.kind is not LoopKind.INDEPENDENT or not any(isinstance(x, lir.Reduce) for x in s.body):
        return False
    if any(isinstance(x, lir.If | lir.Accumulator | lir.LocalArray) for x in s.body):
        return False
    if any(isinstance(x, For) and flat_nest(x) is None for x in s.body):
        return False
    if any(has_loop(r.body) for r in s.body if isinstance(r, lir.Reduce)):
        return False
    along, across, same = _directions(s)
    if along + same + across == 0 and _has_far_elements(s):
        return _uses_adjacent_values(s)  # rows that all columns share are read one by one
    return along > across if across else along + same > 0


def _directions(s: For) -> tuple[int, int, int]:
    """Return how many accesses of reductions are along the columns, along the reduction, and the same for all rows."""
    along, across, same = 0, 0, 0
    for r, i in _accesses(s):
        step, last = abs(i.coefficient(s.var)), abs(i.coefficient(r.vars[-1]))
        adjacent = step == 1 or 0 < step <= NEAR < last
        # What a whole row shares, such as its mean, is read once per row if rows are not columns.
        along += adjacent and any(i.coefficient(v) != 0 for v in r.vars)
        same += adjacent and all(i.coefficient(v) == 0 for v in r.vars)
        slides = step == last == 1 and s.var.extent > r.vars[-1].extent  # a window: its elements are its neighbour's
        across += not slides and step != 0 and (last == 1 or 0 < last <= NEAR < step)
    return along, across, same


def _has_far_elements(s: For) -> bool:
    """Check whether more of the elements that all columns share are apart in memory than are adjacent."""
    far, near = 0, 0
    for r, i in _accesses(s):
        last = abs(i.coefficient(r.vars[-1]))
        far += not i.coefficient(s.var) and last > 1
        near += not i.coefficient(s.var) and last == 1
    return far > near


def _accesses(s: For) -> list[tuple[lir.Reduce, IndexExpr]]:
    """Return the reductions in a loop with the places that each reads."""
    return [(r, i) for r in s.body if isinstance(r, lir.Reduce) for i in _offsets(r.body)]


def reads_far_rows(s: For) -> bool:
    """Check for a loop over columns because the elements that all of them share are apart in memory."""
    return is_column_loop(s) and not any(_directions(s))


def _offsets(body: Body) -> Iterator[IndexExpr]:
    """Yield where statements read; tests of positions, and positions as values, read nothing."""
    for x in walk(body):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load | lir.PairLoad | lir.LocalLoad):
            yield x.value.offset


def _uses_adjacent_values(s: For) -> bool:
    """Check whether the reductions in a loop use elements that its body reads, adjacent ones in each iteration.

    So are the numbers of the columns, as of the classes that are counted.
    """
    reductions = [r for r in s.body if isinstance(r, lir.Reduce)]
    used = {name for r in reductions for name in names_used(r.body)}
    lets = [x for x in s.body if isinstance(x, lir.Let) and x.name in used]
    values = [x for x in lets if isinstance(x.value, lir.Load | lir.IndexValue)]
    inside = (x for r in reductions for x in r.body if isinstance(x, lir.Let))
    values += [x for x in inside if isinstance(x.value, lir.IndexValue)]
    return any(abs(i.coefficient(s.var)) == 1 for x in values for i in indices_in((x,)))


def column_bytes_bound(s: For, width: int, schedule: Schedule, stages: int = 1) -> int:
    """Return an upper bound of the bytes that the lanes of the tiles of a loop over columns keep.

    Args:
        s: the loop.
        width: most columns that it has, once it is merged with those around it.
        schedule: the schedule.
        stages: number of nests that it may be divided into; what one of them passes to another is in arrays, too.
    """
    held = sum(SCALAR_BYTES[r.type] for x in s.body if isinstance(x, lir.Reduce) for r in x.reductions)
    parts = list(_parts(s.body))
    defined = {x.name: n for n, part in enumerate(parts) for x in part if isinstance(x, lir.Let)}
    used = {name for n, part in enumerate(parts) for name in names_used(part) if defined.get(name, n) != n}
    lets = [x for x in s.body if isinstance(x, lir.Let)]
    held += sum(SCALAR_BYTES[x.type] for x in lets if stages > 1 or x.name in used)
    return stages * lanes_of_tiles(width, schedule) * held


def lanes_of_tiles(width: int, schedule: Schedule) -> int:
    """Return the most lanes of a tile of columns and of the rest that remains, given the greatest number of columns."""
    return width if width <= schedule.columns else 2 * schedule.columns


def _values_held(s: For) -> tuple[int, int]:
    """Return how many values per column the reductions in a loop update, and how many they read in each row.

    A block, which sweeps over its rows again, counts as one value: its tiles are wide for its rows to stay in a cache.
    So do more values than narrow tiles could hold; what a long loop reads is no matter beside its work.
    """
    if any(isinstance(x, For) for x in s.body):
        return 1, 0
    known = {x.name for x in s.body if isinstance(x, lir.Let) and not isinstance(x.value, lir.Constant)}
    held = [(1, 0)]
    for r in s.body:
        if isinstance(r, lir.Reduce) and len(r.reductions) <= MAX_HELD:
            is_light = work_of(r.body) <= LIGHT_WORK
            held.append((len(r.reductions), len(known & set(names_used(r.body))) if is_light else 0))
    return max(held, key=sum)


def _tiled(s: For, tile: int) -> list[lir.Stmt]:
    width = s.var.extent
    number = Var(f"{s.var.name}t", width // tile)
    out: list[lir.Stmt] = [For(number, LoopKind.INDEPENDENT, tuple(_Lanes(s, ix.of(number) * tile, tile).statements()))]
    rest = width % tile
    if rest:
        statements = _Lanes(s, ix.const(width - rest), rest).statements()
        out.append(For(Var(f"{s.var.name}e", 1), LoopKind.INDEPENDENT, tuple(statements)))  # a scope for their names
    return out


@dataclass
class _Lanes:
    """One tile of columns.

    Attributes:
        loop: the loop over all columns.
        base: index of the first column of the tile.
        tile: number of columns.
        arrays: name and type of the array that holds a value in the lanes, by the value's name.
        definitions: definitions of all values so far.
    """

    loop: For
    base: IndexExpr
    tile: int
    arrays: dict[str, tuple[str, PrimitiveType]] = field(default_factory=dict)
    definitions: dict[str, lir.Let] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lane = Var(f"{self.loop.var.name}l", self.tile)
        # `ix.of` would replace a variable of extent 1 by 0, and the lane's code could move out of its loop.
        self._lane_index = IndexExpr(((self.lane, 1),))

    def statements(self) -> list[lir.Stmt]:
        """Return the statements of the tile."""
        parts = list(_parts(self.loop.body))
        for part in parts:
            for s in part:
                if isinstance(s, lir.Let):
                    self.definitions[s.name] = s
        out: list[lir.Stmt] = []
        shared = self._shared_values(parts)
        for name, t in shared.items():
            self.arrays[name] = f"{name}_lanes", t
            out.append(lir.LocalArray(f"{name}_lanes", t, self.tile))
        for part in parts:
            if len(part) == 1 and isinstance(part[0], lir.Reduce):
                out += self._reduction(part[0])
            elif len(part) == 1 and isinstance(part[0], For):
                out.append(self._rows(part[0]))
            elif any(not isinstance(s, lir.Let) or s.name in self.arrays for s in part):
                out.append(self._lanes(part))
        return out

    def _shared_values(self, parts: Sequence[Body]) -> dict[str, PrimitiveType]:
        """Return the values that one part defines and another uses and that are not recomputed there."""
        found: dict[str, PrimitiveType] = {}
        defined: dict[str, int] = {}
        for n, part in enumerate(parts):
            for s in part:
                if isinstance(s, lir.Let):
                    defined[s.name] = n
                elif isinstance(s, lir.Reduce):
                    found |= {r.name: r.type for r in s.reductions}
        for n, part in enumerate(parts):
            for name in names_used(part):
                if defined.get(name, n) != n and self._recomputation(name, found) is None:
                    found[name] = self.definitions[name].type
        return found

    def _recomputation(self, name: str, arrays: Iterable[str]) -> list[lir.Let] | None:
        """Return the definitions that recompute a value in order, or None if they are too many or too expensive."""
        order: dict[str, lir.Let] = {}
        return list(order.values()) if self._can_recompute(name, set(arrays), order) else None

    def _can_recompute(self, name: str, kept: set[str], order: dict[str, lir.Let]) -> bool:
        """Check whether a value can be recomputed from those that are kept; add the definitions that do so to `order`.

        Not a function inside of another: one that calls itself is freed by the garbage collector alone.
        """
        let = self.definitions.get(name)
        if let is None or name in order or name in kept:
            return True
        if is_expensive(let):
            return False
        if isinstance(let.value, lir.Current | lir.LocalLoad):
            return False
        if not all(self._can_recompute(n, kept, order) for n in names_used((let,))):
            return False
        order[name] = let
        return len(order) <= MAX_RECOMPUTED

    def _reduction(self, r: lir.Reduce) -> list[lir.Stmt]:
        first: list[lir.Stmt] = []
        step: list[lir.Stmt] = []
        for x in r.reductions:
            array, _ = self.arrays[x.name]
            first += accumulators.start_in_array(x, array, self._lane_index, f"{x.name}_identity")
            step += accumulators.combine_in_array(x, array, self._lane_index)
        rows: lir.Stmt = self._lanes((*r.body, *step))
        for v in reversed(r.vars):
            rows = For(v, LoopKind.SERIAL, (rows,))
        return [self._lanes(tuple(first)), rows]

    def _rows(self, s: For) -> lir.Stmt:
        """Return a loop over rows, which uses the results of reductions, around the lanes."""
        vars_, body = flat_nest(s) or ((s.var,), s.body)
        rows: lir.Stmt = self._lanes(body)
        for v in reversed(vars_):
            rows = For(v, LoopKind.SERIAL, (rows,))
        return rows

    def _lanes(self, part: Body) -> For:
        """Return a loop over the lanes that runs the part, after loading or recomputing what it uses."""
        inside = {s.name for s in part if isinstance(s, lir.Let)}
        before: dict[str, lir.Let] = {}
        for name in names_used(part):
            if name in inside:
                continue
            if name in self.definitions and name not in self.arrays:
                for let in self._recomputation(name, self.arrays) or ():
                    for used in names_used((let,)):
                        self._load(used, before)
                    before[let.name] = let
            self._load(name, before)
        after = [
            lir.LocalStore(self.arrays[s.name][0], self._lane_index, s.name)
            for s in part
            if isinstance(s, lir.Let) and s.name in self.arrays and s.name in self.definitions
        ]
        position = self.base + self._lane_index
        body = _used_definitions((*before.values(), *part, *after))
        return For(
            self.lane, LoopKind.INDEPENDENT, map_indices(body, lambda i: i.substitute({self.loop.var: position}))
        )

    def _load(self, name: str, before: dict[str, lir.Let]) -> None:
        if name in self.arrays and name not in before:
            array, t = self.arrays[name]
            before[name] = lir.Let(name, t, lir.LocalLoad(array, self._lane_index))


def _used_definitions(body: Body) -> Body:
    """Return the statements without the values that only other parts use."""
    used: set[str] = set()
    kept: list[lir.Stmt] = []
    for s in reversed(body):
        if not isinstance(s, lir.Let) or s.name in used:
            used.update(names_used((s,)))
            kept.append(s)
    return tuple(reversed(kept))


def _parts(body: Body) -> Iterable[Body]:
    """Yield the reductions and loops of a body one by one, and the statements between them together."""
    part: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, lir.Reduce | For):
            if part:
                yield tuple(part)
            yield (s,)
            part = []
        else:
            part.append(s)
    if part:
        yield tuple(part)
