"""Small padded planes: what windows read of an image is copied, with its padding, into a local array first.

The elements of a window beyond the edge of an image are padding, so each load of a loop over the image tests its row
and its column, and vectors have masks. Where elements are apart, as by a stride, these are gathers. Copies of the loop
for the edges (`edges`) have no tests, but those of a short row are single elements, for which functions take as long as
for a vector, and the loops of reductions have no copies for rows. A plane that fits into the first-level cache takes
one store and one load per element. All windows read it without tests, and what a stride leaves out lies apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_bodies, names_assigned, walk
from compiler.codegen.schedules import edges
from compiler.codegen.schedules.index_tests import tests_of
from compiler.codegen.schedules.loop_transforms import has_loop, without_dead_code
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MAX_BYTES = 20 << 10
"""Bytes of the largest plane: it stays in the first-level cache beside what else a loop reads."""
LEAST_READ = 4
"""Elements of a plane that each window reads at least; all windows read as many as the plane has, at least."""
PLANE = 2
"""Number of loops of a reduction over planes."""


def pad_planes(kernel: lir.Kernel, body: Body) -> Body:
    """Return the unbound statements of a kernel with local copies of small padded planes, where windows read them."""
    if kernel.kind not in edges.KINDS + edges.REDUCTIONS or not _tests(body):
        return body
    lets = (s for s in walk(body) if isinstance(s, lir.Let))
    constants = {s.name: s.value for s in lets if isinstance(s.value, lir.Constant)}
    padded = _Padding(kernel.kind in edges.REDUCTIONS, constants).body(body)
    return body if padded is body else without_dead_code(padded)


def _tests(body: Body) -> bool:
    return any(isinstance(s, lir.Let) and isinstance(s.value, lir.IndexTest) for s in walk(body))


@dataclass(frozen=True)
class _Place:
    """An index along one dimension of a plane: `step` times the loop variable plus `start`.

    Attributes:
        high: the largest index that is inside of the plane, if it is tested.
        low: whether it is tested that the index is not negative.
    """

    step: int
    start: int
    low: bool
    high: int | None

    def most(self, extent: int) -> int:
        return self.start + self.step * (extent - 1)


@dataclass(frozen=True)
class _Source:
    """What windows read: the elements of a buffer at `rest` plus multiples of the loop variables, and the padding."""

    buffer: str
    rest: IndexExpr
    along_rows: int
    along_columns: int
    type: T


@dataclass(frozen=True)
class _Read:
    """One element of a window.

    Attributes:
        name: the value that it defines.
        source, const: where it is read.
        row, column: the tests of its indices, if there are any.
        padding: the name of the constant that is read outside, None if there are no tests.
        accumulator: the scalar that the branch on the tests assigns.
    """

    name: str
    source: _Source
    const: int
    row: _Place | None = None
    column: _Place | None = None
    padding: str | None = None
    accumulator: str = ""


@dataclass(frozen=True)
class _Plane:
    """A copy of a part of a buffer with its padding.

    Attributes:
        array: its name.
        source: what it copies.
        base: offset of its element (0, 0) from `source.rest`.
        row_stride, column_stride: distances of the rows and the columns of the buffer.
        step: the distance of the columns that a loop over columns reads for one element of a window.
        rows, columns: the first and the last index that windows read.
        inside: numbers of rows and columns that are no padding, from 0 on.
        padding: what is outside.
    """

    array: str
    source: _Source
    base: int
    row_stride: int
    column_stride: int
    step: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    inside: tuple[int, int]
    padding: lir.Constant

    @property
    def width(self) -> int:
        """The number of elements of a row: all that are a multiple of the step apart lie next to each other."""
        return self.columns_apart * self.step

    @property
    def columns_apart(self) -> int:
        return -(-(self.columns[1] - self.columns[0] + 1) // self.step)

    @property
    def size(self) -> int:
        return (self.rows[1] - self.rows[0] + 1) * self.width

    def element(self, row: IndexExpr, column: IndexExpr, start: int) -> IndexExpr:
        """Return where the element of a row is, in column `column` * step + `start`."""
        whole, rest = divmod(start - self.columns[0], self.step)
        return (row - self.rows[0]) * self.width + column + (whole + rest * self.columns_apart)

    def statements(self) -> Body:
        """Return the array, and the loops that fill it."""
        name, t = self.array, self.source.type
        every, value = Var(f"{name}_every", self.size), f"{name}_outside"
        fill = (lir.Let(value, t, self.padding), lir.LocalStore(name, ix.of(every), value))
        top, bottom = max(0, self.rows[0]), min(self.inside[0] - 1, self.rows[1])
        left, right = max(0, self.columns[0]), min(self.inside[1] - 1, self.columns[1])
        groups, rest = divmod(right - left + 1, self.step)
        row, group = Var(f"{name}_row", bottom - top + 1), Var(f"{name}_group", groups)
        r = ix.of(row) + top
        inner: list[lir.Stmt] = []
        if groups:
            copies = tuple(x for k in range(self.step) for x in self._copied(r, ix.of(group), left + k, f"{name}_{k}"))
            inner.append(For(group, LoopKind.INDEPENDENT, copies))
        for k in range(rest):
            inner += self._copied(r, ix.const(groups), left + k, f"{name}_last{k}")
        return (
            lir.LocalArray(name, t, self.size),
            For(every, LoopKind.INDEPENDENT, fill),
            For(row, LoopKind.INDEPENDENT, tuple(inner)),
        )

    def _copied(self, row: IndexExpr, column: IndexExpr, start: int, name: str) -> Body:
        """Copy the element of a row in column `column` * step + `start`."""
        at = self.source.rest + row * self.row_stride + (column * self.step + start) * self.column_stride + self.base
        load = lir.Let(name, self.source.type, lir.Load(self.source.buffer, at))
        return load, lir.LocalStore(self.array, self.element(row, column, start), name)


class _Padding:
    """Finds the planes of a kernel and rewrites the loops that read them."""

    def __init__(self, is_reduction: bool, constants: Mapping[str, lir.Constant]) -> None:
        self._is_reduction = is_reduction
        self._constants = constants
        self._count = 0

    def body(self, body: Body) -> Body:
        out: list[lir.Stmt] = []
        planes: dict[object, _Plane] = {}  # of the loops of this body, which may share them
        changed = False
        for s in body:
            sweep = plane_loops(s)
            found = self._padded(s, *sweep, planes) if sweep is not None else None
            if found is None:
                inner = map_bodies(s, self.body)
                changed = changed or inner is not s
                out.append(inner)
            else:
                changed = True
                out += found
        return tuple(out) if changed else body

    def _padded(
        self, s: lir.Stmt, row: Var, column: Var, inside: Body, planes: dict[object, _Plane]
    ) -> list[lir.Stmt] | None:
        """Return loops that read copies of planes, after those that make copies which others have not made before."""
        leaf = For(column, LoopKind.INDEPENDENT, inside)
        if not self._is_reduction and edges.worthwhile_ranges(leaf, tests_of(leaf)) is not None:
            return None
        made: list[lir.Stmt] = []
        values: dict[str, lir.LocalLoad] = {}
        dropped: set[str] = set()
        for reads in _windows(inside, row, column, self._constants):
            plane = _plane_of(reads, row, column, self._constants)
            if plane is None:
                continue
            key = replace(plane, array="")
            if key not in planes:
                planes[key] = replace(plane, array=f"plane{self._count}_{column.name}")
                self._count += 1
                made += planes[key].statements()
            plane = planes[key]
            for r in reads:
                at = _place_of(r, plane, row, column)
                element = plane.element(ix.of(row) * at[0].step + at[0].start, ix.of(column), at[1].start)
                values[r.name] = lir.LocalLoad(plane.array, element)
                dropped.add(r.accumulator)
        if not made and not values:
            return None
        kept = tuple(_rewritten(inside, values, dropped))
        return [*made, with_body(s, kept)]


def with_body(s: lir.Stmt, body: Body) -> lir.Stmt:
    """Return a sweep with other statements."""
    if isinstance(s, lir.Reduce):
        return replace(s, body=body)
    assert isinstance(s, For)  # noqa: S101 - the other kind of sweep
    (inner,) = s.body
    assert isinstance(inner, For)  # noqa: S101
    return replace(s, body=(replace(inner, body=body),))


def plane_loops(s: lir.Stmt) -> tuple[Var, Var, Body] | None:
    """Return the variables of rows and columns, and the statements, of loops over a plane; None for others."""
    if isinstance(s, lir.Reduce):
        if len(s.vars) != PLANE or has_loop(s.body):
            return None
        row, column = s.vars
        return row, column, s.body
    if not isinstance(s, For) or len(s.body) != 1 or not isinstance(s.body[0], For):
        return None
    inner = s.body[0]
    plain = all(f.kind is LoopKind.INDEPENDENT and f.base is None for f in (s, inner))
    return (s.var, inner.var, inner.body) if plain and not has_loop(inner.body) else None


def _rewritten(body: Body, values: Mapping[str, lir.LocalLoad], dropped: set[str]) -> Iterator[lir.Stmt]:
    """Yield statements in which some values are loaded from planes, without the branches that chose them."""
    for s in body:
        if isinstance(s, lir.Let) and s.name in values:
            yield replace(s, value=values[s.name])
        elif dropped.isdisjoint({s.name} if isinstance(s, lir.Accumulator) else names_assigned((s,))):
            yield s


# ---- windows


def _windows(body: Body, row: Var, column: Var, constants: Mapping[str, lir.Constant]) -> list[list[_Read]]:
    """Return the elements that windows read in a loop over a plane, by source and padding."""
    lets = {s.name: s for s in body if isinstance(s, lir.Let)}
    results = _results(body)
    chosen: dict[tuple[_Source, str], list[_Read]] = {}
    plain: dict[_Source, list[_Read]] = {}
    for s in body:
        if isinstance(s, lir.If):
            read = _branch(s, lets, results, row, column)
            if read is not None and read.padding in constants:
                chosen.setdefault((read.source, repr(constants[read.padding or ""])), []).append(read)
        elif isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            source = _source(s, s.value, row, column)
            if source is not None:
                plain.setdefault(source, []).append(_Read(s.name, source, s.value.offset.const))
    # Elements without tests belong to the first of several kinds of padding.
    return [[*reads, *plain.pop(source, ())] for (source, _), reads in chosen.items()]


def _results(body: Body) -> dict[str, str]:
    """Return the values that read accumulators, by the names of those that one branch assigns and one value reads."""
    assigned = Counter(n for s in body for n in names_assigned((s,)))
    read = Counter(s.value.name for s in body if isinstance(s, lir.Let) and isinstance(s.value, lir.Current))
    found: dict[str, str] = {}
    done: set[str] = set()  # what has been assigned so far
    for s in body:
        done |= names_assigned((s,))
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Current):
            name = s.value.name
            if name in done and assigned[name] == read[name] == 1:
                found[name] = s.name
    return found


def _source(s: lir.Let, load: lir.Load, row: Var, column: Var) -> _Source | None:
    """Return what a value is loaded from; None if that depends on the row and the column in another way."""
    offset = load.offset
    along = offset.coefficient(row), offset.coefficient(column)
    rest = offset - ix.of(row) * along[0] - ix.of(column) * along[1] - offset.const
    if min(along) <= 0 or {row, column} & set(rest.variables()):
        return None
    return _Source(load.buffer, rest, *along, s.type)


def _branch(s: lir.If, lets: Mapping[str, lir.Let], results: Mapping[str, str], row: Var, column: Var) -> _Read | None:
    """Return the element that a branch reads if tests of its row and its column hold; None for other branches."""
    if len(s.then) != 2 or len(s.otherwise) != 1:
        return None
    load, then, otherwise = s.then[0], s.then[1], s.otherwise[0]
    if not (
        isinstance(load, lir.Let) and isinstance(load.value, lir.Load) and isinstance(then, lir.Assign)
        and isinstance(otherwise, lir.Assign) and then.name == otherwise.name and then.value == load.name
    ):  # fmt: skip
        return None
    source, result = _source(load, load.value, row, column), results.get(then.name)
    tests = _tests_in(s.condition, lets)
    if source is None or result is None or tests is None:
        return None
    places: dict[Var, _Place] = {}
    for t in tests:
        variables = set(t.value.variables())
        var = row if variables == {row} else column if variables == {column} else None
        if var is None or t.low not in (None, 0) or t.value.terms != ((var, t.value.coefficient(var)),):
            return None
        place = _Place(t.value.coefficient(var), t.value.const, t.low is not None, t.high)
        before = places.get(var)
        if before is not None:
            if (before.step, before.start) != (place.step, place.start):
                return None
            high = place.high if before.high is None else before.high
            place = replace(place, low=place.low or before.low, high=high)
        places[var] = place
    return _Read(
        result, source, load.value.offset.const, places.get(row), places.get(column), otherwise.value, then.name
    )


def _tests_in(condition: str, lets: Mapping[str, lir.Let]) -> list[lir.IndexTest] | None:
    """Return the index tests of which a condition is the conjunction; None for other conditions."""
    let = lets.get(condition)
    if let is None:
        return None
    if isinstance(let.value, lir.IndexTest):
        return [let.value]
    if not isinstance(let.value, lir.Apply) or let.value.op.opcode is not Opcode.AND:
        return None
    parts = [_tests_in(a, lets) for a in let.value.args]
    return None if any(p is None for p in parts) else [t for p in parts for t in p or ()]


# ---- planes


def _plane_of(reads: Sequence[_Read], row: Var, column: Var, constants: Mapping[str, lir.Constant]) -> _Plane | None:
    """Return the plane that windows read; None if it is not known where it is, or not worth a copy."""
    source = reads[0].source
    both = next((r for r in reads if r.row is not None and r.column is not None), None)
    if both is None or len(reads) < LEAST_READ:
        return None
    by_row, by_column = both.row, both.column
    if by_row is None or by_column is None or min(by_row.step, by_column.step) <= 0:
        return None
    if source.along_rows % by_row.step or source.along_columns % by_column.step:
        return None
    strides = source.along_rows // by_row.step, source.along_columns // by_column.step
    base = both.const - strides[0] * by_row.start - strides[1] * by_column.start
    padding = constants[both.padding or ""]
    plane = _Plane("", source, base, *strides, by_column.step, (0, 0), (0, 0), (0, 0), padding)
    places: list[tuple[_Place, _Place]] = []
    for r in reads:
        found = _place_of(r, plane, row, column, (by_row.step, by_column.step))
        if found[0].step != by_row.step or found[1].step != by_column.step or _offset(found, plane) != r.const:
            return None
        places.append(found)
    rows, columns = ([p[d] for p in places] for d in (0, 1))
    bounds = [_bounds(rows, row.extent), _bounds(columns, column.extent)]
    if bounds[0] is None or bounds[1] is None or strides[1] * (bounds[1][2] - 1) >= strides[0]:
        return None
    (top, bottom, height), (left, right, width) = bounds[0], bounds[1]
    plane = replace(plane, rows=(top, bottom), columns=(left, right), inside=(height, width))
    if plane.size * SCALAR_BYTES[source.type] > MAX_BYTES:
        return None
    if plane.size > len(reads) * row.extent * column.extent:
        return None
    return plane


def _offset(places: tuple[_Place, _Place], plane: _Plane) -> int:
    return plane.base + plane.row_stride * places[0].start + plane.column_stride * places[1].start


def _place_of(
    r: _Read, plane: _Plane, row: Var, column: Var, steps: tuple[int, int] | None = None
) -> tuple[_Place, _Place]:
    """Return the row and the column of an element; without tests they follow from its offset."""
    if steps is None:
        steps = r.source.along_rows // plane.row_stride, r.source.along_columns // plane.column_stride
    apart = r.const - plane.base
    if r.row is not None:
        first = r.row
    elif r.column is not None:
        first = _Place(steps[0], (apart - plane.column_stride * r.column.start) // plane.row_stride, False, None)
    else:
        first = _Place(steps[0], (apart + plane.row_stride // 2) // plane.row_stride, False, None)
    if r.column is not None:
        return first, r.column
    return first, _Place(steps[1], (apart - plane.row_stride * first.start) // plane.column_stride, False, None)


def _bounds(places: Sequence[_Place], extent: int) -> tuple[int, int, int] | None:
    """Return the first and the last index, and the number of those inside; None if an index without test is outside."""
    highs = {p.high for p in places if p.high is not None}
    most = [p.most(extent) for p in places]
    if len(highs) > 1:
        return None
    count = 1 + (highs.pop() if highs else max(most))
    if any(p.start < 0 and not p.low for p in places):
        return None
    if any(m >= count and p.high is None for p, m in zip(places, most, strict=True)):
        return None
    return min(p.start for p in places), max(most), count
