"""Loops over regions: edges of windows and pads are split out of the loops over single elements.

A pad, a window or a slice of them tests for each element whether an index is inside an array. Where the tests depend on
one loop variable, there are few different outcomes: the first elements, the last ones, all between them, and for a
dilated pad, each remainder of the index. Then:

- a loop over single elements becomes one loop for each range of equal outcomes, over groups of elements if the outcome
  depends on the remainder: the long ones have no tests, and their vectors no masks;
- a loop around others gets branches, one for each outcome.

The statements are copied for each outcome without those that it does not need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Quotient, Remainder, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.schedules.known_tests import COPYABLE, Facts, copy_with
from compiler.codegen.schedules.loop_transforms import has_loop, without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType as T

KINDS = ("loop", "in-place-update")
"""The kinds of kernels whose loops are split."""
MIN_RANGE = 16
"""Minimum number of elements of the longest range of a loop over single elements, those of a vector."""
MAX_RANGES = 9
"""Maximum number of ranges of a loop over single elements."""
MAX_OUTCOMES = 5
"""Maximum number of outcomes for which the body of an outer loop is copied."""
MAX_REMAINDERS = 4
"""Maximum number of elements of a group whose outcomes differ."""
MAX_STATEMENTS = 700
"""Maximum number of statements of all copies of a loop: the C compiler takes as long as there are statements."""
MAX_EXTENT = 1 << 22
"""Maximum extent of a loop whose tests are evaluated."""
SHORT = 8
"""Ranges of fewer iterations are not worth a vector."""

Outcomes = npt.NDArray[np.bool_]


def split_edges(kernel: lir.Kernel, body: Body, schedule: Schedule) -> Body:
    """Return the unbound statements of a kernel with the edges of its loops split where it is worthwhile."""
    if not schedule.edges or not schedule.vector or kernel.kind not in KINDS:
        return body
    if not all(isinstance(s, COPYABLE) for s in lir.walk(body)):
        return body
    return _Edges().body(body)


class _Edges:
    """The split of the loops of one kernel; `copies` counts the copies so far."""

    def __init__(self) -> None:
        self.copies = 0

    def body(self, body: Body) -> Body:
        return tuple(x for s in body for x in self._top(s))

    def _top(self, s: lir.Stmt) -> Body:
        """Split an outermost loop, with branches in the loops around others unless these were too many statements."""
        if not isinstance(s, For):
            return (lir.map_bodies(s, self.body),)
        for branches in (True, False):
            split = self._statement(s, branches)
            if split == (s,):
                break
            split = without_dead_code(split)
            if sum(1 for _ in lir.walk(split)) <= MAX_STATEMENTS:
                return split
        return (s,)

    def _statement(self, s: lir.Stmt, branches: bool) -> Body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.base is None:
            tests = _tests_of(s)
            if not has_loop(s.body):
                return self._ranges(s, tests) or (s,)
            if branches and tests and self._has_ranges(s.body):
                s = self._branches(s, tests)
        return (lir.map_bodies(s, lambda inner: tuple(x for y in inner for x in self._statement(y, branches))),)

    def _has_ranges(self, body: Body) -> bool:
        """Check whether a loop over single elements is split; short ones are faster whole, and without branches."""
        loops = (s for s in lir.walk(body) if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.base is None)
        return any(not has_loop(s.body) and self._ranges(s, _tests_of(s)) for s in loops)

    def _suffix(self) -> str:
        self.copies += 1
        return f"_{self.copies}"

    # ---- loops around others

    def _branches(self, s: For, tests: Sequence[lir.IndexTest]) -> For:
        """Return a loop whose body is copied for each outcome of the tests."""
        outcomes = _evaluate(tests, np.arange(s.var.extent))
        if len(np.unique(outcomes, axis=1).T) > MAX_OUTCOMES:
            return s
        return For(s.var, s.kind, self._decide(s.body, list(tests), outcomes, {}), s.combined, grain=s.grain)

    def _decide(self, body: Body, tests: list[lir.IndexTest], outcomes: Outcomes, facts: Facts) -> Body:
        """Return branches on the tests whose outcome differs; columns of `outcomes` are the possible iterations."""
        known = {t: bool(row[0]) for t, row in zip(tests, outcomes, strict=True) if (row == row[0]).all()}
        facts = {**facts, **known}
        left = [k for k, t in enumerate(tests) if t not in known]
        if not left:
            return copy_with(body, facts, {}, self._suffix())
        test, row = tests[left[0]], outcomes[left[0]]
        name = f"edge{self._suffix()}"
        sides = (
            self._decide(body, [tests[k] for k in left[1:]], outcomes[left[1:]][:, row == side], {**facts, test: side})
            for side in (True, False)
        )
        return lir.Let(name, T.PRED, test), lir.If(name, *sides)

    # ---- loops over single elements

    def _ranges(self, s: For, tests: Sequence[lir.IndexTest]) -> Body | None:
        """Return the loops for the ranges of a loop over single elements, or None if it should stay as it is."""
        group = math.lcm(1, *(d for t in tests for d in _divisors(t.value)))
        if not tests or group > MAX_REMAINDERS or s.var.extent < MIN_RANGE:
            return None
        ranges = _ranges_of(tests, s.var.extent, group)
        if ranges is None or max(r.last - r.first for r in ranges) * group < MIN_RANGE:
            return None
        return tuple(self._range(s, tests, r, group) for r in ranges)

    def _range(self, s: For, tests: Sequence[lir.IndexTest], r: _Range, group: int) -> lir.Stmt:
        var = Var(f"{s.var.name}{self._suffix()}", r.last - r.first)
        body: list[lir.Stmt] = []
        for k, outcomes in enumerate(r.outcomes):
            at: dict[IndexSymbol, IndexExpr] = {s.var: (ix.of(var) + r.first) * group + k}
            body += copy_with(s.body, dict(zip(tests, outcomes, strict=True)), at, self._suffix())
        return For(var, LoopKind.SERIAL if var.extent < SHORT else LoopKind.INDEPENDENT, tuple(body))


@dataclass(frozen=True)
class _Range:
    """A range of groups: the outcomes of the tests for each element of a group; the last group may have fewer."""

    first: int
    last: int
    outcomes: tuple[tuple[bool, ...], ...]


def _ranges_of(tests: Sequence[lir.IndexTest], extent: int, group: int) -> list[_Range] | None:
    """Return the ranges of groups with equal outcomes; None if there are too many."""
    whole = extent // group
    values = _evaluate(tests, np.arange(whole * group)).reshape(len(tests), whole, group)
    changes = np.flatnonzero((values[:, 1:] != values[:, :-1]).any(axis=(0, 2))) + 1
    starts = [0, *changes.tolist(), whole]
    if len(starts) > MAX_RANGES:
        return None
    found = [_Range(a, b, _columns(values[:, a])) for a, b in itertools.pairwise(starts)]
    if extent % group:
        found.append(_Range(whole, whole + 1, _columns(_evaluate(tests, np.arange(whole * group, extent)))))
    return found


def _columns(values: Outcomes) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(bool(x) for x in column) for column in values.T)


def _tests_of(s: For) -> list[lir.IndexTest]:
    """Return the tests in a loop that depend on its variable alone."""
    if s.var.extent > MAX_EXTENT:
        return []
    found = (x.value for x in lir.walk(s.body) if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest))
    return list(dict.fromkeys(t for t in found if set(t.value.variables()) == {s.var}))


def _divisors(i: IndexExpr) -> Iterator[int]:
    for symbol, _ in i.terms:
        if isinstance(symbol, Quotient | Remainder):
            yield symbol.divisor
            yield from _divisors(symbol.value)


def _evaluate(tests: Sequence[lir.IndexTest], positions: npt.NDArray[np.int64]) -> Outcomes:
    """Return the outcome of each test at each position of the only variable."""
    out = np.ones((len(tests), len(positions)), bool)
    for row, t in zip(out, tests, strict=True):
        values = _values(t.value, positions)
        if t.low is not None:
            row &= values >= t.low
        if t.high is not None:
            row &= values <= t.high
    return out


def _values(i: IndexExpr, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    total = np.full(len(positions), i.const, np.int64)
    for symbol, factor in i.terms:
        if isinstance(symbol, Quotient):
            total += factor * (_values(symbol.value, positions) // symbol.divisor)
        elif isinstance(symbol, Remainder):
            total += factor * (_values(symbol.value, positions) % symbol.divisor)
        else:
            total += factor * positions
    return total
