"""Choices between regions: ops whose element comes from one operand or another, depending on where it lies.

A concatenate, a pad or a dynamic-update-slice becomes a branch that computes only the source an element comes from.
What both sides of a branch need of one earlier choice is computed once before it, at an index selected by the branch's
condition: else the text of a chain of choices would double with each link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen import scalar
from compiler.codegen.index import Index, Int
from compiler.codegen.indexing_maps import MOVES
from compiler.errors import UnsupportedError
from compiler.ir.attributes import PadDim
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

if TYPE_CHECKING:
    from compiler.codegen.emit import Emitter, Memo

NEAREST = 32
"""Choices above an instruction that are looked at."""
VISIT_LIMIT = 100_000
"""Steps of the searches for one kernel beyond which it is refused."""
_OPAQUE = frozenset({Opcode.CONSTANT, Opcode.IOTA, Opcode.GATHER, Opcode.REDUCE})

Test: TypeAlias = tuple[str, Int]
"""A predicate as a template over an integer, and the integer."""
Leaf: TypeAlias = tuple[HloInstruction, Index]
Found: TypeAlias = Mapping[HloInstruction, Index]


@dataclass(frozen=True, slots=True)
class Choice:
    """One source where every test holds, the other where one does not."""

    tests: tuple[Test, ...]
    then: Source
    otherwise: Source


Source: TypeAlias = Choice | Leaf


# ---- what each op chooses


def _within(at: Int, low: int, high: int) -> tuple[Test, ...] | None:
    """Tests that `at` lies in low .. high; None when it never does."""
    least, most = at.range
    if most < low or least > high:
        return None
    if least < low and most > high:
        return ((f"(({{0}} >= {low}) & ({{0}} <= {high}))", at),)
    if least < low:
        return ((f"({{0}} >= {low})", at),)
    return ((f"({{0}} <= {high})", at),) if most > high else ()


def _choice(tests: Sequence[Test], then: Source, otherwise: Source) -> Source:
    return Choice(tuple(tests), then, otherwise) if tests else then


def _concatenate(e: Emitter, i: HloInstruction, index: Index) -> Source:
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
    test = (f"({{0}} < {pieces[half][1]})", index[dim])
    return Choice((test,), _pieces(pieces[:half], index, dim), _pieces(pieces[half:], index, dim))


def _pad(e: Emitter, i: HloInstruction, index: Index) -> Source:
    del e
    config: tuple[PadDim, ...] = i.attributes["padding"]
    x, fill = i.operands
    outside: Leaf = (fill, ())
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
            tests.append((f"({{0}} % {step} == 0)", inside))
        source.append(inside.floordiv(step))
    return _choice(tests, (x, tuple(source)), outside)


def _update(e: Emitter, i: HloInstruction, index: Index) -> Source:
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
    return _choice(tests, (update, tuple(source)), (base, index))


CHOICES: Mapping[Opcode, Callable[[Emitter, HloInstruction, Index], Source]] = {
    Opcode.CONCATENATE: _concatenate,
    Opcode.PAD: _pad,
    Opcode.DYNAMIC_UPDATE_SLICE: _update,
}
"""Where an element of the op at an index comes from; single lets of starts may be emitted."""


# ---- starts known at run time


def update_starts(e: Emitter, i: HloInstruction) -> list[Int]:
    """Clamped start indices of a dynamic-update-slice."""
    return _starts(e, i, 2, i.operands[1].shape.dimensions)


def sliced_index(e: Emitter, i: HloInstruction, index: Index) -> Index:
    """Index of the operand of a dynamic-slice."""
    starts = _starts(e, i, 1, i.attributes["dynamic_slice_sizes"])
    return tuple(a + s for a, s in zip(index, starts, strict=True))


def _starts(e: Emitter, i: HloInstruction, first: int, sizes: Sequence[int]) -> list[Int]:
    dims = i.operands[0].shape.dimensions
    starts = i.operands[first:]
    if len(starts) == 1 and starts[0].shape.rank == 1:
        vector = starts[0]
        return [e.start(vector, (ix.const(k),), d - n) for k, (d, n) in enumerate(zip(dims, sizes, strict=True))]
    return [e.start(s, (), d - n) for s, d, n in zip(starts, dims, sizes, strict=True)]


# ---- emitting


def chosen_value(e: Emitter, i: HloInstruction, index: Index) -> str:
    """Name of the scalar `i[index]` of an op in CHOICES."""
    return _value(e, i.shape.element_type, CHOICES[i.opcode](e, i, index))


def _value(e: Emitter, t: T, source: Source) -> str:
    if not isinstance(source, Choice):
        return e.value(*source)
    known = _share(e, source)
    condition = _holds(e, source.tests)
    zero = e.let(t, lir.Constant(scalar.constant_text(0, t)))
    result = e.fresh("c")
    e.add(lir.Accumulator(result, t, zero))
    bodies = []
    for part, memo in zip((source.then, source.otherwise), known, strict=True):
        with e.guard() as frame:
            frame.memo.update(memo)
            e.add(lir.Assign(result, _value(e, t, part)))
        bodies.append(tuple(frame.stmts))
    e.add(lir.If(condition, bodies[0], bodies[1]))
    return e.let(t, lir.Current(result))


def _holds(e: Emitter, tests: tuple[Test, ...]) -> str:
    """A pred scalar: whether all tests hold."""
    return e.once(tests, lambda: e.all_of([e.apply(T.PRED, text, e.index_name(at)) for text, at in tests]))


def _share(e: Emitter, choice: Choice) -> tuple[Memo, Memo]:
    """Compute before a branch what both sides need of earlier choices; names to be known on each side."""
    known: tuple[Memo, Memo] = ({}, {})
    then, otherwise = _above(e, choice.then), _above(e, choice.otherwise)
    meeting, made = then & otherwise, (then | otherwise) & e.shared
    if not meeting and not made:
        return known
    sides = _sides(e, choice, made, meeting)
    for i in {**sides[0], **sides[1]}:
        names = _shared_names(e, choice.tests, i, sides[0].get(i), sides[1].get(i))
        for side, memo in zip(sides, known, strict=True):
            if names is not None and i in side:
                memo[i, side[i]] = names
    return known


def _shared_names(
    e: Emitter, tests: tuple[Test, ...], i: HloInstruction, then: Index | None, otherwise: Index | None
) -> tuple[str, ...] | None:
    """The value of `i` for both sides; for one side alone only where a branch around this one has it computed."""
    if then is not None and otherwise is not None:
        e.shared.add(i)
        return e.values(i, _select(e, tests, i, then, otherwise))
    at = _select(e, tests, i, then, otherwise, must_be_known=True)
    return e.known(i, at) if len(at) == i.shape.rank else None


def _select(
    e: Emitter,
    tests: tuple[Test, ...],
    i: HloInstruction,
    then: Index | None,
    otherwise: Index | None,
    must_be_known: bool = False,
) -> Index:
    """An index into `i`, in range everywhere: that of one side where the tests hold, else that of the other.

    With `must_be_known` nothing is emitted, and the index ends before a dimension for which something would be.
    """
    out: list[Int] = []
    for d, n in enumerate(i.shape.dimensions):
        a = ix.const(0) if then is None else then[d]
        b = ix.const(0) if otherwise is None else otherwise[d]
        if n == 1 or a == b:
            out.append(ix.const(0) if n == 1 else a)
            continue
        if must_be_known and e.helper((tests, a, b)) is None:
            break
        out.append(_select_one(e, tests, a, b, n))
    return tuple(out)


def _select_one(e: Emitter, tests: tuple[Test, ...], a: Int, b: Int, extent: int) -> Int:
    low, high = min(a.range[0], b.range[0]), max(a.range[1], b.range[1])

    def make() -> str:
        names = _holds(e, tests), e.index_name(a), e.index_name(b)
        return e.apply(T.S64, "({0} ? {1} : {2})", *names)

    return ix.of(e.runtime(e.once((tests, a, b), make), max(0, low), min(extent - 1, high)))


# ---- searching


def _above(e: Emitter, source: Source) -> frozenset[HloInstruction]:
    """Choices that computing `source` may meet, the nearest ones."""
    if isinstance(source, Choice):
        return _above(e, source.then) | _above(e, source.otherwise)
    return choices_above(e, source[0])


def choices_above(e: Emitter, i: HloInstruction) -> frozenset[HloInstruction]:
    """The instruction itself, if it is a choice, and the nearest choices it is computed from element by element."""
    found = e.above.get(i)
    if found is not None:
        return found
    parts = {choices_above(e, o) for o in _upstream(e, i)}
    all_: frozenset[HloInstruction] = next(iter(parts)) if len(parts) == 1 else frozenset().union(*parts)
    if i.opcode in CHOICES and i not in e.sources:
        all_ |= {i}
    if len(all_) > NEAREST:
        all_ = frozenset(sorted(all_, key=lambda c: e.numbers.get(c, len(e.numbers)))[-NEAREST:])
    e.above[i] = all_
    e.numbers[i] = len(e.numbers)
    return all_


def _upstream(e: Emitter, i: HloInstruction) -> Sequence[HloInstruction]:
    """Instructions one element of which an element of `i` is computed from."""
    op = i.opcode
    if i in e.sources or op in _OPAQUE:
        return ()
    if op is Opcode.PARAMETER:
        return (e.bound[i],) if i in e.bound else ()
    if op in (Opcode.FUSION, Opcode.CALL):
        return (e.enter(i),)
    if op is Opcode.GET_TUPLE_ELEMENT:
        element = e.element(i)
        return () if element is None else (element,)
    if op in MOVES or op is Opcode.DYNAMIC_SLICE:
        return i.operands[:1]
    return i.operands[:2] if op is Opcode.DYNAMIC_UPDATE_SLICE else i.operands


def _locate(e: Emitter, source: Source, wanted: frozenset[HloInstruction]) -> Found:
    """The index at which each of the wanted choices is needed first; not behind another wanted one."""
    if isinstance(source, Choice):
        return _locate_in_both(e, source, wanted)
    found: dict[HloInstruction, Index] = {}
    seen: set[Leaf] = set()
    work = [source]
    while work:
        leaf = i, index = work.pop()
        if leaf in seen or wanted.isdisjoint(choices_above(e, i)):
            continue
        seen.add(leaf)
        e.visits += 1
        if e.visits > VISIT_LIMIT:
            raise UnsupportedError("one kernel would choose between too many regions")
        if i in wanted:
            found.setdefault(i, index)
        elif i.opcode in CHOICES:
            found = {**_locate(e, CHOICES[i.opcode](e, i, index), wanted), **found}
        elif i.opcode in MOVES:
            work.append((i.operands[0], MOVES[i.opcode](i, index)))
        elif i.opcode is Opcode.DYNAMIC_SLICE:
            work.append((i.operands[0], sliced_index(e, i, index)))
        else:
            work += [(o, () if o.shape.is_scalar else index) for o in reversed(_upstream(e, i))]
    return found


def _locate_in_both(e: Emitter, choice: Choice, wanted: frozenset[HloInstruction]) -> Found:
    """As `_share` will compute it: what both sides need is met at one selected index, and searched on from there."""
    meeting = _above(e, choice.then) & _above(e, choice.otherwise)
    sides = _sides(e, choice, wanted, meeting)
    found: dict[HloInstruction, Index] = {}
    for i in {**sides[0], **sides[1]}:
        if i not in wanted and not (i in sides[0] and i in sides[1]):
            continue
        at = _select(e, choice.tests, i, sides[0].get(i), sides[1].get(i))
        for c, where in ({i: at} if i in wanted else _locate(e, (i, at), wanted)).items():
            found.setdefault(c, where)
    return found


def _sides(
    e: Emitter, choice: Choice, wanted: frozenset[HloInstruction], meeting: frozenset[HloInstruction]
) -> tuple[Found, Found]:
    """What each side needs of these; behind what only one side needs, the search goes on for what may meet."""
    parts = (choice.then, choice.otherwise)
    sides = tuple(dict(_locate(e, part, wanted | meeting)) for part in parts)
    for mine, other in (sides, sides[::-1]):
        work = [i for i in mine if i not in other]
        for i in work:
            for c, where in _locate(e, (i, mine[i]), meeting - {i}).items():
                if c not in mine:
                    mine[c] = where
                    work += [c] if c not in other else []
    return sides[0], sides[1]
