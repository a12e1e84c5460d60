"""Loops over repeated rows or elements become nests without divisions.

`x[i % 8]` and `x[i / 8]` in a loop over i, from a row that is repeated or elements that each are, are vectors of
divisions and gathers. As a nest over i = 8 * row + column, the inner loop reads adjacent elements, or one; for a few
columns its iterations are written out, and the loop over rows runs in vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Quotient, Remainder, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import indices_in, map_bodies, map_indices, walk
from compiler.codegen.nest.work import is_expensive, work_of
from compiler.codegen.schedules.few_elements import MOST_WORK
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.codegen.schedules.short_loops import Copies

__all__ = ["divide_repeats"]

SHORTEST_ROW = 8
"""Minimum number of columns that are a loop of their own: half a vector."""
LANES = 16
"""Elements of a vector, for the comparison of loops that have elements left over."""
DIVISION_WORK = 4
"""Statements that take as long as a division and the load from what it yields, in a vector."""
LEAST_ROWS = 2
"""Minimum number of rows, and of vectors of rows if columns are written out."""


def divide_repeats(body: Body, short: int) -> Body:
    """Return a nest, before it is bound, in which loops over repeated rows or elements are divided.

    Args:
        body: the statements.
        short: maximum number of columns that are written out.
    """
    return tuple(_divided(map_bodies(s, lambda inner: divide_repeats(inner, short)), short) for s in body)


def _divided(s: lir.Stmt, short: int) -> lir.Stmt:
    if not isinstance(s, For) or s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.combined:
        return s
    columns = 0 if has_loop(s.body) else _columns_of(s)
    if not columns:
        return s
    row, column = Var(f"{s.var.name}r", s.var.extent // columns), Var(f"{s.var.name}e", columns)
    at: dict[IndexSymbol, IndexExpr] = {s.var: ix.of(row) * columns + ix.of(column)}
    body = map_indices(s.body, lambda i: i.substitute(at))
    if columns >= SHORTEST_ROW:
        inner = _divided(For(column, LoopKind.INDEPENDENT, body), short)
        return replace(s, var=row, body=(inner,)) if _saves(s, columns) else s
    simple = all(isinstance(x, lir.Let | lir.Store) for x in body) and columns * work_of(body) <= MOST_WORK
    if columns > short or row.extent < LEAST_ROWS * LANES or not simple:
        return s
    return replace(s, var=row, body=tuple(Copies(column).of(body)))


def _columns_of(s: For) -> int:
    """Return the length of the longest rows that are, or whose elements are, repeated; 0 if there are none."""
    found = list(_divisions(s))
    if not found or any(symbol.value != ix.of(s.var) for symbol in found):
        return 0
    longest = max(symbol.divisor for symbol in found)
    whole = s.var.extent % longest == 0 and all(longest % symbol.divisor == 0 for symbol in found)
    return longest if whole and s.var.extent >= LEAST_ROWS * longest else 0


def _divisions(s: For) -> Iterator[Quotient | Remainder]:
    """Yield the quotients and remainders of the variable of a loop, without those of other quotients."""
    work = [symbol for i in indices_in(s.body) for symbol, _ in i.terms]
    while work:
        symbol = work.pop()
        if not isinstance(symbol, Quotient | Remainder) or s.var not in set(symbol.value.variables()):
            continue
        inner = [x for x, _ in symbol.value.terms]
        if any(isinstance(x, Quotient | Remainder) for x in inner):
            work += inner
        if s.var in inner:
            yield symbol


def _saves(s: For, columns: int) -> bool:
    """Check whether the elements that each row leaves over take no longer than the divisions."""
    work = work_of(s.body)
    if not any(map(is_expensive, walk(s.body))):
        return True
    divisions = len(set(_divisions(s)))
    return s.var.extent // columns * _steps(columns) * work <= _steps(s.var.extent) * (work + DIVISION_WORK * divisions)


def _steps(extent: int) -> int:
    """Return the number of vectors and single elements of a loop, given vectors and half vectors."""
    half = LANES // 2
    return extent // LANES + extent % LANES // half + extent % half
