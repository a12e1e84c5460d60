"""Binding of cumulative reductions to the threads of a GPU.

A row is scanned by a warp if it is short, by a block otherwise. Each warp has a segment of adjacent elements, of which
its threads load adjacent ones, `chains` times: the prefixes within a warp come from shuffles, those of the warps of a
block from shared memory. A block scans longer rows piece by piece.

Adjacent columns are scanned by adjacent threads, each of which keeps some adjacent elements of a column in registers.
The totals of the threads of a column are scanned in shared memory. A block scans longer columns piece by piece.

The order of the combinations depends on the size of the scan and the schedule alone. If the function is more than one
op, each row or column is scanned by one thread, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scan, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, binary, identity_of
from compiler.codegen.nest.traversal import map_indices
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.cuda_shapes import MAX_THREADS, MULTIPROCESSORS, UNROLLED_WORK, WARP
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

SECTOR_COLUMNS = 8
"""Adjacent elements of 4 bytes in a sector, the least that memory delivers."""
KEPT_WORDS = 32
"""Registers of a thread in which elements of a column are kept; half of that in blocks of 1024 threads."""
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
    steps = x.scan.step.extent
    width = WARP
    while width > SECTOR_COLUMNS and (
        width > inner.extent or outer.extent * -(-inner.extent // width) < MULTIPROCESSORS
    ):
        width //= 2
    few = outer.extent * -(-inner.extent // width) < MULTIPROCESSORS
    threads = schedule.block or (MAX_THREADS if few else BLOCK)
    parts = min(MAX_THREADS, max(WARP, threads)) // width
    while parts > 1 and parts * schedule.chains > steps:
        parts //= 2
    while parts * width % WARP:
        parts += 1
    words = max(1, SCALAR_BYTES[x.type] // 4)
    kept = (KEPT_WORDS if parts * width < MAX_THREADS else KEPT_WORDS // 2) // words
    most = max(1, min(kept, UNROLLED_WORK // max(1, work_of((*x.read, *x.again, *x.write)))))
    return _ColumnTile(x, width, parts, min(most, -(-steps // parts))).bound(), width * parts


@dataclass(frozen=True)
class _ColumnTile:
    """The scans of adjacent columns by a block, in pieces of so many steps that its threads keep all elements.

    Attributes:
        x: the scan.
        width: number of columns, a power of two.
        parts: number of threads of a column.
        size: number of adjacent steps of a thread.
    """

    x: _Simple
    width: int
    parts: int
    size: int

    def bound(self) -> Body:
        """Return the loops over blocks and threads."""
        x = self.x
        outer, inner = x.scan.rows
        tile, thread = Var(x.name("tile"), -(-inner.extent // self.width)), Var(x.name("thread"), self._threads)
        pieces = Var(x.name("piece"), -(-x.scan.step.extent // (self.parts * self.size)))
        column, number = ix.of(tile) * self.width + self._column(thread), ix.of(thread).floordiv(self.width)
        first = (ix.of(pieces) * self.parts + number) * self.size
        now, prefix = x.name("now"), x.name("prefix")
        body: Body = (*self._load(column, first), *self._before(thread, prefix), *self._store(column, first, prefix))
        loop: lir.Stmt = For(thread, LoopKind.THREAD, body)
        if pieces.extent > 1:
            loop = For(pieces, LoopKind.SERIAL, (loop,))
        shared = lir.LocalArray(x.name("totals"), x.type, self.width * self._stride, Scope.SHARED)
        rows: Body = (*((shared,) if self.parts > 1 else ()), lir.Accumulator(now, x.type, x.carry.start), loop)
        return (For(outer, LoopKind.BLOCK, (For(tile, LoopKind.BLOCK, rows),)),)

    @property
    def _threads(self) -> int:
        return self.width * self.parts

    @property
    def _stride(self) -> int:
        """Elements of shared memory of a column: the threads of a warp access different banks along and across."""
        return self.parts + WARP // self.width

    def _column(self, thread: Var) -> IndexExpr:
        return ix.of(thread).mod(self.width)

    def _inside(self, column: IndexExpr, step: IndexExpr, tag: str, body: Body) -> Body:
        """Return statements that run only for elements of the scan."""
        limits = ((column, self.x.scan.rows[1].extent), (step, self.x.scan.step.extent))
        for n, (at, limit) in enumerate(limits):
            if at.range[1] >= limit:
                name = self.x.name(f"{tag}{n}")
                body = (lir.Let(name, T.PRED, lir.IndexTest(at, None, limit - 1)), lir.If(name, body))
        return body

    def _load(self, column: IndexExpr, first: IndexExpr) -> Body:
        """Return the statements by which a thread loads its elements and combines them, each with those before it."""
        x, none, values, total = self.x, self.x.name("none"), self.x.name("values"), self.x.name("total")
        j, k = Var(x.name("j"), self.size), Var(x.name("k"), self.size)
        step = first + ix.of(j)
        read = x.at(x.read, ix.of(x.scan.rows[0]), column, step)
        load: Body = (
            lir.Accumulator(x.name("value"), x.type, none),
            *self._inside(column, step, "in", (*read, lir.Assign(x.name("value"), x.scan.value))),
            lir.Let(x.name("element"), x.type, lir.Current(x.name("value"))),
            lir.LocalStore(values, ix.of(j), x.name("element")),
        )
        combine: Body = (
            lir.Let(x.name("next"), x.type, lir.LocalLoad(values, ix.of(k))),
            lir.Let(x.name("so_far"), x.type, lir.Current(total)),
            x.combined(x.name("more"), x.name("so_far"), x.name("next")),
            lir.LocalStore(values, ix.of(k), x.name("more")),
            lir.Assign(total, x.name("more")),
        )
        return (
            lir.LocalArray(values, x.type, self.size, Scope.PRIVATE),
            x.identity(none),
            lir.Accumulator(total, x.type, none),
            For(j, LoopKind.UNROLLED, load),
            For(k, LoopKind.UNROLLED, combine),
            lir.Let(x.name("sum"), x.type, lir.Current(total)),
        )

    def _before(self, thread: Var, prefix: str) -> Body:
        """Return the definition of the combination of all elements before those of a thread."""
        x, now, totals = self.x, self.x.name("now"), self.x.name("totals")
        done, through, last = x.name("done"), x.name("through"), x.name("last")
        before: Body = (lir.Let(done, x.type, lir.Current(now)),)
        if self.parts == 1:
            return (
                *before,
                x.combined(prefix, done, x.name("none")),
                x.combined(last, done, x.name("sum")),
                lir.Assign(now, last),
            )
        start, number = self._column(thread) * self._stride, ix.of(thread).floordiv(self.width)
        earlier, is_later = x.name("earlier"), x.name("is_later")
        taken: Body = (
            lir.Let(x.name("part"), x.type, lir.LocalLoad(totals, start + number - 1)),
            lir.Assign(earlier, x.name("part")),
        )
        return (
            lir.LocalStore(totals, start + number, x.name("sum")),
            lir.Barrier(),
            *(self._scan_by_warps(thread) if self.parts >= WARP else self._scan_by_threads(thread)),
            lir.Barrier(),
            *before,
            lir.Accumulator(earlier, x.type, x.name("none")),
            lir.Let(is_later, T.PRED, lir.IndexTest(number, 1, None)),
            lir.If(is_later, taken),
            lir.Let(through, x.type, lir.Current(earlier)),
            x.combined(prefix, done, through),
            lir.Let(x.name("whole"), x.type, lir.LocalLoad(totals, start + (self.parts - 1))),
            x.combined(last, done, x.name("whole")),
            lir.Assign(now, last),
            lir.Barrier(),  # the next piece overwrites the totals
        )

    def _scan_by_warps(self, thread: Var) -> Body:
        """Return the scan of the totals of each column by a warp."""
        x, totals = self.x, self.x.name("totals")
        warp, lane = ix.of(thread).floordiv(WARP), ix.of(thread).mod(WARP)
        run, b = x.name("run"), Var(x.name("b"), self.parts // WARP)
        at = warp * self._stride + ix.of(b) * WARP + lane
        scan: Body = (
            lir.Let(x.name("mine"), x.type, lir.LocalLoad(totals, at)),
            lir.ScanWarp(x.name("here"), x.name("segment"), x.type, x.combiner, x.name("mine")),
            lir.Let(x.name("until"), x.type, lir.Current(run)),
            x.combined(x.name("upto"), x.name("until"), x.name("here")),
            lir.LocalStore(totals, at, x.name("upto")),
            x.combined(x.name("after"), x.name("until"), x.name("segment")),
            lir.Assign(run, x.name("after")),
        )
        body: Body = (lir.Accumulator(run, x.type, x.name("none")), For(b, LoopKind.UNROLLED, scan))
        if self._threads // WARP == self.width:
            return body
        name = x.name("has_column")
        return (lir.Let(name, T.PRED, lir.IndexTest(warp, None, self.width - 1)), lir.If(name, body))

    def _scan_by_threads(self, thread: Var) -> Body:
        """Return the scan of the totals of each column by a thread."""
        x, totals, run, b = self.x, self.x.name("totals"), self.x.name("run"), Var(self.x.name("b"), self.parts)
        at = ix.of(thread) * self._stride + ix.of(b)
        scan: Body = (
            lir.Let(x.name("mine"), x.type, lir.LocalLoad(totals, at)),
            lir.Let(x.name("until"), x.type, lir.Current(run)),
            x.combined(x.name("upto"), x.name("until"), x.name("mine")),
            lir.LocalStore(totals, at, x.name("upto")),
            lir.Assign(run, x.name("upto")),
        )
        name = x.name("has_column")
        body: Body = (lir.Accumulator(run, x.type, x.name("none")), For(b, LoopKind.SERIAL, scan))
        return (lir.Let(name, T.PRED, lir.IndexTest(ix.of(thread), None, self.width - 1)), lir.If(name, body))

    def _store(self, column: IndexExpr, first: IndexExpr, prefix: str) -> Body:
        """Return the statements that use the elements of a thread, each combined with all before it."""
        x, k = self.x, Var(self.x.name("m"), self.size)
        step = first + ix.of(k)
        write: Body = (
            lir.Let(x.name("own"), x.type, lir.LocalLoad(x.name("values"), ix.of(k))),
            x.combined(x.carry.next, prefix, x.name("own")),
            *x.at((*x.again, *x.write), ix.of(x.scan.rows[0]), column, step),
        )
        return (For(k, LoopKind.UNROLLED, self._inside(column, step, "out", write)),)


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
