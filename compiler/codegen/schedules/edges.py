"""Loops over regions: edges of windows and pads are split out of the loops over single elements.

A pad, a window or a slice of them tests for each element whether an index is inside an array. Where the tests depend on
one loop variable, there are few different outcomes: the first elements, the last ones, all between them, and for a
dilated pad, each remainder of the index. Then:

- a loop over single elements becomes one loop for each range of equal outcomes, over groups of elements if the outcome
  depends on the remainder: the long ones have no tests, and their vectors no masks;
- so does a loop over rows of a few elements, whose iterations will be written out;
- any other loop around others gets branches, one for each outcome.

The statements are copied for each outcome without those that it does not need.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Quotient, Remainder, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import map_bodies, names_defined, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.few_elements import LONGEST_MOVE, has_few_elements, moves_few
from compiler.codegen.schedules.index_tests import Outcomes, outcomes_of, tests_of
from compiler.codegen.schedules.known_tests import COPYABLE, Facts, copy_with
from compiler.codegen.schedules.loop_transforms import has_loop, without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.tails import LEAST_LANES, takes_a_vector
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

KINDS = ("loop", "in-place-update", "transpose")
"""The kinds of kernels whose loops are split, those around others as well."""
REDUCTIONS = ("reduction", "column-reduction", "block")
"""The kinds of kernels whose loops over single elements are split, with those of reductions (`reduction_edges`)."""
MIN_RANGE = 16
"""Minimum number of elements of the longest range of a loop over single elements, those of a vector."""
LEAST_SCALAR = 2
"""The same of a loop of which the C compiler makes no vectors: each element takes branches."""
LEAST_APART = 8
"""The same where branches load elements that are apart: vectors of these have no masks, and load them one by one."""
TEST_WORK = 4
"""Statements that take as long as a test of an element in a vector and the two loads between which it selects."""
MAX_RANGES = 9
"""Maximum number of ranges of a loop over single elements."""
MAX_OUTCOMES, MAX_ROWS = 5, 16
"""Maximum number of outcomes for which the body of an outer loop is copied, and of those that leave most of it out."""
LEFT_OUT, LEAST_LEFT_OUT = 3, 256
"""Copies must divide the work of a row by this factor and save as many statements: gcc itself copies a loop for
a few tests, and each row takes a branch."""
MAX_REMAINDERS = 4
"""Maximum number of elements of a group whose outcomes differ."""
MAX_STATEMENTS = 700
"""Maximum number of statements of all copies of a loop: the C compiler takes as long as there are statements."""
COPIED = 8
"""Statements that may be copied for each of those that may be left: most copies are copied again, or are not used."""
NARROWEST_GATHERED = 4
"""Bytes of the narrowest elements that vectors gather."""
SHORT = 4
"""Ranges of fewer iterations are not worth a vector."""


def split_edges(kernel: lir.Kernel, body: Body, schedule: Schedule) -> Body:
    """Return the unbound statements of a kernel with the edges of its loops split where it is worthwhile."""
    if not schedule.edges or not schedule.vector or kernel.kind not in KINDS + REDUCTIONS:
        return body
    if kernel.kind in REDUCTIONS:
        edges = _Edges(kernel, (_Branches.NONE,), schedule.short)
    elif all(isinstance(s, COPYABLE) for s in walk(body)):
        edges = _Edges(kernel, tuple(_Branches), schedule.short)
    else:
        return body
    split = edges.body(body)
    return without_dead_code(split) if edges.copies else body


class _TooManyError(Exception):
    """The copies of a loop would have too many statements."""


class _Branches(enum.Enum):
    """The outcomes for which the bodies of loops around others are copied, in order of preference."""

    ALL = "all"
    MIDDLE = "middle"  # that of most iterations; the others run the body as it is
    NONE = "none"


class _Edges:
    """The split of the loops of one kernel.

    Attributes:
        branches: for which outcomes the bodies of loops around others may be copied.
        short: maximum number of iterations of a loop that is unrolled.
        copies: the number of copies so far.
        room: the number of statements that copies of the present loop may still have.
    """

    def __init__(self, kernel: lir.Kernel, branches: Sequence[_Branches], short: int) -> None:
        self.branches = branches
        self.short = short
        self._narrow = frozenset(a.name for a in kernel.arguments if a.type.byte_size < NARROWEST_GATHERED)
        self.copies = 0
        self.room = 0

    def body(self, body: Body) -> Body:
        return tuple(x for s in body for x in self._top(s))

    def _top(self, s: lir.Stmt) -> Body:
        """Split an outermost loop, with branches for as many outcomes as there is room for."""
        if not isinstance(s, For):
            return (map_bodies(s, self.body),)
        for branches in self.branches:
            self.room = COPIED * MAX_STATEMENTS
            with contextlib.suppress(_TooManyError):
                split = self._statement(s, branches)
                if _size(without_dead_code(split)) <= MAX_STATEMENTS:
                    return split
        return (s,)

    def _statement(self, s: lir.Stmt, branches: _Branches) -> Body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.base is None:
            tests = tests_of(s)
            if not has_loop(s.body):
                return self._ranges(s, tests) or (s,)
            if tests and (has_few_elements(s, self.short) or _moves_short_rows(s)):
                ranges = self._ranges(s, tests)
                if ranges is not None:
                    return ranges
            if branches is not _Branches.NONE and tests:
                if _leaves_most_out(s, tests):
                    return (self._branches(s, tests, branches, MAX_ROWS),)
                if self._has_ranges(s.body) or _has_no_vectors(s, tests) or _has_short_rows(s, tests):
                    return (self._branches(s, tests, branches),)
        return (map_bodies(s, lambda inner: self._body(inner, branches)),)

    def _body(self, body: Body, branches: _Branches) -> Body:
        return tuple(x for s in body for x in self._statement(s, branches))

    def _copy(self, body: Body, facts: Facts, at: Mapping[IndexSymbol, IndexExpr]) -> Body:
        copied = copy_with(body, facts, at, self._suffix())
        self.room -= _size(copied)
        if self.room < 0:
            raise _TooManyError
        return copied

    def _has_ranges(self, body: Body) -> bool:
        """Check whether a loop over single elements is split; short ones are faster whole, and without branches."""
        loops = (s for s in walk(body) if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.base is None)
        return any(
            not has_loop(s.body) and worthwhile_ranges(s, tests_of(s), is_scalar=self._is_scalar(s)) for s in loops
        )

    def _suffix(self) -> str:
        self.copies += 1
        return f"_{self.copies}"

    # ---- loops around others

    def _branches(self, s: For, tests: Sequence[lir.IndexTest], branches: _Branches, most: int = MAX_OUTCOMES) -> For:
        """Return a loop whose body is copied for the outcomes of the tests, which are `most` at most."""
        outcomes = outcomes_of(tests, np.arange(s.var.extent))
        if branches is _Branches.MIDDLE:
            body = self._apart(s.body, tests, outcomes)
        elif len(np.unique(outcomes, axis=1).T) <= most:
            body = self._body(self._decide(s.body, list(tests), outcomes, {}), branches)
        else:
            body = self._body(s.body, branches)
        return For(s.var, s.kind, body, s.combined, grain=s.grain)

    def _apart(self, body: Body, tests: Sequence[lir.IndexTest], outcomes: Outcomes) -> Body:
        """Return a branch on whether all tests hold, as in the middle; where they do not, the body stays as it is."""
        name = f"middle{self._suffix()}"
        lets: list[lir.Stmt] = []
        holds = ""
        for k, t in enumerate(tests):
            lets.append(lir.Let(f"{name}_{k}", T.PRED, t))
            if holds:
                both = lir.Apply(binary(Opcode.AND, T.PRED), (holds, f"{name}_{k}"))
                lets.append(lir.Let(f"{name}_and{k}", T.PRED, both))
            holds = f"{name}_and{k}" if holds else f"{name}_{k}"
        if np.count_nonzero(outcomes.all(axis=0)) * 2 < outcomes.shape[1]:
            return self._body(body, _Branches.MIDDLE)
        middle = self._body(self._copy(body, dict.fromkeys(tests, True), {}), _Branches.MIDDLE)
        return *lets, lir.If(holds, middle, self._copy(body, {}, {}))

    def _decide(self, body: Body, tests: list[lir.IndexTest], outcomes: Outcomes, facts: Facts) -> Body:
        """Return branches on the tests whose outcome differs; columns of `outcomes` are the possible iterations."""
        known = {t: bool(row[0]) for t, row in zip(tests, outcomes, strict=True) if (row == row[0]).all()}
        facts = {**facts, **known}
        left = [k for k, t in enumerate(tests) if t not in known]
        if not left:
            return self._copy(body, facts, {})
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
        if not tests or moves_few(s):
            return None
        ranges = worthwhile_ranges(s, tests, self.branches == (_Branches.NONE,), has_loop(s.body) or self._is_scalar(s))
        if ranges is None or not all(isinstance(x, COPYABLE) for x in walk(s.body)):
            return None
        found = (self._range(s, tests, r, _group_of(tests)) for r in ranges)
        return tuple(x for f in found for x in self._again(f))

    def _again(self, s: For) -> Body:
        """Split the loop of a range again, if indices that are known there make further tests those of its variable."""
        if s.kind is not LoopKind.INDEPENDENT:
            return (s,)
        return self._ranges(s, tests_of(s)) or (s,)

    def _is_scalar(self, s: For) -> bool:
        """Check whether a loop loads elements, by indices or under a mask, for which there is no vector instruction."""
        computed = set(names_defined(s.body))
        if any(ix.depends_on(i.offset, computed) for i in self._narrow_loads(s.body)):
            return True
        branches = [x for x in walk(s.body) if isinstance(x, lir.If)]
        return any(s.var in i.offset.variables() for x in branches for i in self._narrow_loads((*x.then, *x.otherwise)))

    def _narrow_loads(self, body: Body) -> list[lir.Load]:
        loads = (x.value for x in walk(body) if isinstance(x, lir.Let) and isinstance(x.value, lir.Load))
        return [i for i in loads if i.buffer in self._narrow]

    def _range(self, s: For, tests: Sequence[lir.IndexTest], r: Range, group: int) -> For:
        var = Var(f"{s.var.name}{self._suffix()}", r.last - r.first)
        body: list[lir.Stmt] = []
        for k, outcomes in enumerate(r.outcomes):
            at: dict[IndexSymbol, IndexExpr] = {s.var: (ix.of(var) + r.first) * group + k}
            body += self._copy(s.body, dict(zip(tests, outcomes, strict=True)), at)
        return For(var, LoopKind.SERIAL if var.extent < SHORT else LoopKind.INDEPENDENT, tuple(body))


def _moves_short_rows(s: For) -> bool:
    """Check for a loop over many rows that are written out where the tests of the rows are known (`short_moves`)."""
    inner = s.body[0]
    if len(s.body) != 1 or not isinstance(inner, For) or inner.var.extent > LONGEST_MOVE or s.var.extent < MIN_RANGE:
        return False
    values = [x for x in walk(inner.body) if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)]
    return not has_loop(inner.body) and all(x.type is T.PRED for x in values)  # such as that both indices are inside


def _has_no_vectors(s: For, tests: Sequence[lir.IndexTest]) -> bool:
    """Check whether the C compiler finds no vectors for loops over elements inside of a loop, because of its tests.

    These are loops that compute a function where a test holds, and those that load the same element for all of them
    there, which is under a mask then.
    """
    branches = ((f.var, x) for f in _loops_over_elements(s) for x in _decided(f.body, _named(tests, s.body)))
    return any(_needs_branch(x, v) for v, branch in branches for x in walk((*branch.then, *branch.otherwise)))


def _has_short_rows(s: For, tests: Sequence[lir.IndexTest]) -> bool:
    """Check whether the tests of a loop are in many short rows inside, which are only joined where they have none."""
    names = _named(tests, s.body)
    loops = [x for x in s.body if isinstance(x, For) and x.var.extent >= MIN_RANGE]
    inner = [y for x in loops for y in x.body if isinstance(y, For) and y.var.extent < MIN_RANGE]
    return any(any(_decided(y.body, names)) for y in inner)


def _leaves_most_out(s: For, tests: Sequence[lir.IndexTest]) -> bool:
    """Check whether most work of the loops over elements inside of a loop is in branches that its tests do not take.

    So it is where rows are joined from many arrays: vectors load the elements of all of them.
    """
    loops = [f for f in _loops_over_elements(s) if f.var.extent >= MIN_RANGE]
    whole = sum(f.var.extent * _work_where(f.body, {}) for f in loops)
    if whole < LEAST_LEFT_OUT:
        return False
    named = _named(tests, s.body)
    outcomes = outcomes_of(tests, np.arange(s.var.extent))
    starts = [0, *_changes(outcomes).tolist(), s.var.extent]
    if len(starts) > MAX_ROWS + 1:
        return False
    taken = 0
    for first, after in itertools.pairwise(starts):
        facts = dict(zip(tests, outcomes[:, first].tolist(), strict=True))
        holds = {name: facts[test] for name, test in named.items()}
        taken += (after - first) * sum(f.var.extent * _work_where(f.body, holds) for f in loops)
    taken //= s.var.extent
    return whole >= max(LEFT_OUT * taken, taken + LEAST_LEFT_OUT)


def _work_where(body: Body, holds: Mapping[str, bool]) -> int:
    """Return the work of statements of which vectors compute both sides of branches, but for those on known values."""
    total = 0
    for s in body:
        if not isinstance(s, lir.If):
            total += work_of((s,))
        elif s.condition in holds:
            total += _work_where(s.then if holds[s.condition] else s.otherwise, holds)
        else:
            total += 1 + _work_where(s.then, holds) + _work_where(s.otherwise, holds)
    return total


def _named(tests: Collection[lir.IndexTest], body: Body) -> dict[str, lir.IndexTest]:
    """Return the tests among the values of statements, by the names of these."""
    lets = (x for x in walk(body) if isinstance(x, lir.Let))
    return {x.name: x.value for x in lets if isinstance(x.value, lir.IndexTest) and x.value in tests}


def _loops_over_elements(s: For) -> list[For]:
    return [x for x in walk(s.body) if isinstance(x, For) and not has_loop(x.body)]


def _decided(body: Body, names: Collection[str]) -> Iterator[lir.If]:
    """Yield the branches on some values."""
    return (x for x in walk(body) if isinstance(x, lir.If) and x.condition in names)


def _needs_branch(s: lir.Stmt, v: Var) -> bool:
    if not isinstance(s, lir.Let):
        return False
    return _is_function(s.value) or (isinstance(s.value, lir.Load) and v not in s.value.offset.variables())


@dataclass(frozen=True)
class Range:
    """A range of groups: the outcomes of the tests for each element of a group; the last group may have fewer."""

    first: int
    last: int
    outcomes: tuple[tuple[bool, ...], ...]


def _group_of(tests: Sequence[lir.IndexTest]) -> int:
    """Return the number of elements after which the outcomes of tests repeat, away from the edges."""
    return math.lcm(1, *(d for t in tests for d in _divisors(t.value)))


def worthwhile_ranges(
    s: For, tests: Sequence[lir.IndexTest], priced: bool = False, is_scalar: bool = False
) -> list[Range] | None:
    """Return the ranges of a loop over single elements, or None if it should stay as it is.

    Args:
        s: the loop.
        tests: its tests.
        priced: whether ranges have a price even if the loop computes no functions, as those of a reduction have.
        is_scalar: whether the C compiler makes no vectors of the loop as it is.
    """
    group = _group_of(tests)
    if not tests or group > MAX_REMAINDERS or s.var.extent < (LEAST_SCALAR if is_scalar else LEAST_APART):
        return None
    least = LEAST_SCALAR if is_scalar else LEAST_APART if _chooses_apart(s) else MIN_RANGE
    ranges = _ranges_of(tests, s.var.extent, group)
    if ranges is None or max(r.last - r.first for r in ranges) * group < least:
        return None
    if not priced and not any(isinstance(x, lir.Let) and _is_function(x.value) for x in walk(s.body)):
        return ranges
    # What remains over after whole vectors is computed one by one, where a function takes as long as in a vector. A
    # test takes as long as a few statements, and a vector takes both branches.
    divided = sum(_steps((r.last - r.first) * group) for r in ranges) * work_of(s.body)
    both = sum(work_of((x,)) for x in walk(s.body) if not isinstance(x, lir.If))
    narrowest = LEAST_LANES if not priced and any(map(takes_a_vector, walk(s.body))) else MIN_RANGE // 2
    steps = s.var.extent if is_scalar else _steps(s.var.extent, narrowest)
    return ranges if divided < steps * (both + TEST_WORK * len(tests)) else None


def _chooses_apart(s: For) -> bool:
    """Check whether a branch of a loop loads elements that are apart in memory."""
    branches = [x for x in walk(s.body) if isinstance(x, lir.If)]
    inside = [x for b in branches for x in walk((*b.then, *b.otherwise)) if isinstance(x, lir.Let)]
    loads = [x.value for x in inside if isinstance(x.value, lir.Load)]
    return any(abs(load.offset.coefficient(s.var)) > 1 for load in loads)


def _is_function(value: lir.Expr) -> bool:
    is_costly = isinstance(value, lir.Apply) and value.op.is_expensive and value.op.type.is_float
    return is_costly and isinstance(value, lir.Apply) and value.op.opcode is not Opcode.DIVIDE


def _steps(extent: int, narrowest: int = MIN_RANGE // 2) -> int:
    """Return the number of vectors and single elements of a loop, given whole vectors and narrower ones."""
    steps, lanes = 0, MIN_RANGE
    while lanes >= narrowest:
        steps, extent, lanes = steps + extent // lanes, extent % lanes, lanes // 2
    return steps + extent


def _ranges_of(tests: Sequence[lir.IndexTest], extent: int, group: int) -> list[Range] | None:
    """Return the ranges of groups with equal outcomes; None if there are too many."""
    whole = extent // group
    values = outcomes_of(tests, np.arange(whole * group)).reshape(len(tests), whole, group)
    starts = [0, *_changes(values.swapaxes(1, 2).reshape(-1, whole)).tolist(), whole]
    if len(starts) > MAX_RANGES:
        return None
    found = [Range(a, b, _columns(values[:, a])) for a, b in itertools.pairwise(starts)]
    if extent % group:
        found.append(Range(whole, whole + 1, _columns(outcomes_of(tests, np.arange(whole * group, extent)))))
    return found


def _changes(outcomes: Outcomes) -> npt.NDArray[np.int64]:
    """Return the columns that differ from the one before."""
    return np.flatnonzero((outcomes[:, 1:] != outcomes[:, :-1]).any(axis=0)) + 1


def _size(body: Body) -> int:
    return sum(1 for _ in walk(body))


def _columns(values: Outcomes) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(bool(x) for x in column) for column in values.T)


def _divisors(i: IndexExpr) -> Iterator[int]:
    for symbol, _ in i.terms:
        if isinstance(symbol, Quotient | Remainder):
            yield symbol.divisor
            yield from _divisors(symbol.value)
