"""Binding of sorts and of selections to the blocks of a GPU: a block orders the elements of a row.

Where there are many short rows, each thread sorts one. A row that fits into the registers of a block is sorted whole.
Of a longer row, of which few positions are needed, the block keeps a list of candidates: those before the last one that
is needed so far. A thread that reads an element computes the reductions on which it depends by itself: the threads of a
block read different elements at a time. Rows without keys are sorted by their comparator, which reads the elements of
each pair from memory or a cache.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.traversal import map_bodies, map_indices, walk
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.cuda_shapes import (
    MAX_THREADS,
    MULTIPROCESSORS,
    WARP,
    ceil_power,
    flat_threads,
    floor_power,
)
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir.types import PrimitiveType as T

LONGEST_COMPARED = 16384
"""Elements of the longest row that a block sorts by a comparator."""
STATIC_SORT = 8192
"""Element numbers that are in static shared memory."""
SHORT_ROW = 16
"""Elements of the longest row that one thread sorts in its registers."""
ENOUGH_ROWS = 2 * MULTIPROCESSORS * WARP
"""Rows from which on threads sort short rows alone: with fewer, a warp for each row waits less."""
MAX_EACH = 32
"""Maximum number of entries in the registers of a thread."""
LONGEST_SORT = 8192
"""Elements of the longest row that a block sorts whole: a word of each is in shared memory."""
LIST, LONGEST_LIST, LONGEST_WIDE_LIST = 2048, 4096, 2048
"""Entries of a list of candidates: by default, and at most of 8 bytes and of more."""
NARROW_BITS, NARROW_ROW = 16, 1 << 16
"""Bits of a key and length of a row whose entries have 4 bytes; other entries have 8, or 12 if their keys have 64
bits."""


def bind_sorts(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return the kernel of a sort or a selection.

    Raises:
        UnsupportedError: a row is too long, or all rows need a reduction of whole arrays.
    """
    if any(isinstance(s, lir.Reduce) for s in kernel.body):
        raise UnsupportedError(
            "a sort has no kernel in this language with a reduction of whole arrays: every block of a GPU would repeat "
            "the reduction"
        )
    body: list[lir.Stmt] = []
    threads = WARP
    for s in kernel.body:
        if isinstance(s, lir.SortByKey):
            loop, threads = _rows(s, schedule)
            body.append(loop)
        elif any(isinstance(x, lir.Sort) for x in walk((s,))):
            loop, threads = _compared_rows(s, schedule)
            body.append(loop)
        else:
            body.append(s)
    return replace(kernel, body=tuple(body), threads=threads)


def _compared_rows(s: lir.Stmt, schedule: Schedule) -> tuple[For, int]:
    """Return the loop over the rows of a sort by a comparator and the number of threads of a block.

    Raises:
        UnsupportedError: rows are too long.
    """
    if isinstance(s, lir.Sort):
        row = For(Var(f"{s.position.name}_row", 1), LoopKind.BLOCK, _compared_row(s))
        return row, _threads_of(s.left.extent, schedule)
    if not isinstance(s, For):
        raise UnsupportedError("a sort inside of branches has no kernel in this language")
    *lets, inner = s.body
    loop, threads = _compared_rows(inner, schedule)
    if not all(isinstance(x, lir.Let) for x in lets):
        raise UnsupportedError("a sort beside other loops has no kernel in this language")
    if isinstance(inner, lir.Sort):
        return For(s.var, LoopKind.BLOCK, (*lets, *loop.body)), threads
    if lets:
        loop = replace(loop, body=(*lets, *loop.body))
    return For(s.var, LoopKind.BLOCK, (loop,)), threads


def _threads_of(n: int, schedule: Schedule) -> int:
    """Return the number of threads that sort a row by a comparator."""
    if n > LONGEST_COMPARED:
        raise UnsupportedError(
            f"a sort of {n} elements by a comparator has no kernel in this language: a block sorts at most "
            f"{LONGEST_COMPARED} elements"
        )
    most = max(WARP, floor_power(schedule.block)) if schedule.block else MAX_THREADS
    return min(most, max(WARP, ceil_power(n) // 2))


def _compared_row(s: lir.Sort) -> Body:
    order, number = f"{s.position.name}_order", f"{s.position.name}_element"
    n = s.left.extent
    size = max(2, ceil_power(n))
    at: dict[IndexSymbol, IndexExpr] = {s.left: ix.of(Runtime(number, 0, n - 1))}
    moved = map_indices(_of_one_thread(s.body), lambda i: i.substitute(at))
    write: Body = (lir.Let(number, T.S32, lir.LocalLoad(order, ix.of(s.position))), *moved)
    return (
        lir.LocalArray(order, T.S32, size, Scope.SHARED if size <= STATIC_SORT else Scope.DYNAMIC),
        lir.OrderCompared(s.left, s.right, _of_one_thread(s.compare), s.before, order, size),
        For(s.position, LoopKind.THREAD, write),
        lir.Barrier(),  # the next row of this block overwrites the order
    )


def _rows(s: lir.SortByKey, schedule: Schedule) -> tuple[For, int]:
    """Return the loop over the rows of a sort and the number of threads of a block."""
    n, k = s.element.extent, s.position.extent
    if n <= SHORT_ROW and s.row.extent >= ENOUGH_ROWS:
        return _short_row(s), flat_threads(s.row.extent, schedule)
    words = words_of(s.type, n)
    capacity = _capacity(n, k, words)
    each = min(MAX_EACH, 1 << max(1, schedule.chains.bit_length() - 1))
    each = max(capacity // MAX_THREADS, min(each, capacity // WARP))
    threads = capacity // each
    ordered = _ordered(s, words, each, threads)
    held = capacity * (words if n > capacity else 1)
    body: Body = (
        lir.LocalArray(ordered.order, T.S32, held, Scope.SHARED),
        ordered,
        For(s.position, LoopKind.THREAD, _written(s, ordered.order)),
        lir.Barrier(),  # the next row of this block overwrites the order
    )
    return For(s.row, LoopKind.BLOCK, body), threads


def _short_row(s: lir.SortByKey) -> For:
    """Return the loop over the rows of a sort of which each thread sorts its own."""
    n, k = s.element.extent, s.position.extent
    ordered = _ordered(s, words_of(s.type, n), n, 1)
    body: Body = (
        lir.LocalArray(ordered.order, T.S32, k, Scope.PRIVATE),
        ordered,
        For(s.position, LoopKind.SERIAL, _written(s, ordered.order), unroll=k),
    )
    return For(s.row, LoopKind.GRID, body)


def _ordered(s: lir.SortByKey, words: int, each: int, threads: int) -> lir.OrderRow:
    """Return the sort of one row by some threads, each of which holds `each` entries of `words` 32-bit words."""
    order, k = f"{s.position.name}_order", s.position.extent
    return lir.OrderRow(s.element, _of_one_thread(s.read), s.key, s.type, s.descending, order, k, words, each, threads)


def _written(s: lir.SortByKey, order: str) -> Body:
    """Return what is done for one position of a row."""
    number = f"{s.position.name}_element"
    at: dict[IndexSymbol, IndexExpr] = {s.element: ix.of(Runtime(number, 0, s.element.extent - 1))}
    moved = map_indices(_of_one_thread(s.body), lambda i: i.substitute(at))
    return (lir.Let(number, T.S32, lir.LocalLoad(order, ix.of(s.position))), *moved)


def _of_one_thread(body: Body) -> Body:
    """Return statements with their reductions as loops that each thread runs by itself."""
    return tuple(x for s in body for x in _reduced(map_bodies(s, _of_one_thread)))


def _reduced(s: lir.Stmt) -> Body:
    if not isinstance(s, lir.Reduce):
        return (s,)
    loop: Body = (*s.body, *accumulators.combine(s))
    for v in reversed(s.vars):
        loop = (For(v, LoopKind.SERIAL, loop),)
    return (*accumulators.start(s), *loop, *accumulators.results(s))


def words_of(t: T, n: int) -> int:
    """Return the number of 32-bit words of the entries of rows of `n` elements with keys of a type."""
    if t.bits > 32:
        return 3
    return 1 if t.bits <= NARROW_BITS and n < NARROW_ROW else 2


def _capacity(n: int, k: int, words: int) -> int:
    """Return the number of entries that a block holds: a power of two."""
    if n <= LONGEST_SORT and n <= 4 * max(k, LIST // 4):
        return max(2 * WARP, ceil_power(n))
    capacity = max(LIST, ceil_power(4 * k))
    longest = LONGEST_WIDE_LIST if words > 2 else LONGEST_LIST
    if n > LONGEST_SORT and k > longest // 2:
        raise UnsupportedError(
            f"an order of {k} of {n} elements has no kernel in this language: a block sorts at most {LONGEST_SORT} "
            f"elements, or keeps {longest // 2} of a longer row"
        )
    if k > longest // 2:
        return ceil_power(n)
    return min(capacity, longest)
