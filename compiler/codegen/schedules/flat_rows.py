"""Elementwise loops over short rows as loops over whole blocks of rows, with what all rows share repeated for a block.

A vector loop over the ten elements of a row, to which a bias is added, leaves lanes idle. Rows follow each other in
memory: with the bias of a block of rows in a local array, the loop over all elements of the block has whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.memory import Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_indices
from compiler.codegen.nest.work import is_expensive
from compiler.codegen.schedules.loop_transforms import iterations_from
from compiler.ir.types import PrimitiveType as T

SHORTEST, LIGHT, LONGEST, VECTOR = 3, 23, 63, 16
"""Elements of the shortest row, of the longest one of loops that do little, of the longest one, and of a vector: rows
of whole vectors stay as they are."""
BLOCKS, FEWEST = (64, 32, 16), 1024
"""Rows of a block, the most that fit, and of the shortest loop: what all rows share is repeated once."""
MOST_BYTES = 16 << 10
"""Maximum size of what is repeated, so that it stays in the first-level cache."""


@dataclass(frozen=True)
class _Shared:
    """A row that a loop over rows reads in each iteration: the definition that loads it, and where it begins."""

    let: lir.Let
    buffer: str
    first: int

    @property
    def array(self) -> str:
        return f"{self.let.name}_repeated"


def flatten_rows(body: Body, types: Mapping[str, T]) -> Body:
    """Return a nest, before it is bound, whose elementwise loops over short rows run over the elements of blocks.

    Args:
        body: the statements.
        types: types of the arrays in memory, by name.
    """
    out: list[lir.Stmt] = []
    for s in body:
        found = _shared(s, types)
        out += [s] if found is None or not isinstance(s, For) else _flat(s, found)
    return tuple(out)


def flat_bytes(body: Body, types: Mapping[str, T]) -> int:
    """Return the bytes of the local arrays that `flatten_rows` makes."""
    found = [x for s in body for x in _shared(s, types) or ()]
    return sum(BLOCKS[0] * LONGEST * SCALAR_BYTES[x.let.type] for x in found)


def _shared(s: lir.Stmt, types: Mapping[str, T]) -> list[_Shared] | None:
    """Return what all rows of an elementwise loop over short rows share; None for other loops, or if it is nothing."""
    if not isinstance(s, For) or s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.var.extent < FEWEST:
        return None
    inner = s.body[0]
    if (
        len(s.body) != 1
        or not isinstance(inner, For)
        or inner.kind is not LoopKind.INDEPENDENT
        or inner.base is not None
    ):
        return None
    length = inner.var.extent
    most = LONGEST if _does_much(inner.body, types) else LIGHT
    if not SHORTEST <= length <= most or length % VECTOR == 0:
        return None
    found = []
    for x, offset in _places(inner.body):
        if offset is None:
            return None
        if offset == ix.of(s.var) * length + ix.of(inner.var):
            continue
        if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Load):
            return None
        if offset - ix.of(inner.var) == ix.const(offset.const):
            found.append(_Shared(x, x.value.buffer, offset.const))
        elif offset != ix.const(offset.const):
            return None
    return found if found and _rows_of(found, length) else None


def _rows_of(shared: list[_Shared], length: int) -> int:
    """Return the number of rows of a block; 0 if what is repeated for the smallest one does not fit."""
    row = length * sum(SCALAR_BYTES[x.let.type] for x in shared)
    return next((n for n in BLOCKS if n * row <= MOST_BYTES), 0)


def _does_much(body: Body, types: Mapping[str, T]) -> bool:
    """Check for functions and for elements of other sizes than 32 bits: few of them take as long as a vector."""
    for x in body:
        if is_expensive(x):
            return True
        buffer = x.buffer if isinstance(x, lir.Store) else None
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load):
            buffer = x.value.buffer
        if buffer is not None and types[buffer].bits != 32:
            return True
    return False


def _places(body: Body) -> Iterator[tuple[lir.Stmt, IndexExpr | None]]:
    """Yield the loads and stores with where they are; None for a statement that may be anything else."""
    for x in body:
        if isinstance(x, lir.Store):
            yield x, x.offset
        elif not isinstance(x, lir.Let) or isinstance(x.value, lir.IndexValue | lir.IndexTest | lir.LocalLoad):
            yield x, None
        elif isinstance(x.value, lir.Load):
            yield x, x.value.offset
        elif not isinstance(x.value, lir.Apply | lir.Constant):
            yield x, None


def _flat(s: For, shared: list[_Shared]) -> list[lir.Stmt]:
    """Return the loops that repeat what rows share, the loop over blocks, and one over the rows that remain."""
    (inner,) = s.body
    assert isinstance(inner, For)  # noqa: S101 - `_shared` found one
    n, length = s.var.extent, inner.var.extent
    rows = _rows_of(shared, length)
    size, out = rows * length, list[lir.Stmt]()
    for k, x in enumerate(shared):
        row, column = Var(f"{s.var.name}r{k}", rows), Var(f"{inner.var.name}r{k}", length)
        load = lir.Let(f"{x.let.name}_once", x.let.type, lir.Load(x.buffer, ix.of(column) + x.first))
        store = lir.LocalStore(x.array, ix.of(row) * length + ix.of(column), load.name)
        once = For(column, LoopKind.INDEPENDENT, (load, store))
        out.append(lir.LocalArray(x.array, x.let.type, size, Scope.KERNEL))
        out.append(For(row, LoopKind.INDEPENDENT, (once,)))
    block, element = Var(f"{s.var.name}f", n // rows), Var(f"{inner.var.name}f", size)
    arrays = {x.let.name: x.array for x in shared}
    body: list[lir.Stmt] = []
    for y in inner.body:
        if isinstance(y, lir.Let) and y.name in arrays:
            body.append(replace(y, value=lir.LocalLoad(arrays[y.name], ix.of(element))))
        else:
            body += map_indices((y,), lambda i: i if i == ix.const(i.const) else ix.of(block) * size + ix.of(element))
    out.append(For(block, LoopKind.INDEPENDENT, (For(element, LoopKind.INDEPENDENT, tuple(body)),)))
    return [*out, *iterations_from(s, n - n % rows)]
