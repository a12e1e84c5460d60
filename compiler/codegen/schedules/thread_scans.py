"""Binding of cumulative reductions to the threads of a GPU.

A row is scanned by a warp if it is short, by a block otherwise. Each warp has a segment of adjacent elements, of which
its threads load adjacent ones, `chains` times: the prefixes within a warp come from shuffles, those of the warps of a
block from shared memory. A block scans longer rows piece by piece.

Adjacent columns are scanned by adjacent threads. Each column is divided into parts, whose totals are combined first,
so that there are enough threads; each of them then scans its own part from the totals of those before.

The order of the combinations depends on the size of the scan and the schedule alone. If the function is more than one
op, each row or column is scanned by one thread, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scan, Scope
from compiler.codegen.nest.scalar_ops import binary, identity_of
from compiler.codegen.nest.traversal import map_indices
from compiler.codegen.schedules.cuda_shapes import MAX_THREADS, MULTIPROCESSORS, WARP
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

SECTOR_COLUMNS = 8
"""Adjacent elements of 4 bytes in a sector, the least that memory delivers."""
BLOCK = 256


def bind_scans(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return the kernel of one cumulative reduction, bound to blocks and threads."""
    body: list[lir.Stmt] = []
    threads = BLOCK
    for s in kernel.body:
        if isinstance(s, Scan):
            found, threads = _bound(s, schedule)
            body += found
        else:
            body.append(s)
    return replace(kernel, body=tuple(body), threads=threads)


def _bound(s: Scan, schedule: Schedule) -> tuple[Body, int]:
    """Return the loops of a scan and the number of threads of a block."""
    if s.combiner is None:
        return _in_order(s), _in_blocks(s.rows[0].extent * s.rows[1].extent, schedule.block or BLOCK)
    simple = _Simple.of(s)
    if s.rows[1].extent >= SECTOR_COLUMNS:
        return _columns(simple, schedule)
    return _rows(simple, schedule)


@dataclass(frozen=True)
class _Simple:
    """A scan by one op.

    Attributes:
        scan: the scan.
        carry: its carry.
        combiner: the op.
        read: statements that compute the value of a step.
        write: statements that use the result of a step.
        again: the statements of `read` whose values `write` uses too.
    """

    scan: Scan
    carry: lir.Carry
    combiner: Opcode
    read: Body
    write: Body
    again: Body

    @staticmethod
    def of(s: Scan) -> _Simple:
        """Return the parts of a scan whose function is one op."""
        (carry,) = s.carries
        if s.combiner is None:
            raise TypeError("the scan is not by one op")
        values = tuple(x for x in s.body if isinstance(x, lir.Let))
        kept = without_dead_code((*values, lir.Assign("_", s.value)))[:-1]
        after = tuple(x for x in s.body if x not in kept and not (isinstance(x, lir.Let) and x.name == carry.next))
        write = without_dead_code(after)
        again = tuple(x for x in without_dead_code((*kept, *write)) if x in kept)
        return _Simple(s, carry, s.combiner, kept, write, again)

    @property
    def type(self) -> T:
        return self.carry.type

    def at(self, body: Body, row: IndexExpr, column: IndexExpr, step: IndexExpr) -> Body:
        """Return statements of a step of one row."""
        s = self.scan
        to: dict[IndexSymbol, IndexExpr] = {s.rows[0]: row, s.rows[1]: column, s.step: step}
        return map_indices(body, lambda i: i.substitute(to))

    def combined(self, name: str, first: str, second: str) -> lir.Let:
        """Return the definition of a name as the combination of two values, the first of earlier steps."""
        return lir.Let(name, self.type, lir.Apply(binary(self.combiner, self.type), (first, second)))

    def identity(self, name: str) -> lir.Let:
        """Return the definition of a name as the identity of the op."""
        return lir.Let(name, self.type, lir.Constant(identity_of(self.combiner, self.type)))

    def name(self, part: str) -> str:
        """Return a name that the scan does not have yet."""
        return f"{self.carry.name}_{part}"


def _in_blocks(threads: int, most: int) -> int:
    """Return the size of blocks of whole warps, at most `most`, of which there are enough for all multiprocessors."""
    return max(WARP, min(most, threads // MULTIPROCESSORS) // WARP * WARP)


# ---- rows


def _rows(x: _Simple, schedule: Schedule) -> tuple[Body, int]:
    outer, inner = x.scan.rows
    steps, rows = x.scan.step.extent, outer.extent * inner.extent
    warps = max(1, (schedule.block or BLOCK) // WARP)
    if steps <= WARP * schedule.chains:
        warps = _in_blocks(rows * WARP, warps * WARP) // WARP
        return _short_rows(x, rows, warps, -(-steps // WARP)), warps * WARP
    if rows < MULTIPROCESSORS:
        warps = MAX_THREADS // WARP
    while warps > 1 and (warps // 2) * WARP * schedule.chains >= steps:
        warps //= 2
    return _long_rows(x, rows, warps, schedule.chains), warps * WARP


def _short_rows(x: _Simple, rows: int, warps: int, each: int) -> Body:
    """Return the scans of rows by a warp each."""
    group = Var(x.name("group"), -(-rows // warps))
    thread = Var(x.name("thread"), warps * WARP)
    row = ix.of(group) * warps + ix.of(thread).floordiv(WARP)
    piece = _Piece(x, row, ix.of(thread).mod(WARP), each, rows, 0)
    body = (*piece.first(), *piece.last(x.carry.start))
    return (For(group, LoopKind.BLOCK, (For(thread, LoopKind.THREAD, body),)),)


def _long_rows(x: _Simple, rows: int, warps: int, each: int) -> Body:
    """Return the scans of rows by a block each, in pieces of `each` elements per thread."""
    row, threads = Var(x.name("row"), rows), warps * WARP
    pieces = Var(x.name("piece"), -(-x.scan.step.extent // (threads * each)))
    thread = Var(x.name("thread"), threads)
    place = ix.of(pieces) * (threads * each) + ix.of(thread).floordiv(WARP) * (WARP * each) + ix.of(thread).mod(WARP)
    piece = _Piece(x, ix.of(row), place, each, rows, 1)
    before, whole, so_far, prefix, now = (x.name(p) for p in ("before", "whole", "so_far", "prefix", "now"))
    body: Body = (
        *piece.first(),
        lir.ScanWarps(before, whole, x.type, x.combiner, piece.total),
        lir.Let(so_far, x.type, lir.Current(now)),
        x.combined(prefix, so_far, before),
        *piece.last(prefix),
        x.combined(x.name("after"), so_far, whole),
        lir.Assign(now, x.name("after")),
    )
    loop: lir.Stmt = For(thread, LoopKind.THREAD, body)
    if pieces.extent > 1:
        loop = For(pieces, LoopKind.SERIAL, (loop,))
    return (For(row, LoopKind.BLOCK, (lir.Accumulator(now, x.type, x.carry.start), loop)),)


@dataclass(frozen=True)
class _Piece:
    """What a thread does for the elements that its warp scans at a time.

    Attributes:
        x: the scan.
        row: number of the row.
        place: step of the first element of the thread; the next ones are a warp apart.
        each: number of its elements.
        rows: number of rows.
        number: distinguishes names.
    """

    x: _Simple
    row: IndexExpr
    place: IndexExpr
    each: int
    rows: int
    number: int

    @property
    def total(self) -> str:
        """Name of the combination of all elements of the warp."""
        return self.x.name("total")

    def first(self) -> Body:
        """Return the statements that load the elements and combine those of the warp up to each of them."""
        x, k, loaded = self.x, Var(self.x.name("k"), self.each), Var(self.x.name("j"), self.each)
        none, value, so_far, here, whole, through, after = (
            x.name(p) for p in ("none", "value", "run", "here", "segment", "through", "next")
        )
        step = self.place + ix.of(loaded) * WARP
        read = x.at(x.read, *self._row(), step)
        load: Body = (
            lir.Accumulator(value, x.type, none),
            *self._guarded(step, (*read, lir.Assign(value, x.scan.value)), "in"),
            lir.Let(x.name("read"), x.type, lir.Current(value)),
            lir.LocalStore(x.name("values"), ix.of(loaded), x.name("read")),
        )
        combine: Body = (
            lir.Let(x.name("element"), x.type, lir.LocalLoad(x.name("values"), ix.of(k))),
            lir.ScanWarp(here, whole, x.type, x.combiner, x.name("element")),
            lir.Let(x.name("earlier"), x.type, lir.Current(so_far)),
            x.combined(through, x.name("earlier"), here),
            lir.LocalStore(x.name("values"), ix.of(k), through),
            x.combined(after, x.name("earlier"), whole),
            lir.Assign(so_far, after),
        )
        return (
            lir.LocalArray(x.name("values"), x.type, self.each, Scope.PRIVATE),
            x.identity(none),
            lir.Accumulator(so_far, x.type, none),
            For(loaded, LoopKind.UNROLLED, load),
            For(k, LoopKind.UNROLLED, combine),
            lir.Let(self.total, x.type, lir.Current(so_far)),
        )

    def last(self, prefix: str) -> Body:
        """Return the statements that store the elements, each combined with a prefix."""
        x, k = self.x, Var(self.x.name("m"), self.each)
        step = self.place + ix.of(k) * WARP
        write: Body = (
            lir.Let(x.name("part"), x.type, lir.LocalLoad(x.name("values"), ix.of(k))),
            x.combined(x.carry.next, prefix, x.name("part")),
            *x.at((*x.again, *x.write), *self._row(), step),
        )
        return (For(k, LoopKind.UNROLLED, self._guarded(step, write, "out")),)

    def _row(self) -> tuple[IndexExpr, IndexExpr]:
        inner = self.x.scan.rows[1].extent
        return self.row.floordiv(inner), self.row.mod(inner)

    def _guarded(self, step: IndexExpr, body: Body, tag: str) -> Body:
        """Return statements that run only for elements of the scan."""
        steps = self.x.scan.step.extent
        tests = [(step, steps), (self.row, self.rows)]
        for n, (at, limit) in enumerate(tests):
            if at.range[1] >= limit:
                name = self.x.name(f"{tag}{n}")
                body = (lir.Let(name, T.PRED, lir.IndexTest(at, None, limit - 1)), lir.If(name, body))
        return body


# ---- columns


def _columns(x: _Simple, schedule: Schedule) -> tuple[Body, int]:
    """Return the scans of adjacent columns, and the number of threads of a block."""
    outer, inner = x.scan.rows
    width = WARP
    while width > SECTOR_COLUMNS and (
        width > inner.extent or outer.extent * -(-inner.extent // width) < MULTIPROCESSORS
    ):
        width //= 2
    parts = min(MAX_THREADS, max(WARP, schedule.block or BLOCK)) // width
    while parts > 1 and parts * schedule.chains > x.scan.step.extent:
        parts //= 2
    while parts * width % WARP:
        parts += 1
    return _column_tiles(x, width, parts), width * parts


def _column_tiles(x: _Simple, width: int, parts: int) -> Body:
    outer, inner = x.scan.rows
    steps = x.scan.step.extent
    size = -(-steps // parts)
    tile, first, second = (Var(x.name(p), n) for p, n in (("tile", -(-inner.extent // width)), ("t", width * parts),
                                                          ("u", width * parts)))  # fmt: skip
    totals = x.name("totals")

    def place(thread: Var) -> tuple[IndexExpr, IndexExpr]:
        return ix.of(tile) * width + ix.of(thread).mod(width), ix.of(thread).floordiv(width)

    def inside(column: IndexExpr, tag: str, body: Body) -> Body:
        if inner.extent % width == 0:
            return body
        name = x.name(f"{tag}_column")
        return (lir.Let(name, T.PRED, lir.IndexTest(column, None, inner.extent - 1)), lir.If(name, body))

    def part(column: IndexExpr, number: IndexExpr, tag: str, body: Body) -> Body:
        """Return a loop over the steps of a part."""
        step = Var(x.name(f"{tag}_step"), size)
        at = number * size + ix.of(step)
        moved = map_indices(
            body, lambda i: i.substitute({x.scan.step: at, x.scan.rows[0]: ix.of(outer), x.scan.rows[1]: column})
        )
        limited = at.range[1] >= steps
        return (For(step, LoopKind.SERIAL, moved, base=number * size if limited else None, limit=steps),)

    column, number = place(first)
    none, total = x.name("none"), x.name("total")
    add: Body = (
        *x.read,
        lir.Let(x.name("so_far"), x.type, lir.Current(total)),
        x.combined(x.name("more"), x.name("so_far"), x.scan.value),
        lir.Assign(total, x.name("more")),
    )
    sums: Body = (
        lir.Accumulator(total, x.type, none),
        *inside(column, "in", part(column, number, "in", add)),
        lir.Let(x.name("sum"), x.type, lir.Current(total)),
        lir.LocalStore(totals, ix.of(first), x.name("sum")),
    )
    column, number = place(second)
    now, before = x.name("now"), Var(x.name("b"), parts)
    earlier: Body = (
        lir.Let(x.name("part"), x.type, lir.LocalLoad(totals, ix.of(before) * width + ix.of(second).mod(width))),
        lir.Let(x.name("until"), x.type, lir.Current(now)),
        x.combined(x.name("with"), x.name("until"), x.name("part")),
        lir.Assign(now, x.name("with")),
    )
    is_before = x.name("is_before")
    test = lir.Let(is_before, T.PRED, lir.IndexTest(number - ix.of(before), 1, None))
    run: Body = (
        lir.Let(x.carry.name, x.type, lir.Current(now)),
        *x.read,
        x.combined(x.carry.next, x.carry.name, x.scan.value),
        *x.write,
        lir.Assign(now, x.carry.next),
    )
    scans: Body = (
        lir.Accumulator(now, x.type, x.carry.start),
        *((For(before, LoopKind.SERIAL, (test, lir.If(is_before, earlier))),) if parts > 1 else ()),
        *inside(column, "out", part(column, number, "out", run)),
    )
    once = (
        lir.LocalArray(totals, x.type, width * parts, Scope.SHARED),
        x.identity(none),
        For(first, LoopKind.THREAD, sums),
        lir.Barrier(),
    )
    again = (lir.Barrier(),)  # the next tile of this block overwrites the totals
    body: Body = (*(once if parts > 1 else ()), For(second, LoopKind.THREAD, scans), *(again if parts > 1 else ()))
    return (For(outer, LoopKind.BLOCK, (For(tile, LoopKind.BLOCK, body),)),)


# ---- functions of several ops


def _in_order(s: Scan) -> Body:
    """Return a loop over rows and columns, each scanned by one thread."""
    before: list[lir.Stmt] = []
    steps: list[lir.Stmt] = []
    for c in s.carries:
        before.append(lir.Accumulator(f"{c.name}_now", c.type, c.start))
        steps.append(lir.Let(c.name, c.type, lir.Current(f"{c.name}_now")))
    steps += s.body
    steps += [lir.Assign(f"{c.name}_now", c.next) for c in s.carries]
    outer, inner = s.rows
    body: Body = (*before, For(s.step, LoopKind.SERIAL, tuple(steps)))
    return (For(outer, LoopKind.GRID, (For(inner, LoopKind.GRID, body),)),)
