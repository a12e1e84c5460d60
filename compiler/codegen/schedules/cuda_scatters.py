"""Scatters on a GPU: atomic updates where their order does not matter, else parts of the output with one block each.

Integers, maxima and minima give the same result in any order, so the grid runs over all elements of all updates. A sum
of floats depends on the order, and so does an element that several updates replace. Each block then owns a range of
rows of the output: its threads look through all updates together, and apply those of its rows in the order of the
program, each thread to its own elements of the window. Nothing is sorted, and results are the same each time. Updates
that cannot meet, such as one in each matrix of a batch, need none of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Team
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.schedules.cuda_flat import FlatNest, flattened
from compiler.codegen.schedules.cuda_shapes import MAX_THREADS, MULTIPROCESSORS, blocks_of, ceil_power, most_threads
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

PARTS = 2 * MULTIPROCESSORS
"""Number of parts of the output by default."""
THREADS = 256
"""Least number of threads of a block, which look at as many updates at a time."""
ATOMIC_BITS = (16, 32, 64)
"""Sizes of the elements that a GPU updates atomically."""
OWNED_BYTES = 16 << 10
"""Most shared memory for the elements of a block that its threads own."""
_OWNED_TYPES = frozenset({T.F32, T.F64, T.S32, T.U32, T.S64, T.U64})
"""Types of elements whose values in a kernel have the precision that they have in memory."""
_PLAIN = lir.Let | lir.Store | lir.Update


@dataclass(frozen=True)
class _Updates:
    """The updates of a scatter.

    Attributes:
        batch: variables of the updates.
        before: definitions of an update: where its window is, and whether that is within the output.
        condition: name of the pred that says so.
        window: variables of the elements of a window.
        inside: the statements of an element.
        owner: see `For.owner`.
    """

    batch: tuple[Var, ...]
    before: Body
    condition: str
    window: tuple[Var, ...]
    inside: Body
    owner: tuple[str, int] | None

    @staticmethod
    def of(part: Body) -> _Updates | None:
        """Return the updates of some statements, or None if they are no scatter of a known form."""
        batch, before, owner = [], list[lir.Stmt](), None
        while len(part) == 1 and isinstance(part[0], For) and part[0].kind is LoopKind.ATOMIC:
            batch.append(part[0].var)
            owner = owner or part[0].owner
            part = part[0].body
            if len(part) > 1 and isinstance(part[-1], For):
                before += part[:-1]
                part = part[-1:]
        *lets, branch = part or (None,)
        if (
            not isinstance(branch, lir.If)
            or branch.otherwise
            or not all(isinstance(s, lir.Let) for s in (*before, *lets))
        ):
            return None
        before += [s for s in lets if s is not None]
        window, inside = [], list[lir.Stmt]()
        rest = branch.then
        while rest and isinstance(rest[-1], For) and rest[-1].kind is LoopKind.SERIAL:
            window.append(rest[-1].var)
            inside += rest[:-1]
            rest = rest[-1].body
        inside += rest
        written = [s for s in inside if isinstance(s, lir.Store | lir.Update)]
        if len(written) != 1 or not all(isinstance(s, _PLAIN) for s in inside):
            return None
        return _Updates(tuple(batch), tuple(before), branch.condition, tuple(window), tuple(inside), owner)

    @property
    def written(self) -> lir.Store | lir.Update:
        """The statement that changes the output."""
        return next(s for s in self.inside if isinstance(s, lir.Store | lir.Update))

    @property
    def count(self) -> int:
        """The number of updates."""
        return math.prod(v.extent for v in self.batch)

    @property
    def overlaps(self) -> bool:
        """Whether different elements of two windows of one owner may be the same element of the output."""
        moving = {v.name for v in self.written.offset.variables() if isinstance(v, Runtime)}
        return self.owner is None or not moving <= {self.owner[0]}

    @property
    def are_apart(self) -> bool:
        """Whether updates never change the same element, because each has a range of the output for itself.

        Examples are one update in each matrix of a batch, and one new row in each sequence of a batch. Strides of the
        updates are compared with the range of all that moves within them.
        """
        strides, spread = dict.fromkeys(self.batch, 0), 0
        for symbol, factor in self.written.offset.terms:
            if isinstance(symbol, Var) and symbol in strides:
                strides[symbol] = abs(factor)
            elif isinstance(symbol, Runtime) or (isinstance(symbol, Var) and symbol in self.window):
                low, high = symbol.range
                spread += abs(factor) * (high - low)
            else:
                return False
        for v in sorted(self.batch, key=strides.__getitem__):
            if v.extent > 1 and strides[v] <= spread:
                return False
            spread += strides[v] * (v.extent - 1)
        return True


def scatter_nest(
    part: Body, types: Mapping[str, T], schedule: Schedule
) -> FlatNest | ScatterNest | OwnedScatterNest | None:
    """Return the nest of a scatter, or None for other statements."""
    updates = _Updates.of(part)
    if updates is None:
        return None
    written = updates.written
    t = types[written.buffer]
    if updates.count == 1 or updates.are_apart:  # all elements are different ones
        return _flat(updates, _in_place(updates.inside, types), types)
    if isinstance(written, lir.Update) and t.bits in ATOMIC_BITS:
        exact = t.is_integer or written.combiner in (Opcode.MAXIMUM, Opcode.MINIMUM)
        if exact or schedule.gpu.atomics:
            return _flat(updates, updates.inside, types)
    owned = _owned_elements(updates, t)
    return ScatterNest(updates, types) if owned is None else OwnedScatterNest(updates, types, owned)


def _flat(updates: _Updates, inside: Body, types: Mapping[str, T]) -> FlatNest:
    body: Body = (*updates.before, lir.If(updates.condition, inside))
    var, body = flattened((*updates.batch, *updates.window) or (Var("once", 1),), body)
    return FlatNest(var, body, 1, 1, types)


def _in_place(inside: Body, types: Mapping[str, T]) -> Body:
    """Return the statements of an element with its update as a load and a store."""
    out: list[lir.Stmt] = []
    for s in inside:
        if not isinstance(s, lir.Update):
            out.append(s)
            continue
        t, before, after = types[s.buffer], f"{s.value}_before", f"{s.value}_after"
        out.append(lir.Let(before, t, lir.Load(s.buffer, s.offset)))
        out.append(lir.Let(after, t, lir.Apply(binary(s.combiner, t), (before, s.value))))
        out.append(lir.Store(s.buffer, s.offset, after))
    return tuple(out)


@dataclass(frozen=True)
class ScatterNest:
    """A scatter whose updates of one element run in order.

    Attributes:
        updates: the updates.
        types: element types of the arguments of the kernel.
    """

    updates: _Updates
    types: Mapping[str, T]

    combine_bytes = 0

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        window = math.prod(v.extent for v in self.updates.window)
        return most_threads(schedule, min(MAX_THREADS, max(THREADS, ceil_power(window))))

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads."""
        del may_combine
        u = self.updates
        number, before = flattened(u.batch, u.before)
        _, inside = flattened(u.batch, _in_place(u.inside, self.types))
        element, inside = flattened(u.window or (Var(f"{number.name}w", 1),), inside)
        window: Body = (For(element, LoopKind.THREAD, inside),)
        if u.overlaps:
            window = (*window, lir.Barrier())
        test, condition, parts = before, u.condition, 1
        part = Var(f"{number.name}p", 1)
        if u.owner is not None:
            start, rows = u.owner
            size = -(-rows // min(PARTS, rows))
            parts = -(-rows // size)
            part = Var(f"{number.name}p", parts)
            within = ix.of(Runtime(start, 0, rows - 1)) - ix.of(part) * size
            mine, both = f"{start}_mine", f"{start}_both"
            test = (
                *before,
                lir.Let(mine, T.PRED, lir.IndexTest(within, 0, size - 1)),
                lir.Let(both, T.PRED, lir.Apply(binary(Opcode.AND, T.PRED), (condition, mine))),
            )
            condition = both
        search = lir.ForFound(number, test, condition, (*before, *window))
        return For(part, LoopKind.BLOCK, (search,), team=Team(threads, 1), blocks=blocks_of(parts, schedule))


# ---- windows of one element


def _owned_elements(u: _Updates, t: T) -> Runtime | None:
    """Return the row of the output to which an update of one element belongs, if threads can own the elements; or None.

    A thread keeps its elements in shared memory, with the precision that they have in memory.
    """
    if u.owner is None or u.overlaps or math.prod(v.extent for v in u.window) != 1 or t not in _OWNED_TYPES:
        return None
    buffer = u.written.buffer
    if any(isinstance(s, lir.Let) and isinstance(s.value, lir.Load) and s.value.buffer == buffer for s in u.inside):
        return None
    found = {v for v in u.written.offset.variables() if v not in u.window}
    row = found.pop() if len(found) == 1 else None
    if not isinstance(row, Runtime) or -(-u.owner[1] // MULTIPROCESSORS) * t.byte_size > OWNED_BYTES:
        return None
    return row if row.name == u.owner[0] and _types_of(u).get(row.name) is not None else None


def _types_of(u: _Updates) -> dict[str, T]:
    """Return the types of the scalars that an update defines, by name."""
    return {s.name: s.type for s in (*u.before, *u.inside) if isinstance(s, lir.Let)}


@dataclass(frozen=True)
class OwnedScatterNest:
    """A scatter of single elements whose updates of one element run in order, each thread for elements of its own.

    The threads of a block look at many updates at once and put the values of those of its part into shared memory. Each
    thread then applies those of its elements, which are in shared memory until all updates are done.

    Attributes:
        updates: the updates.
        types: element types of the arguments of the kernel.
        row: where an update is applied.
    """

    updates: _Updates
    types: Mapping[str, T]
    row: Runtime

    combine_bytes = 0

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        return most_threads(schedule, min(MAX_THREADS, max(THREADS, ceil_power(self.updates.count // 8))))

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads."""
        del may_combine
        u, written, start = self.updates, self.updates.written, self.row.name
        t, rows = self.types[written.buffer], self.updates.owner[1] if self.updates.owner else 1
        size = -(-rows // min(MULTIPROCESSORS, rows))
        parts = -(-rows // size)
        number, before = flattened(u.batch, u.before)
        _, inside = flattened(u.batch, u.inside)
        part, element = Var(f"{number.name}p", parts), Var(f"{number.name}e", size)
        first, array = ix.of(part) * size, f"{number.name}_rows"
        at = written.offset.substitute({self.row: first + ix.of(element), **{v: ix.const(0) for v in u.window}})
        mine, both, own = f"{start}_mine", f"{start}_both", f"{start}_own"
        test: Body = (
            *before,
            lir.Let(mine, T.PRED, lir.IndexTest(ix.of(self.row) - first, 0, size - 1)),
            lir.Let(both, T.PRED, lir.Apply(binary(Opcode.AND, T.PRED), (u.condition, mine))),
        )
        known = _types_of(u)
        kept = tuple((name, known[name]) for name in dict.fromkeys((start, written.value)) if name in known)
        apply: Body = (
            lir.Let(own, T.PRED, lir.IndexTest(ix.of(self.row) - first - ix.of(element), 0, 0)),
            lir.If(own, self._applied(array, element, t)),
        )
        search = lir.ForFound(
            number, test, both, (For(element, LoopKind.THREAD, apply),),
            tuple(s for s in inside if isinstance(s, lir.Let)), kept, min(size, threads),
        )  # fmt: skip
        loaded, inside_rows = f"{array}_first", f"{array}_inside"
        load: Body = (
            lir.Let(loaded, t, lir.Load(written.buffer, at)),
            lir.LocalStore(array, ix.of(element), loaded),
        )
        store: Body = (
            lir.Let(f"{array}_last", t, lir.LocalLoad(array, ix.of(element))),
            lir.Store(written.buffer, at, f"{array}_last"),
        )
        if parts * size > rows:
            known_row = lir.Let(inside_rows, T.PRED, lir.IndexTest(first + ix.of(element), 0, rows - 1))
            load, store = (known_row, lir.If(inside_rows, load)), (known_row, lir.If(inside_rows, store))
        body: Body = (
            lir.LocalArray(array, t, size, lir.Scope.SHARED),
            For(element, LoopKind.THREAD, load),
            search,
            For(element, LoopKind.THREAD, store),
        )
        return For(part, LoopKind.BLOCK, body, team=Team(threads, 1), blocks=blocks_of(parts, schedule))

    def _applied(self, array: str, element: Var, t: T) -> Body:
        """Return the statements that apply an update to an element in shared memory."""
        written = self.updates.written
        if isinstance(written, lir.Store):
            return (lir.LocalStore(array, ix.of(element), written.value),)
        before, after = f"{array}_before", f"{array}_after"
        return (
            lir.Let(before, t, lir.LocalLoad(array, ix.of(element))),
            lir.Let(after, t, lir.Apply(binary(written.combiner, t), (before, written.value))),
            lir.LocalStore(array, ix.of(element), after),
        )
