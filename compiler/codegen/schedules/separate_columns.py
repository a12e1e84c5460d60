"""Vector loops over rows that read several elements of each row: each column is read by itself.

The C compiler reads neighbouring columns `x[10 * row]` and `x[10 * row + 1]` of many rows as whole vectors, whose
elements it then moves. It can do so for rows of 3 elements, or of a power of two; of loops over other rows it makes no
vectors. If it does not know how far apart two columns are, it gathers each column.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

INTERLEAVED = (2, 3, 4, 8, 16)
"""Lengths of rows that the C compiler deinterleaves."""

LEAST_WORK, EXTREME = 4, 2
"""Least work per element that is gathered: with less, a loop over single rows is faster. For floats, any work above one
operation less suffices, because only comparisons of gathered integers become scalar code. EXTREME is what a maximum or
minimum of floats, which propagates NaN, takes besides the work of another operation."""


def separate_columns(body: Body) -> Body:
    """Return bound statements whose vector loops over rows have column numbers that the C compiler does not know."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    groups = {key: group for key, group in _groups(s).items() if len(group) > 1}
    work, elements = _work(s.body), sum(map(len, groups.values()))
    is_enough = work > (LEAST_WORK - 1) * elements if _has_floats(s.body) else work >= LEAST_WORK * elements
    if not groups or not is_enough:
        return (s,)
    columns = {c for group in groups.values() for c in group if c != min(group)}
    names = {c: Runtime(f"{s.var.name}_column{n}", c, c) for n, c in enumerate(sorted(columns))}

    def hidden(i: IndexExpr, array: str) -> IndexExpr:
        key = _key(i, s.var, array)
        if key not in groups or i.const == min(groups[key]):
            return i
        return i - i.const + ix.of(names[i.const])

    def statement(x: lir.Stmt) -> lir.Stmt:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load):
            return replace(x, value=replace(x.value, offset=hidden(x.value.offset, x.value.buffer)))
        if isinstance(x, lir.Let) and isinstance(x.value, lir.LocalLoad):
            return replace(x, value=replace(x.value, offset=hidden(x.value.offset, x.value.array)))
        if isinstance(x, lir.Store):
            return replace(x, offset=hidden(x.offset, x.buffer))
        if isinstance(x, lir.LocalStore):
            return replace(x, offset=hidden(x.offset, x.array))
        return map_bodies(x, lambda inner: tuple(map(statement, inner)))

    lets = (lir.Let(name.name, T.S32, lir.Opaque(c)) for c, name in names.items())
    return *lets, replace(s, body=tuple(map(statement, s.body)))


def _has_floats(body: Body) -> bool:
    return any(isinstance(s, lir.Let) and s.type.is_float for s in walk(body))


def _work(body: Body) -> int:
    """Return the number of operations of some statements, weighted by what they take."""
    values = (s.value for s in walk(body) if isinstance(s, lir.Let) and s.type.is_float)
    extremes = sum(isinstance(v, lir.Apply) and v.op.opcode in (Opcode.MAXIMUM, Opcode.MINIMUM) for v in values)
    return work_of(body) + EXTREME * extremes


def _groups(s: For) -> dict[Hashable, set[int]]:
    """Return the columns that a loop reads or writes of each array whose rows the C compiler cannot deinterleave."""
    found: dict[Hashable, set[int]] = {}
    for i, array in _accesses(s.body):
        key = _key(i, s.var, array)
        if key is not None:
            found.setdefault(key, set()).add(i.const)
    return found


def _key(i: IndexExpr, row: Var, array: str) -> Hashable | None:
    length = abs(i.coefficient(row))
    if length < 2 or length in INTERLEAVED:
        return None
    return array, i - i.const


def _accesses(body: Body) -> Iterator[tuple[IndexExpr, str]]:
    for s in walk(body):
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            yield s.value.offset, s.value.buffer
        elif isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad):
            yield s.value.offset, s.value.array
        elif isinstance(s, lir.Store):
            yield s.offset, s.buffer
        elif isinstance(s, lir.LocalStore):
            yield s.offset, s.array
