"""Selects between regions: ops whose elements come from one of several operands, depending on the index.

A concatenate, pad or dynamic-update-slice becomes a branch that computes only the operand that an element comes from.
Selects can depend on one another: in `y = concatenate(tanh(x), x)`, both sides of the branch for an element of y need
an element of x. If x is computed by a select as well, emitting it on both sides would double the code with each select
in such a chain. It is therefore emitted once, before the branch, at an index that the condition of the branch selects:
`at = condition ? i : i - n; v = x[at]; if (condition) y = tanh(v) else y = v`. If both sides are elements of one value
in different rows, nothing is left to branch for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.analysis.element_work import SPLIT_FROM
from compiler.codegen.lowering.emission import EmissionState, Memo
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest import scalar_ops
from compiler.codegen.nest.index import Index, IndexExpr
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.codegen.schedules.stages import is_long
from compiler.errors import UnsupportedError
from compiler.ir.attributes import PadDim
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MAX_SELECTS_ABOVE = 32
"""Maximum number of selects remembered per instruction: the nearest of those that it is computed from."""
VISIT_LIMIT = 100_000
"""Maximum number of steps of all searches for one kernel; a kernel that needs more is refused."""
_OPAQUE = frozenset({Opcode.CONSTANT, Opcode.IOTA, Opcode.GATHER, Opcode.REDUCE})
"""Ops whose operands the searches do not follow."""

Test: TypeAlias = lir.IndexTest
"""A test of an index against bounds."""
Element: TypeAlias = tuple[HloInstruction, Index]
Locations: TypeAlias = Mapping[HloInstruction, Index]
"""The index at which each of some instructions is needed."""


@dataclass(frozen=True, slots=True)
class Select:
    """A choice between two sources: `then` if every test holds, else `otherwise`."""

    tests: tuple[Test, ...]
    then: Source
    otherwise: Source


Source: TypeAlias = Select | Element
"""What an element is computed from: one element of an instruction, or a choice between sources."""


# ---- the sources of each op


def _within(at: IndexExpr, low: int, high: int) -> tuple[Test, ...] | None:
    """Return the tests that decide whether low <= at <= high, none if it always does; return None if it never does."""
    least, most = at.range
    if most < low or least > high:
        return None
    if least < low and most > high:
        return (Test(at, low, high),)
    if least < low:
        return (Test(at, low, None),)
    return (Test(at, None, high),) if most > high else ()


def _select_or(tests: Sequence[Test], then: Source, otherwise: Source) -> Source:
    return Select(tuple(tests), then, otherwise) if tests else then


def _concatenate(e: EmissionState, i: HloInstruction, index: Index) -> Source:
    del e
    dim = i.dimensions[0]
    low, high = index[dim].range
    pieces: list[tuple[HloInstruction, int]] = []
    start = 0
    for o in i.operands:
        size = o.shape.dimensions[dim]
        if size and start <= high and start + size > low:
            pieces.append((o, start))
        start += size
    return _pieces(pieces, index, dim)


def _pieces(pieces: list[tuple[HloInstruction, int]], index: Index, dim: int) -> Source:
    if len(pieces) == 1:
        piece, start = pieces[0]
        return piece, (*index[:dim], index[dim] - start, *index[dim + 1 :])
    half = len(pieces) // 2
    test = Test(index[dim], None, pieces[half][1] - 1)
    return Select((test,), _pieces(pieces[:half], index, dim), _pieces(pieces[half:], index, dim))


def _pad(e: EmissionState, i: HloInstruction, index: Index) -> Source:
    del e
    config: tuple[PadDim, ...] = i.attributes["padding"]
    x, fill = i.operands
    outside: Element = (fill, ())
    if 0 in x.shape.dimensions:
        return outside
    tests: list[Test] = []
    source = []
    for at, p, n in zip(index, config, x.shape.dimensions, strict=True):
        step = p.interior + 1
        inside = at - p.low
        within, rest = _within(inside, 0, (n - 1) * step), inside.mod(step)
        if within is None or (rest.is_const and rest.const):
            return outside
        tests += within
        if not rest.is_const:
            tests.append(Test(rest, 0, 0))
        source.append(inside.floordiv(step))
    return _select_or(tests, (x, tuple(source)), outside)


def _update(e: EmissionState, i: HloInstruction, index: Index) -> Source:
    base, update = i.operands[:2]
    if 0 in update.shape.dimensions:
        return base, index
    tests: list[Test] = []
    source = []
    sizes = zip(update.shape.dimensions, base.shape.dimensions, strict=True)
    for at, start, (n, d) in zip(index, update_starts(e, i), sizes, strict=True):
        inside = at - start
        within = _within(inside, 0, n - 1)
        if within is None:
            return base, index
        if n == d:
            source.append(at)
            continue
        source.append(inside if n > 1 else ix.const(0))
        tests += within
    return _select_or(tests, (update, tuple(source)), (base, index))


REGION_OPS: Mapping[Opcode, Callable[[EmissionState, HloInstruction, Index], Source]] = {
    Opcode.CONCATENATE: _concatenate,
    Opcode.PAD: _pad,
    Opcode.DYNAMIC_UPDATE_SLICE: _update,
}
"""For each op, a function that returns the source of an element; it may emit start indices read at run time."""


# ---- start indices read at run time


def update_starts(e: EmissionState, i: HloInstruction) -> list[IndexExpr]:
    """Emit and return the clamped start indices of a dynamic-update-slice."""
    return _starts(e, i, 2, i.operands[1].shape.dimensions)


def sliced_index(e: EmissionState, i: HloInstruction, index: Index) -> Index:
    """Return the operand index that an element of a dynamic-slice is read from, after emitting its start indices."""
    starts = _starts(e, i, 1, i.attributes["dynamic_slice_sizes"])
    return tuple(a + s for a, s in zip(index, starts, strict=True))


def _starts(e: EmissionState, i: HloInstruction, first: int, sizes: Sequence[int]) -> list[IndexExpr]:
    dims = i.operands[0].shape.dimensions
    starts = i.operands[first:]
    if len(starts) == 1 and starts[0].shape.rank == 1:
        vector = starts[0]
        return [
            e.clamped_start(vector, (ix.const(k),), d - n) for k, (d, n) in enumerate(zip(dims, sizes, strict=True))
        ]
    return [e.clamped_start(s, (), d - n) for s, d, n in zip(starts, dims, sizes, strict=True)]


class RegionSelector:
    """The emitter of the selects of one kernel, which remembers the selects that each instruction is computed from.

    `value` emits a branch for one element. Before the branch, `_hoist_common` finds out which selects both sides need
    (`_selects_above`), at which index each side needs them (`_locate`), and emits them at a selected index.
    """

    def __init__(self, emission: EmissionState) -> None:
        # The emission refers to its selector. Without a cycle, what was emitted in a trial is freed at once.
        self._e: EmissionState = weakref.proxy(emission)
        # For each instruction the selects that it is computed from; a number for each that grows towards the root; and
        # the instructions that were emitted once for both sides of a branch.
        self._above_of: dict[HloInstruction, frozenset[HloInstruction]] = {}
        self._numbers: dict[HloInstruction, int] = {}
        self._shared: set[HloInstruction] = set()
        self._visits = 0

    def value(self, i: HloInstruction, index: Index) -> str:
        """Emit the element `i[index]` of an op in REGION_OPS and return its name."""
        return self._source_value(i.shape.element_type, REGION_OPS[i.opcode](self._e, i, index))

    def _source_value(self, t: T, source: Source) -> str:
        if not isinstance(source, Select):
            return self._e.value(*source)
        same = self._same_value(source)
        if same is not None:
            return self._e.value(same[0], self._select(source.tests, *same))
        known = self._hoist_common(source)
        condition = self._holds(source.tests)
        zero = self._e.constant(0, t)
        result = self._e.fresh("c")
        self._e.add(lir.Accumulator(result, t, zero))
        bodies = []
        for part, memo in zip((source.then, source.otherwise), known, strict=True):
            with self._e.guard() as frame:
                frame.memo.update(memo)
                self._e.add(lir.Assign(result, self._source_value(t, part)))
            bodies.append(tuple(frame.stmts))
        self._e.add(lir.If(condition, bodies[0], bodies[1]))
        return self._e.let(t, lir.Current(result))

    def _holds(self, tests: tuple[Test, ...]) -> str:
        """Emit the pred scalar that says whether all tests hold and return its name."""
        return self._e.once(tests, lambda: self._e.all_of([self._e.index_test(t.value, t.low, t.high) for t in tests]))

    def _hoist_common(self, select: Select) -> tuple[Memo, Memo]:
        """Emit before a branch the earlier selects that both sides need; return the values known on each side."""
        known: tuple[Memo, Memo] = ({}, {})
        then, otherwise = self._above(select.then), self._above(select.otherwise)
        common, shared = then & otherwise, (then | otherwise) & self._shared
        if not common and not shared:
            return known
        sides = self._sides(select, shared, common)
        for i in {**sides[0], **sides[1]}:
            names = self._shared_names(select.tests, i, sides[0].get(i), sides[1].get(i))
            for side, memo in zip(sides, known, strict=True):
                if names is not None and i in side:
                    memo[i, self._e.number(side[i])] = names
        return known

    def _same_value(self, select: Select) -> tuple[HloInstruction, Index, Index] | None:
        """Return the value of which both sides are an element, with both indices, as in an array whose rows are rolled.

        It has to be computed. If the condition and the indices differ between rows only, a loop over the elements of a
        row then has no branch, and loads adjacent elements. In short rows, where it loads them one by one, the value
        has to be worth that.
        """
        if isinstance(select.then, Select) or isinstance(select.otherwise, Select):
            return None
        (i, then), (other, otherwise) = self._moved(*select.then), self._moved(*select.otherwise)
        if i is not other or not i.opcode.is_elementwise or i in self._e.sources or not then:
            return None
        along = ix.variables_of(then[-1:])
        by_rows = then[-1] == otherwise[-1] and along.isdisjoint(ix.variables_of(t.value for t in select.tests))
        if not along or not (by_rows or (i.shape.dimensions[-1] < SPLIT_FROM and self._is_expensive(i))):
            return None
        return i, then, otherwise

    def _is_expensive(self, i: HloInstruction) -> bool:
        """Check whether an element of a value takes a long function, for which operands may be loaded one by one."""
        seen, work = {i}, [i]
        while work:
            i = work.pop()
            if is_long(i.opcode):
                return True
            if i.opcode.is_elementwise or i.opcode in INDEXING_MAPS:
                new = [o for o in i.operands if o not in seen and o not in self._e.sources]
                seen.update(new)
                work += new
        return False

    def _moved(self, i: HloInstruction, index: Index) -> Element:
        """Return the element of another value that an element is without any arithmetic."""
        while i not in self._e.sources and i.opcode in INDEXING_MAPS:
            i, index = i.operands[0], INDEXING_MAPS[i.opcode](i, index)
        return i, index

    def _shared_names(
        self, tests: tuple[Test, ...], i: HloInstruction, then: Index | None, otherwise: Index | None
    ) -> tuple[str, ...] | None:
        """Emit `i` for both sides at a selected index and return its names.

        If only one side needs it, nothing is emitted: return the names if an enclosing branch has computed it, or None.
        """
        if then is not None and otherwise is not None:
            self._shared.add(i)
            return self._e.values(i, self._select(tests, i, then, otherwise))
        at = self._select(tests, i, then, otherwise, must_be_known=True)
        return self._e.known(i, at) if len(at) == i.shape.rank else None

    def _select(
        self,
        tests: tuple[Test, ...],
        i: HloInstruction,
        then: Index | None,
        otherwise: Index | None,
        must_be_known: bool = False,
    ) -> Index:
        """Emit and return an index into `i`: that of `then` if the tests hold, else that of `otherwise`.

        The index is in range on both sides. With `must_be_known` nothing is emitted, and the index ends before the
        first dimension for which something would have to be.
        """
        out: list[IndexExpr] = []
        for d, n in enumerate(i.shape.dimensions):
            a = ix.const(0) if then is None else then[d]
            b = ix.const(0) if otherwise is None else otherwise[d]
            if n == 1 or a == b:
                out.append(ix.const(0) if n == 1 else a)
                continue
            if must_be_known and self._e.helper((tests, a, b)) is None:
                break
            out.append(self._select_one(tests, a, b, n))
        return tuple(out)

    def _select_one(self, tests: tuple[Test, ...], a: IndexExpr, b: IndexExpr, extent: int) -> IndexExpr:
        low, high = min(a.range[0], b.range[0]), max(a.range[1], b.range[1])

        def make() -> str:
            names = self._holds(tests), self._e.index_name(a), self._e.index_name(b)
            return self._e.apply(scalar_ops.binary(Opcode.SELECT, T.S64), *names)

        return ix.of(self._e.runtime(self._e.once((tests, a, b), make), max(0, low), min(extent - 1, high)))

    # ---- searches

    def _above(self, source: Source) -> frozenset[HloInstruction]:
        """Return the selects that `source` is computed from, the nearest ones."""
        if isinstance(source, Select):
            return self._above(source.then) | self._above(source.otherwise)
        return self._selects_above(source[0])

    def _selects_above(self, i: HloInstruction) -> frozenset[HloInstruction]:
        """Return the nearest selects that `i` is computed from element by element, including itself if it is one."""
        found = self._above_of.get(i)
        if found is not None:
            return found
        parts = {self._selects_above(o) for o in self._upstream(i)}
        all_: frozenset[HloInstruction] = next(iter(parts)) if len(parts) == 1 else frozenset().union(*parts)
        if i.opcode in REGION_OPS and i not in self._e.sources:
            all_ |= {i}
        if len(all_) > MAX_SELECTS_ABOVE:
            all_ = frozenset(sorted(all_, key=lambda c: self._numbers.get(c, len(self._numbers)))[-MAX_SELECTS_ABOVE:])
        self._above_of[i] = all_
        self._numbers[i] = len(self._numbers)
        return all_

    def _upstream(self, i: HloInstruction) -> Sequence[HloInstruction]:
        """Return the instructions from single elements of which an element of `i` is computed."""
        op = i.opcode
        if i in self._e.sources or op in _OPAQUE:
            return ()
        if op is Opcode.PARAMETER:
            return (self._e.bound[i],) if i in self._e.bound else ()
        if op in (Opcode.FUSION, Opcode.CALL):
            return (self._e.enter(i),)
        if op is Opcode.GET_TUPLE_ELEMENT:
            element = self._e.element(i)
            return () if element is None else (element,)
        if op in INDEXING_MAPS or op is Opcode.DYNAMIC_SLICE:
            return i.operands[:1]
        return i.operands[:2] if op is Opcode.DYNAMIC_UPDATE_SLICE else i.operands

    def _locate(self, source: Source, wanted: frozenset[HloInstruction]) -> Locations:
        """Return the index at which each wanted select is needed first; the search does not go past wanted ones."""
        if isinstance(source, Select):
            return self._locate_in_select(source, wanted)
        found: dict[HloInstruction, Index] = {}
        seen: set[Element] = set()
        work = [source]
        while work:
            element = i, index = work.pop()
            if element in seen or wanted.isdisjoint(self._selects_above(i)):
                continue
            seen.add(element)
            self._visits += 1
            if self._visits > VISIT_LIMIT:
                raise UnsupportedError("the kernel would select between too many regions")
            if i in wanted:
                found.setdefault(i, index)
            elif i.opcode in REGION_OPS:
                found = {**self._locate(REGION_OPS[i.opcode](self._e, i, index), wanted), **found}
            elif i.opcode in INDEXING_MAPS:
                work.append((i.operands[0], INDEXING_MAPS[i.opcode](i, index)))
            elif i.opcode is Opcode.DYNAMIC_SLICE:
                work.append((i.operands[0], sliced_index(self._e, i, index)))
            else:
                work += [(o, () if o.shape.is_scalar else index) for o in reversed(self._upstream(i))]
        return found

    def _locate_in_select(self, select: Select, wanted: frozenset[HloInstruction]) -> Locations:
        """Return the same as `_locate` for a select.

        The search mirrors what `_hoist_common` will emit for it: what both sides need is computed at one selected
        index, so the search continues from that index.
        """
        same = self._same_value(select)
        if same is not None:
            return self._locate((same[0], self._select(select.tests, *same)), wanted)
        common = self._above(select.then) & self._above(select.otherwise)
        sides = self._sides(select, wanted, common)
        found: dict[HloInstruction, Index] = {}
        for i in {**sides[0], **sides[1]}:
            if i not in wanted and not (i in sides[0] and i in sides[1]):
                continue
            at = self._select(select.tests, i, sides[0].get(i), sides[1].get(i))
            for c, where in ({i: at} if i in wanted else self._locate((i, at), wanted)).items():
                found.setdefault(c, where)
        return found

    def _sides(
        self, select: Select, wanted: frozenset[HloInstruction], common: frozenset[HloInstruction]
    ) -> tuple[Locations, Locations]:
        """Return where each side needs the wanted and the common selects.

        `_locate` stops at each select it finds. Past one that only one side needs, the search continues for common
        ones, because the other side may need those.
        """
        parts = (select.then, select.otherwise)
        sides = tuple(dict(self._locate(part, wanted | common)) for part in parts)
        for mine, other in (sides, sides[::-1]):
            work = [i for i in mine if i not in other]
            for i in work:
                for c, where in self._locate((i, mine[i]), common - {i}).items():
                    if c not in mine:
                        mine[c] = where
                        work += [c] if c not in other else []
        return sides[0], sides[1]
