"""Short rows in columns: blocks of rows of a few elements are transposed, so that a vector holds one element of many.

A vector loop over rows of ten elements loads elements that are ten apart, for which a processor has no instruction; one
over the elements of a row leaves lanes idle, and combines those in use at its end. In a block that has been transposed
into a local array, the elements with one number of adjacent rows are adjacent, and the loop over rows is one over
columns. Rows that are results are transposed back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.analysis.kernel_summary import ROW_TYPES, SHORT_ROWS
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, map_indices
from compiler.codegen.nest.work import is_expensive
from compiler.codegen.schedules.loop_transforms import iterations_from
from compiler.codegen.schedules.row_cache import EXPENSIVE, cache_rows
from compiler.codegen.schedules.short_loops import Copies
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.support.processor import AVX512, VectorUnit

SHORTEST, WRITTEN_OUT, LONGEST = min(SHORT_ROWS), 16, 31
"""Elements of the shortest row, of the longest one whose reductions have no loops, and of the longest one."""
LONGEST_BYTES = 63
"""Elements of the longest row of bytes."""
LONGEST_MAXIMUM = 24
"""Elements from which on a single extreme of each row is faster along the row."""
STRIP = 4
"""Elements of which shuffles put several rows together; those of shorter rows are copied one by one."""
EVEN: dict[int, dict[int, tuple[int, ...]]] = {
    64: dict.fromkeys((1, 2, 4), (8, 16, 24)),
    32: {1: (8,), 2: (), 4: (24,)},
}
"""Rows that fill halves of vectors and are reduced as they are, by the bytes of a vector and of an element."""
WHOLE = 8
"""Rows of a multiple of so many elements are whole vectors: loops that only store them are faster along the rows."""
TILES = {64: {1: 16, 2: 16}, 32: {1: 16, 2: 8}}
"""Edges of the tiles in which narrow elements are transposed as they are, by the same: what is shorter is converted."""
SORTS = frozenset({"sort", "top-k"})
"""Kinds of kernels that sort short rows as scalars; rows of any of these lengths are faster transposed."""
BLOCKS = (64, 48, 32, 16)
"""Rows of a block."""
MOST_ARRAYS, MOST_ELEMENTS = 3, 96
"""Maximum number of arrays whose rows are transposed, unless they are sorted, and of elements of one row of each array,
so that all blocks stay in the first-level cache."""
NARROW = {T.BF16: T.F32, T.F16: T.F32, T.PRED: T.S32, T.S8: T.S32, T.U8: T.S32, T.S16: T.S32, T.U16: T.S32}
"""Types of less than 32 bits, with those to which whole blocks are converted before they are transposed."""


@dataclass(frozen=True)
class _Rows:
    """The rows of an array in a loop: how many elements each has, and whether the loop stores them."""

    buffer: str
    length: int
    is_result: bool

    @property
    def array(self) -> str:
        return f"{self.buffer}_{'results' if self.is_result else 'rows'}"


def transpose_rows(
    body: Body, types: Mapping[str, T], level: int, unit: VectorUnit = AVX512, is_sort: bool = False
) -> Body:
    """Return a nest, before it is bound, whose loops over short rows run over blocks of transposed rows.

    Args:
        body: the statements.
        types: types of the arrays in memory, by name.
        level: the `cache` of the schedule.
        unit: the vectors of the processor.
        is_sort: whether the elements of each row are sorted, as scalars.
    """
    out: list[lir.Stmt] = []
    for s in body:
        found = _rows_of(s, types, unit, is_sort) if isinstance(s, For) else None
        out += [s] if found is None or not isinstance(s, For) else _in_blocks(s, found, types, unit, level)
    return tuple(out)


def _rows_of(s: For, types: Mapping[str, T], unit: VectorUnit, is_sort: bool) -> list[_Rows] | None:
    """Return the short rows that a loop reads and stores; None if it does anything else with them."""
    if s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.var.extent < BLOCKS[-1]:
        return None
    if not all(_is_flat(x) for x in s.body):
        return None
    reads: dict[str, _Rows] = {}
    stores: dict[str, list[tuple[IndexExpr, tuple[Var, ...]]]] = {}
    for x, vars_ in _statements(s.body):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load):
            buffer, offset = x.value.buffer, x.value.offset
        elif isinstance(x, lir.Store):
            buffer, offset = x.buffer, x.offset
        else:
            continue
        length = offset.coefficient(s.var)
        rest = offset - ix.of(s.var) * length
        if s.var in rest.variables():
            return None
        if not length or length == 1:
            continue
        low, high = _range(rest, vars_)
        known = ROW_TYPES if isinstance(x, lir.Store) else ROW_TYPES | NARROW.keys()
        longest = LONGEST_BYTES if buffer in types and types[buffer].byte_size == 1 else LONGEST
        if types.get(buffer) not in known or length > longest or not 0 <= low <= high < length:
            return None
        is_result = isinstance(x, lir.Store)
        if is_result:
            stores.setdefault(buffer, []).append((rest, vars_))
        if reads.setdefault(buffer, _Rows(buffer, length, is_result)) != _Rows(buffer, length, is_result):
            return None
    if not reads or sum(r.length for r in reads.values()) > MOST_ELEMENTS or (len(reads) > MOST_ARRAYS and not is_sort):
        return None
    if not all(_are_whole(found, reads[buffer].length) for buffer, found in stores.items()):
        return None
    rows = list(reads.values())
    is_faster = max(r.length for r in rows) >= STRIP if is_sort else _is_worthwhile(s, rows, types, unit)
    return rows if is_faster and _reads_rows(s, reads) else None


def _reads_rows(s: For, rows: Mapping[str, _Rows]) -> bool:
    """Check whether most elements of each row are read, and some outside of loops that compute each on its own."""
    places: dict[str, set[int]] = {name: set() for name, r in rows.items() if not r.is_result}
    outside: dict[str, set[int]] = {name: set() for name in places}
    for x, vars_ in _statements(s.body):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and x.value.offset.coefficient(s.var) > 1:
            rest = x.value.offset - ix.of(s.var) * x.value.offset.coefficient(s.var)
            low, high = _range(rest, vars_)
            places[x.value.buffer].update(range(low, high + 1))
            outside[x.value.buffer].update(() if vars_ else (low,))
    if not places or any(2 * len(found) <= rows[name].length for name, found in places.items()):
        return False
    is_reduced = any(isinstance(x, lir.Reduce) for x in s.body)
    return is_reduced or any(2 * len(found) > rows[name].length for name, found in outside.items())


def _is_worthwhile(s: For, rows: Sequence[_Rows], types: Mapping[str, T], unit: VectorUnit) -> bool:
    """Check whether a loop over rows is faster over blocks of transposed rows.

    Longer rows are reduced faster as they are, unless that is done several times, or functions and divisions of the
    elements follow, which take as long for a few elements that remain over as for a vector.
    """
    reductions = [x for x in s.body if isinstance(x, lir.Reduce)]
    is_costly = any(is_expensive(x) for f in s.body if isinstance(f, For) for x in f.body)
    longest, sizes = max(r.length for r in rows), {types[r.buffer].byte_size for r in rows}
    if longest > WRITTEN_OUT and len(reductions) < 2 and not is_costly:
        combiners = {r.combiner for x in reductions for r in x.reductions}
        if not combiners or any(isinstance(x, For) for x in s.body):
            return False
        if 1 in sizes:  # a vector has more elements than such a row
            return True
        if combiners <= {Opcode.AND, Opcode.OR}:
            return True
        if not combiners <= {Opcode.MAXIMUM, Opcode.MINIMUM} or longest >= LONGEST_MAXIMUM:
            return False
    even = EVEN[max(unit.size, 32)]

    def gains(r: _Rows) -> bool:
        return r.length not in even[types[r.buffer].byte_size] and not (r.is_result and r.length % WHOLE == 0)

    return any(r.length >= SHORTEST and gains(r) for r in rows)


def _is_flat(s: lir.Stmt) -> bool:
    """Check for a statement on a row: a value, a store, or a loop of these over the elements."""
    if isinstance(s, lir.Reduce):
        return all(isinstance(x, lir.Let) for x in s.body)
    if isinstance(s, For):
        simple = all(isinstance(x, lir.Let | lir.Store) for x in s.body)
        return simple and s.kind is LoopKind.INDEPENDENT and s.base is None
    return isinstance(s, lir.Let | lir.Store)


def _statements(body: Body) -> Iterator[tuple[lir.Stmt, tuple[Var, ...]]]:
    """Yield the values and stores of a row, with the variables of the loop around each."""
    for s in body:
        if isinstance(s, lir.Reduce | For):
            yield from ((x, s.vars if isinstance(s, lir.Reduce) else (s.var,)) for x in s.body)
        else:
            yield s, ()


def _range(offset: IndexExpr, vars_: tuple[Var, ...]) -> tuple[int, int]:
    """Return the least and the greatest value of an index; an empty range if it depends on anything but variables."""
    low = high = offset.const
    rest = offset - ix.const(offset.const)
    for v in vars_:
        step = offset.coefficient(v)
        rest -= ix.of(v) * step
        low, high = low + min(0, step * (v.extent - 1)), high + max(0, step * (v.extent - 1))
    return (low, high) if rest == ix.const(0) else (0, -1)


def _are_whole(stores: Sequence[tuple[IndexExpr, tuple[Var, ...]]], length: int) -> bool:
    """Check whether stores write each element of a row once."""
    places: list[int] = []
    for offset, vars_ in stores:
        if not vars_:
            places.append(offset.const)
        elif len(vars_) == 1 and offset.coefficient(vars_[0]) == 1:
            places += range(offset.const, offset.const + vars_[0].extent)
        else:
            return False
    return sorted(places) == list(range(length))


def _in_blocks(s: For, rows: Sequence[_Rows], types: Mapping[str, T], unit: VectorUnit, level: int) -> list[lir.Stmt]:
    """Return a loop over blocks of rows, and one over the rows that remain."""
    n = s.var.extent
    fitting = [b for b in BLOCKS if b <= n]
    has_narrow = any(types[b] in NARROW for b in (*(r.buffer for r in rows), *_stored(s.body)))
    size = fitting[0] if has_narrow else min(fitting, key=lambda b: (n % b, -b))
    block, lane = Var(f"{s.var.name}s", n // size), Var(f"{s.var.name}z", size)
    at = ix.of(block) * size + ix.of(lane)
    arrays, before, after = list[lir.LocalArray](), list[lir.Stmt](), list[lir.Stmt]()
    for r in rows:
        t, begin = NARROW.get(types[r.buffer], types[r.buffer]), ix.of(block) * (size * r.length)
        is_wide = types[r.buffer] not in NARROW or r.length >= TILES[max(unit.size, 32)][types[r.buffer].byte_size]
        if is_wide and not t.is_float:
            t = types[r.buffer]
        arrays.append(lir.LocalArray(r.array, t, r.length * size))
        if r.is_result:
            after.append(lir.StoreTransposed(r.buffer, begin, r.length, r.array, size))
            continue
        source = r.buffer
        if not is_wide:
            source = f"{r.array}_wide"
            arrays.append(lir.LocalArray(source, t, r.length * size))
            before.append(_widened(r, begin, source, size, types[r.buffer]))
            begin = ix.const(0)
        before.append(lir.TransposeTile(r.array, source, begin, r.length, size, height=r.length, pitch=size))
    known = {r.buffer: r for r in rows}

    def place(offset: IndexExpr) -> IndexExpr:
        return (offset - ix.of(s.var) * offset.coefficient(s.var)) * size + ix.of(lane)

    def local(x: lir.Stmt) -> lir.Stmt:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and x.value.offset.coefficient(s.var) > 1:
            return replace(x, value=lir.LocalLoad(known[x.value.buffer].array, place(x.value.offset)))
        if isinstance(x, lir.Store) and x.offset.coefficient(s.var) > 1:
            return lir.LocalStore(known[x.buffer].array, place(x.offset), x.value)
        return map_bodies(x, lambda inner: tuple(map(local, inner)))

    inside = map_indices(tuple(map(local, s.body)), lambda i: i.substitute({s.var: at}))
    if any(isinstance(x, lir.Reduce) for x in inside):
        kept, inside = _with_kept_values(inside, lane, min(level, EXPENSIVE))
        arrays += kept
    else:
        inside = _written_out(inside)
    columns = For(lane, LoopKind.INDEPENDENT, inside)
    return [For(block, LoopKind.INDEPENDENT, (*arrays, *before, columns, *after)), *iterations_from(s, n - n % size)]


def _stored(body: Body) -> Iterator[str]:
    """Yield the arrays in memory that statements store to."""
    return (x.buffer for x, _ in _statements(body) if isinstance(x, lir.Store))


def _widened(r: _Rows, begin: IndexExpr, array: str, size: int, t: T) -> For:
    """Return a loop that copies a block of rows of narrow elements into an array of wide ones."""
    element = Var(f"{array}_e", r.length * size)
    value = lir.Let(f"{array}_v", t if NARROW[t] is T.S32 else T.F32, lir.Load(r.buffer, begin + ix.of(element)))
    return For(element, LoopKind.INDEPENDENT, (value, lir.LocalStore(array, ix.of(element), value.name)))


def _with_kept_values(body: Body, lane: Var, level: int) -> tuple[list[lir.LocalArray], Body]:
    """Return arrays of what several loops over a row compute, for all rows of a block, and the statements."""
    body = cache_rows(body, level)
    arrays = [x for x in body if isinstance(x, lir.LocalArray)]
    names = {x.name for x in arrays}

    def placed(x: lir.Stmt) -> lir.Stmt:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.LocalLoad) and x.value.array in names:
            return replace(x, value=replace(x.value, offset=x.value.offset * lane.extent + ix.of(lane)))
        if isinstance(x, lir.LocalStore) and x.array in names:
            return replace(x, offset=x.offset * lane.extent + ix.of(lane))
        return map_bodies(x, lambda inner: tuple(map(placed, inner)))

    kept = [replace(x, size=x.size * lane.extent) for x in arrays]
    return kept, tuple(placed(x) for x in body if not isinstance(x, lir.LocalArray))


def _written_out(body: Body) -> Body:
    """Return statements with the loops over the elements of a row written out; equal values are computed once."""
    out: list[lir.Stmt] = []
    known: dict[tuple[object, ...], str] = {}
    names: dict[str, str] = {}
    for s in body:
        copies = Copies(s.var if isinstance(s, For) else Var("", 1), _known=known)
        for own in copies.names:
            own.update(names)
        out += copies.of(s.body if isinstance(s, For) else (s,))
        if isinstance(s, lir.Let):
            names[s.name] = copies.names[0][s.name]
    return tuple(out)
