"""Elementwise loops over short rows as loops over blocks of rows, with what rows share or have each repeated.

A vector loop over the ten elements of a row, to which a bias is added, leaves lanes idle. Rows follow each other in
memory: with the bias of a block of rows in a local array, the loop over all elements of the block has whole vectors. A
value of each row, as the weight of a pixel that has three colours, is repeated for each block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.expressions import index_of
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.memory import Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_indices, names_of, names_used
from compiler.codegen.nest.work import is_expensive
from compiler.codegen.schedules.loop_transforms import has_loop, iterations_from
from compiler.codegen.schedules.stages import is_long
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

SHORTEST, LIGHT, LONGEST, VECTOR = 3, 23, 63, 16
"""Elements of the shortest row, of the longest one of loops that do little, of the longest one, and of a vector: rows
of whole vectors stay as they are."""
BLOCKS, FEWEST, FEWEST_INSIDE, MANY = (64, 32, 16), 1024, 256, 4096
"""Rows of a block, the most that fit, of the shortest loop, of the shortest one inside of another one, and of one
inside that does little and whose rows share something, which is repeated each time that the loop runs."""
FEWEST_OF_FUNCTIONS = 64
"""Rows of the shortest loop over rows of functions that is no part of another loop."""
PERMUTED = 31
"""Elements of the longest row whose value is repeated by permutations of vectors."""
BYTES = 4
"""Size of the elements of rows that fill lanes of vectors as they are."""
MOST_BYTES = 16 << 10
"""Maximum size of what is repeated, so that it stays in the first-level cache."""

_OF_ROWS = (lir.Load, lir.IndexValue, lir.Apply, lir.Constant)
"""Expressions that several rows or elements can compute at once."""


@dataclass(frozen=True)
class _Rows:
    """An elementwise loop over short rows.

    Attributes:
        length: the number of elements of a row.
        columns: the definitions that are the same for all rows, in order.
        shared: those of `columns` that the elements use, and that are not the same for all of them.
        own: what each row defines for its elements, in order, without constants.
        passed: those of `own` that the elements use.
    """

    length: int
    columns: tuple[lir.Let, ...]
    shared: tuple[lir.Let, ...]
    own: tuple[lir.Let, ...]
    passed: tuple[lir.Let, ...]

    @property
    def block(self) -> int:
        """Return the number of rows of a block; 0 if what is repeated for the smallest one does not fit."""
        row = self.length * sum(SCALAR_BYTES[x.type] for x in (*self.shared, *self.passed))
        return next((n for n in BLOCKS if n * row <= MOST_BYTES), 0)


def flatten_rows(body: Body, types: Mapping[str, T]) -> Body:
    """Return a nest, before it is bound, whose elementwise loops over short rows run over the elements of blocks.

    Args:
        body: the statements.
        types: types of the arrays in memory, by name.
    """
    return _flattened(body, types, FEWEST, Scope.KERNEL)


def _flattened(body: Body, types: Mapping[str, T], fewest: int, scope: Scope) -> Body:
    out: list[lir.Stmt] = []
    for s in body:
        found = _rows_of(s, types, fewest)
        if found is not None and isinstance(s, For):
            out += _flat(s, found, scope)
        elif isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and has_loop(s.body):
            out.append(replace(s, body=_flattened(s.body, types, FEWEST_INSIDE, Scope.PRIVATE)))
        else:
            out.append(s)
    return tuple(out)


def _rows_of(s: lir.Stmt, types: Mapping[str, T], fewest: int) -> _Rows | None:
    """Return what an elementwise loop over short rows shares and passes to its elements; None for other loops."""
    if not isinstance(s, For) or s.kind is not LoopKind.INDEPENDENT or s.base is not None:
        return None
    *own, inner = s.body or (None,)
    if not isinstance(inner, For) or inner.kind is not LoopKind.INDEPENDENT or inner.base is not None:
        return None
    length, does_much = inner.var.extent, _does_much(inner.body, types)
    if s.var.extent < (FEWEST_OF_FUNCTIONS if fewest == FEWEST and _only_has_functions(own, inner) else fewest):
        return None
    most = LONGEST if does_much else LIGHT
    if not SHORTEST <= length <= most or length % VECTOR == 0:
        return None
    rows = tuple(x for x in own if isinstance(x, lir.Let) and isinstance(x.value, _OF_ROWS))
    if len(rows) < len(own):
        return None
    rows = tuple(x for x in rows if not isinstance(x.value, lir.Constant))
    columns = _columns(inner, s.var, {x.name for x in rows})
    if columns is None:
        return None
    same = _varying(columns, inner.var)
    used = set(names_used(tuple(x for x in inner.body if not isinstance(x, lir.Let) or x.name not in same)))
    passed = tuple(x for x in rows if x.name in used)
    if not used.intersection(x.name for x in inner.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)):
        return None
    if passed and not _suits_repeating(inner.body, rows, passed, length, types):
        return None
    found = _Rows(length, columns, tuple(x for x in columns if x.name in used & same), rows, passed)
    if found.shared and fewest < FEWEST and not does_much and s.var.extent < MANY:
        return None
    return found if (found.shared or passed) and found.block else None


def _columns(inner: For, row: Var, of_rows: Collection[str]) -> tuple[lir.Let, ...] | None:
    """Return what the elements of a row define that is the same for all rows; None if a loop is not elementwise.

    Args:
        inner: the loop over the elements of a row.
        row: the variable of the loop over rows.
        of_rows: names of the values that each row has.
    """
    here, ours = ix.of(row) * inner.var.extent + ix.of(inner.var), {row, inner.var}
    found, differ = list[lir.Let](), set(of_rows)
    for x in inner.body:
        if isinstance(x, lir.Store):
            if not _is_apart(x.offset - here, ours, differ):
                return None
            continue
        if not isinstance(x, lir.Let) or not isinstance(x.value, _OF_ROWS):
            return None
        place = index_of(x.value)
        if place is None:
            is_same = differ.isdisjoint(names_of(x))
        elif _is_apart(place, {row}, differ):
            is_same = True
        elif _is_apart(place - here, ours, differ) and isinstance(x.value, lir.Load):
            is_same = False
        else:
            return None
        if is_same:
            found.append(x)
        else:
            differ.add(x.name)
    return tuple(found)


def _suits_repeating(
    body: Body, own: Sequence[lir.Let], passed: Sequence[lir.Let], length: int, types: Mapping[str, T]
) -> bool:
    """Check whether repeating what rows pass on takes less time than the idle lanes of rows do."""
    sizes = {types[name].byte_size for name in _arrays(body)}
    if length > PERMUTED:
        return 1 in sizes
    if any(map(is_expensive, body)):
        return True
    if any(x.type.byte_size > BYTES for x in passed):
        return False
    if sizes != {BYTES} or any(x.type.byte_size < BYTES for x in passed):
        return True
    return length < VECTOR // 2 or (length < VECTOR and any(map(is_expensive, own)))


def _arrays(body: Body) -> Iterator[str]:
    """Yield the arrays in memory that statements load and store."""
    for x in body:
        if isinstance(x, lir.Store):
            yield x.buffer
        elif isinstance(x, lir.Let) and isinstance(x.value, lir.Load):
            yield x.value.buffer


def _is_apart(place: IndexExpr, loops: Collection[Var], values: Collection[str]) -> bool:
    """Check whether an index depends on none of these loops and values."""
    return not any(v in loops or v.name in values for v in place.variables())


def _varying(columns: Sequence[lir.Let], column: Var) -> set[str]:
    """Return the names of those definitions that depend on the number of the column."""
    names = {column.name}
    for x in columns:
        if not names.isdisjoint(names_of(x)):
            names.add(x.name)
    return names - {column.name}


def _only_has_functions(own: Sequence[lir.Stmt], inner: For) -> bool:
    """Check for functions of the elements of rows that compute nothing before.

    Vectors of functions take as long for a few elements of a row as for a whole one. A power is computed from the
    logarithm of its base, which a row has in common.
    """
    if any(isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) for x in own):
        return False
    functions = {x.value.op.opcode for x in inner.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)}
    return inner.var.extent < VECTOR and Opcode.POWER not in functions and any(map(is_long, functions))


def _does_much(body: Body, types: Mapping[str, T]) -> bool:
    """Check for functions and for elements of other sizes than 32 bits: few of them take as long as a vector."""
    return any(map(is_expensive, body)) or any(types[name].bits != 8 * BYTES for name in _arrays(body))


def _flat(s: For, rows: _Rows, scope: Scope) -> list[lir.Stmt]:
    """Return the loops that repeat what rows share, the loop over blocks, and one over the rows that remain."""
    *_, inner = s.body
    assert isinstance(inner, For)  # noqa: S101 - `_rows_of` found one
    n, length, count = s.var.extent, rows.length, rows.block
    constants = [x for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Constant)]
    s = replace(s, body=tuple(x for x in s.body if x not in constants))
    size, out = count * length, list[lir.Stmt](constants)
    if rows.shared:
        row, column = Var(f"{s.var.name}r", count), Var(f"{inner.var.name}r", length)
        once = map_indices(rows.columns, lambda i: i.substitute({inner.var: ix.of(column)}))
        stores = [lir.LocalStore(_array(x), ix.of(row) * length + ix.of(column), x.name) for x in rows.shared]
        out += [lir.LocalArray(_array(x), x.type, size, scope) for x in rows.shared]
        out.append(For(row, LoopKind.INDEPENDENT, (For(column, LoopKind.INDEPENDENT, (*once, *stores)),)))
    block, element = Var(f"{s.var.name}f", n // count), Var(f"{inner.var.name}f", size)
    same = _varying(rows.columns, inner.var)
    loads = [lir.Let(x.name, x.type, lir.LocalLoad(_array(x), ix.of(element))) for x in (*rows.shared, *rows.passed)]
    places: dict[IndexSymbol, IndexExpr] = {s.var: ix.const(0), inner.var: ix.of(block) * size + ix.of(element)}
    others = tuple(x for x in inner.body if not isinstance(x, lir.Let) or x.name not in same)
    body = (*loads, *map_indices(others, lambda i: i.substitute(places)))
    blocks = (*_spread(s, rows, block), For(element, LoopKind.INDEPENDENT, body))
    out.append(For(block, LoopKind.INDEPENDENT, blocks))
    return [*out, *iterations_from(s, n - n % count)]


def _spread(s: For, rows: _Rows, block: Var) -> list[lir.Stmt]:
    """Return the statements that compute what each row of a block passes on, and repeat it for its elements."""
    if not rows.passed:
        return []
    row = Var(f"{s.var.name}o", rows.block)
    at = ix.of(block) * rows.block + ix.of(row)
    own = map_indices(rows.own, lambda i: i.substitute({s.var: at}))
    arrays: list[lir.Stmt] = [lir.LocalArray(_array(x), x.type, rows.block * rows.length) for x in rows.passed]
    arrays += [lir.LocalArray(f"{x.name}_rows", x.type, rows.block) for x in rows.passed]
    kept = [lir.LocalStore(f"{x.name}_rows", ix.of(row), x.name) for x in rows.passed]
    out = [*arrays, For(row, LoopKind.INDEPENDENT, (*own, *kept))]
    for k, x in enumerate(rows.passed):
        if rows.block % BLOCKS[0] == 0 and rows.length <= PERMUTED and SCALAR_BYTES[x.type] in (1, 4):
            out.append(lir.RepeatElements(_array(x), f"{x.name}_rows", x.type, rows.length, rows.block))
            continue
        copy, column = Var(f"{s.var.name}p{k}", rows.block), Var(f"{s.var.name}e{k}", rows.length)
        load = lir.Let(x.name, x.type, lir.LocalLoad(f"{x.name}_rows", ix.of(copy)))
        store = lir.LocalStore(_array(x), ix.of(copy) * rows.length + ix.of(column), x.name)
        fill = For(column, LoopKind.INDEPENDENT, (store,))
        out.append(For(copy, LoopKind.INDEPENDENT, (load, fill)))
    return out


def _array(x: lir.Let) -> str:
    return f"{x.name}_repeated"
