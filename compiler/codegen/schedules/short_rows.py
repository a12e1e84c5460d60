"""Loops over short rows in stages: what concerns whole rows is computed for many rows at once.

A loop over short rows computes values of whole rows, such as a maximum of ten elements, one row after the other between
short vector loops. Divided into blocks of rows, one vector loop computes such values of all rows of a block, and a
second one all elements of the block if they are adjacent. Local arrays hold the values in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import indices_in, map_bodies, map_indices, names_of, names_used
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.stages import MAX_ARRAYS, is_long, is_long_value, values_to_pass
from compiler.ir.types import PrimitiveType as T

ROWS, MIN_ROWS = 64, 16
"""Rows of a block, and of the shortest loop over rows that is divided."""
DIVISION_BYTES = 1 << 15
"""Maximum size of the local arrays for which one loop is divided."""
MOST_ROWS = 1024
"""Rows of the longest reduction that is divided; their values are in local arrays all at once."""
MIN_WORK = 16
"""Statements of a row for which a stage of its own is worth its loads and stores."""
LANES = 16
"""Elements of a vector, for the comparison of what is computed in vectors and what is not."""
FLAT_ROW, FLAT_WORK = 64, 8
"""Elements below which the rows of a block become one loop, and the fewest statements of an element for that."""


def split_rows(body: Body) -> Body:
    """Return a nest, before it is bound, in which loops over short rows are divided where that saves work."""
    out: list[lir.Stmt] = []
    for s in body:
        inner = map_bodies(s, split_rows)
        out += _split_reduce(inner) if isinstance(inner, lir.Reduce) else [_split_results(_split(inner))]
    return tuple(out)


def _needed(
    lets: Sequence[lir.Let], passed: Sequence[lir.Let], used: Sequence[lir.Stmt]
) -> tuple[list[lir.Let], list[lir.Let]]:
    """Return those of the passed values that statements need, and the other values that they need besides."""
    kept = {x.name for x in passed}
    names, own = set(names_used(tuple(used))), list[lir.Let]()
    for x in reversed(lets):
        if x.name in names and x.name not in kept:
            own.append(x)
            names.update(names_of(x))
    return [x for x in passed if x.name in names], own[::-1]


def _split(s: lir.Stmt) -> lir.Stmt:
    if not isinstance(s, For) or s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.var.extent < MIN_ROWS:
        return s
    lets = tuple(x for x in s.body if isinstance(x, lir.Let))
    loops = [x for x in s.body if isinstance(x, For)]
    # The elements load cheap values again, so nothing is stored before them: it may take over an argument's memory.
    if len(loops) != 1 or len(lets) + 1 != len(s.body) or not _is_simple(loops[0]):
        return s
    saves = work_of(lets) >= MIN_WORK and 2 * work_of(lets) >= _vector_work(loops[0])
    if not saves and not _saves_functions(loops[0], s.var):
        return s
    names = values_to_pass(lets, set(names_used((loops[0],))))
    passed = tuple(x for x in lets if x.name in names)
    if not passed or len(passed) > MAX_ARRAYS or _bytes_of(passed, ROWS) > DIVISION_BYTES:
        return s
    return _divided(s.var, lets, passed, loops[0])


def _split_results(s: lir.Stmt) -> lir.Stmt:
    """Return a loop over rows that are reduced with what follows each reduction computed for many rows at once."""
    if not isinstance(s, For) or s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.var.extent < MIN_ROWS:
        return s
    reductions = [n for n, x in enumerate(s.body) if isinstance(x, lir.Reduce)]
    if not reductions:
        return s
    head, tail = s.body[: reductions[-1] + 1], s.body[reductions[-1] + 1 :]
    lets = [x for x in tail if isinstance(x, lir.Let)]
    if not all(isinstance(x, lir.Let | lir.Reduce) for x in head) or len(lets) == len(tail):
        return s
    if not all(isinstance(x, lir.Let | lir.Store) for x in tail):
        return s
    if work_of(tail) < MIN_WORK and not any(map(is_long_value, lets)):
        return s
    results = {r.name: r.type for x in head if isinstance(x, lir.Reduce) for r in x.reductions}
    before = {x.name: x for x in head if isinstance(x, lir.Let)}
    again: dict[str, lir.Let] = {}
    passed: dict[str, T] = {}

    def need(name: str) -> None:
        let = before.get(name)
        if name in results:
            passed[name] = results[name]
        elif let is not None and name not in again and name not in passed:
            if isinstance(let.value, lir.Apply):
                passed[name] = let.type
            else:
                for operand in names_of(let):
                    need(operand)
                again[name] = let

    for name in names_used(tail):
        need(name)
    if not passed or len(passed) > MAX_ARRAYS or sum(SCALAR_BYTES[t] for t in passed.values()) * ROWS > DIVISION_BYTES:
        return s
    over, at = Blocks(s.var).over, ix.of(Blocks(s.var).at)
    arrays = [lir.LocalArray(f"{name}_of", t, min(s.var.extent, ROWS)) for name, t in passed.items()]
    stores = [lir.LocalStore(f"{name}_of", at, name) for name in passed]
    loads = [lir.Let(name, t, lir.LocalLoad(f"{name}_of", at)) for name, t in passed.items()]
    loops = (over("h", (*head, *stores)), over("0", (*loads, *again.values(), *tail)))
    return For(Blocks(s.var).block, LoopKind.INDEPENDENT, (*arrays, *loops))


def _split_reduce(s: lir.Reduce) -> list[lir.Stmt]:
    """Return a reduction over several dimensions after a loop that computes what does not depend on the last one."""
    *outer, last = s.vars
    rows = math.prod(v.extent for v in outer)
    if not MIN_ROWS <= rows <= MOST_ROWS or last.extent >= FLAT_ROW:
        return [s]
    body = [x for x in s.body if isinstance(x, lir.Let | lir.Store)]
    if len(body) != len(s.body):
        return [s]
    lets = [x for x in body if isinstance(x, lir.Let)]
    inside = {last.name}
    for x in lets:
        if not inside.isdisjoint(names_of(x)):
            inside.add(x.name)
    head = tuple(x for x in lets if x.name not in inside)
    # A kernel reads what a reduction overwrites only to compute that element (`stored_values`): never before the loop.
    elements = tuple(x for x in body if isinstance(x, lir.Store) or x.name in inside)
    used = set(names_used(elements)) | {r.value for r in s.reductions}
    names = values_to_pass(head, used)
    passed = [x for x in head if x.name in names]
    if not passed or work_of(head) < MIN_WORK or _bytes_of(passed, rows) > DIVISION_BYTES:
        return [s]
    at = ix.linearize(tuple(map(ix.of, outer)), tuple(v.extent for v in outer))
    fresh = {v: Var(f"{v.name}h", v.extent) for v in outer}
    nest: Body = (*head, *(lir.LocalStore(f"{x.name}_rows", at, x.name) for x in passed))
    nest = map_indices(nest, lambda i: i.substitute({v: ix.of(f) for v, f in fresh.items()}))
    for v in reversed(outer):
        nest = (For(fresh[v], LoopKind.INDEPENDENT, nest),)
    again = _needed(head, passed, elements)[1]
    loads = [lir.Let(x.name, x.type, lir.LocalLoad(f"{x.name}_rows", at)) for x in passed]
    arrays = [lir.LocalArray(f"{x.name}_rows", x.type, rows) for x in passed]
    values = [x for x in (*loads, *again) if x.name in used]
    room = DIVISION_BYTES - _bytes_of(passed, rows)
    is_small = _bytes_of(values, rows * last.extent) <= room
    if len(outer) == 1 and is_small and _may_be_flat(elements, values, outer[0], last, room):
        return [*arrays, *nest, *_flat_reduce(replace(s, body=elements), values, (*loads, *again))]
    return [*arrays, *nest, replace(s, body=(*loads, *again, *elements))]


def _flat_reduce(s: lir.Reduce, values: Sequence[lir.Let], before: Body) -> list[lir.Stmt]:
    """Return a reduction over rows as one over all elements.

    Args:
        s: the reduction, whose body computes an element.
        values: the values of a row that an element needs, which become arrays with one value per element.
        before: the statements that define them.
    """
    row, element = s.vars
    spread = {x.name: lir.LocalArray(f"{x.name}_spread", x.type, row.extent * element.extent) for x in values}
    here, copy = Var(f"{row.name}s", row.extent), Var(f"{element.name}s", element.extent)
    to = ix.of(here) * element.extent + ix.of(copy)
    copies = tuple(lir.LocalStore(spread[x.name].name, to, x.name) for x in values)
    of_row = map_indices(before, lambda i: i.substitute({row: ix.of(here)}))
    spreading = For(here, LoopKind.INDEPENDENT, (*of_row, For(copy, LoopKind.INDEPENDENT, copies)))
    flat = Var(f"{element.name}f", row.extent * element.extent)
    loads = tuple(lir.Let(x.name, x.type, lir.LocalLoad(spread[x.name].name, ix.of(flat))) for x in values)
    body = map_indices(s.body, lambda i: i.substitute({row: ix.const(0), element: ix.of(flat)}))
    return [*spread.values(), spreading, replace(s, vars=(flat,), body=(*loads, *body))]


def _is_simple(s: For) -> bool:
    plain = s.kind is LoopKind.INDEPENDENT and s.base is None and not s.combined
    return plain and all(isinstance(x, lir.Let | lir.Store) for x in s.body)


def _vector_work(s: For) -> int:
    return -(-s.var.extent // LANES) * work_of(s.body)


def _bytes_of(values: Sequence[lir.Let], elements: int) -> int:
    return sum(SCALAR_BYTES[x.type] for x in values) * elements


@dataclass(frozen=True)
class Blocks:
    """The blocks into which a loop over rows is divided.

    Attributes:
        row: the variable of the rows.
        most: maximum number of rows of a block.
    """

    row: Var
    most: int = ROWS

    @property
    def size(self) -> int:
        """Number of rows of a block."""
        return min(self.row.extent, self.most)

    @property
    def block(self) -> Var:
        """The variable of the blocks."""
        return Var(f"{self.row.name}g", -(-self.row.extent // self.size))

    @property
    def at(self) -> Var:
        """Stands for the position in its block of a row."""
        return Var(f"{self.row.name}at", self.size)

    @property
    def start(self) -> IndexExpr:
        """The first row of the block."""
        return ix.of(self.block) * self.size

    @property
    def whole(self) -> bool:
        """Whether the last block is as large as the others."""
        return self.row.extent % self.size == 0

    def over(self, number: str, body: Body) -> For:
        """Return a loop over the rows of a block; in `body`, the variable of the rows stands for the row."""
        row = Var(f"{self.row.name}g{number}", self.size)
        at: dict[IndexSymbol, IndexExpr] = {self.row: self.start + ix.of(row), self.at: ix.of(row)}
        here = map_indices(body, lambda i: i.substitute(at))
        base, limit = (None, None) if self.whole else (self.start, self.row.extent)
        return For(row, LoopKind.INDEPENDENT, here, base=base, limit=limit)


def _divided(v: Var, lets: tuple[lir.Let, ...], passed: tuple[lir.Let, ...], loop: For) -> For:
    """Return a loop over rows as a loop over blocks of rows.

    Args:
        v: the variable of the rows.
        lets: the values of a row.
        passed: those that the elements need and that are not cheap to compute again.
        loop: the loop over the elements of a row.
    """
    blocks = Blocks(v)
    size, block, start, whole, at, over = (
        blocks.size, blocks.block, blocks.start, blocks.whole, blocks.at, blocks.over
    )  # fmt: skip
    arrays = {x.name: lir.LocalArray(f"{x.name}_rows", x.type, size) for x in passed}
    stores = tuple(lir.LocalStore(arrays[x.name].name, ix.of(at), x.name) for x in passed)
    loaded, own = _needed(lets, passed, (loop,))
    before = (*(lir.Let(x.name, x.type, lir.LocalLoad(arrays[x.name].name, ix.of(at))) for x in loaded), *own)
    used = set(names_used((loop,)))
    values = [x for x in before if x.name in used]
    extent = loop.var.extent
    room = DIVISION_BYTES - _bytes_of(passed, size)
    out: list[lir.Stmt] = [*arrays.values(), over("h", (*lets, *stores))]
    if not _may_be_flat(loop.body, values, v, loop.var, room):
        return For(block, LoopKind.INDEPENDENT, (*out, over("0", (*before, loop))))
    element, flat = Var(f"{loop.var.name}e", extent), Var(f"{loop.var.name}f", size * extent)
    spread = {x.name: lir.LocalArray(f"{x.name}_spread", x.type, size * extent) for x in values}
    to = ix.of(at) * extent + ix.of(element)
    copies = tuple(lir.LocalStore(spread[x.name].name, to, x.name) for x in values)
    loads = tuple(lir.Let(x.name, x.type, lir.LocalLoad(spread[x.name].name, ix.of(flat))) for x in values)
    body = map_indices(loop.body, lambda i: i.substitute({v: start, loop.var: ix.of(flat)}))
    base, limit = (None, None) if whole else (start * extent, v.extent * extent)
    elements = For(flat, LoopKind.INDEPENDENT, (*loads, *body), base=base, limit=limit)
    spreading = over("0", (*before, For(element, LoopKind.INDEPENDENT, copies)))
    return For(block, LoopKind.INDEPENDENT, (*out, *spread.values(), spreading, elements))


def _may_be_flat(body: Body, values: Sequence[lir.Let], row: Var, element: Var, room: int) -> bool:
    """Check whether one loop over the elements of many rows is faster, with the values of a row in arrays.

    Args:
        body: the statements of an element.
        values: those of a row that it needs.
        row: the variable of the rows.
        element: that of the elements of a row.
        room: maximum size of the arrays, in bytes.
    """
    if any(x.type is T.PRED for x in values) or not _is_flat(body, row, element):
        return False
    return _bytes_of(values, min(row.extent, ROWS) * element.extent) <= room


def _is_flat(body: Body, row: Var, element: Var) -> bool:
    """Check whether the elements of rows are adjacent, and whether one loop over those of many rows is faster."""
    n = element.extent
    if n >= FLAT_ROW or n % LANES == 0 or work_of(body) < FLAT_WORK:
        return False
    return all(_is_linear(i, row, element) for i in indices_in(body))


def _saves_functions(s: For, row: Var) -> bool:
    """Check whether one loop over the elements of many rows computes functions in fewer vectors than one per row."""
    long = any(isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and is_long(x.value.op.opcode) for x in s.body)
    return long and s.var.extent < LANES and _is_flat(s.body, row, s.var)


def _is_linear(i: IndexExpr, row: Var, element: Var) -> bool:
    step = i.coefficient(element)
    others = i - ix.of(element) * step - ix.of(row) * (step * element.extent)
    return not {row, element} & set(others.variables())
