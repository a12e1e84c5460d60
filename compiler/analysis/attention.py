"""Recognition of attention: a softmax of scores that come from a dot, followed by a dot with values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

_RESHAPES = frozenset({Opcode.RESHAPE, Opcode.BITCAST})


@dataclass(frozen=True)
class Attention:
    """The instructions that an attention consists of: output = softmax(scores) values.

    Attributes:
        output: the dot of weights and values.
        weights: the operand of `output` that holds the softmax.
        chain: the instructions from `weights` to `scores`, both included; each has the elements of the next, in the
            same row-major order unless it is a transpose.
        scores: what the softmax is taken of.
        axis: the dimension of `scores` along which the weights sum to 1.
        dot: the dot from which the scores are computed.
        most: the reduction that yields the largest score of each row.
        total: the sum of the exponentials of each row.
        zero_if_masked: whether a row whose scores are all -inf has weights of 0 instead of NaN.
        inside: all instructions of the softmax, `scores` and `output` excluded.
    """

    output: HloInstruction
    weights: HloInstruction
    chain: tuple[HloInstruction, ...]
    scores: HloInstruction
    axis: int
    dot: HloInstruction
    most: HloInstruction
    total: HloInstruction
    zero_if_masked: bool
    inside: frozenset[HloInstruction]

    @property
    def keeps_rows(self) -> bool:
        """Whether `most` and `total` have the dimensions of `scores` without `axis`."""
        sizes, rows = self.scores.shape.dimensions, (self.most, self.total)
        return all(r.operands[0].shape.dimensions == sizes and tuple(r.dimensions) == (self.axis,) for r in rows)

    @property
    def values(self) -> HloInstruction:
        """Return the operand of `output` that holds the values."""
        lhs, rhs = self.output.operands
        return rhs if lhs is self.weights else lhs


def match_attention(output: HloInstruction) -> Attention | None:
    """Return the attention that ends in a dot, or None."""
    if output.opcode is not Opcode.DOT or len(output.operands) != 2:
        return None
    for weights in output.operands:
        found = _Matcher(output, weights).match()
        if found is not None:
            return found
    return None


def attention_of(computation: HloComputation) -> Attention | None:
    """Return the attention that the dots of a computation form, if they are two and do."""
    dots = [i for i in computation.post_order() if i.opcode is Opcode.DOT]
    found = match_attention(dots[-1]) if len(dots) == 2 else None
    return found if found is not None and found.dot is dots[0] else None


def _keeps_order(i: HloInstruction) -> bool:
    """Check for a reshape, or a conversion between floats."""
    return i.opcode in _RESHAPES or (i.opcode is Opcode.CONVERT and i.operands[0].shape.element_type.is_float)


def _keeps_elements(i: HloInstruction) -> bool:
    return i.opcode is Opcode.TRANSPOSE or _keeps_order(i)


class _Matcher:
    """Matches the softmax of one operand, from its result upwards."""

    def __init__(self, output: HloInstruction, weights: HloInstruction) -> None:
        self.output, self.weights = output, weights
        self.inside: set[HloInstruction] = set()
        self.chain: list[HloInstruction] = []

    def match(self) -> Attention | None:
        i, masked = self._down(self.weights, _keeps_elements), None
        if i.opcode is Opcode.SELECT:  # a row without any score gets weights of 0
            masked, zero, rest = i.operands
            if _splat(zero) != 0:
                return None
            self._note(zero)
            i = self._down(self._push(i, rest))
        if i.opcode is not Opcode.DIVIDE:
            return None
        total = self._reduction(i.operands[1], i.shape.dimensions, "add")
        sums, start = i.operands[1], len(self.chain) + 1
        exponential = self._down(self._push(i, i.operands[0]), _keeps_elements)
        if (
            total is None
            or not self._repeats(sums, total, self.chain[start:])
            or exponential.opcode is not Opcode.EXPONENTIAL
            or not self._is(total.operands[0], exponential)
        ):
            return None
        difference = self._down(self._push(exponential, exponential.operands[0]))
        if difference.opcode is not Opcode.SUBTRACT:
            return None
        scores = self._push(difference, difference.operands[0])
        most = self._reduction(difference.operands[1], difference.shape.dimensions, "maximum")
        axis = self._axis(difference.operands[1])
        if most is None or axis is None or not self._is(most.operands[0], scores):
            return None
        if masked is not None and not self._is_masked(masked, scores):
            return None
        dot = _single_dot(scores)
        if dot is None or not self._same_row(total, scores, axis) or not self._same_row(most, scores, axis):
            return None
        self.chain.append(scores)
        inside = frozenset(self.inside - {scores})
        return Attention(
            self.output, self.weights, tuple(self.chain), scores, axis, dot, most, total, masked is not None, inside
        )  # fmt: skip

    @staticmethod
    def _repeats(broadcast: HloInstruction, total: HloInstruction, between: Sequence[HloInstruction]) -> bool:
        """Check that sums are repeated along the rows that they are sums of, if these are transposed `between`."""
        if all(i.opcode is not Opcode.TRANSPOSE for i in between):
            return True
        if broadcast.operands[0] is not total or any(i.opcode in _RESHAPES for i in between):
            return False
        at = list(range(broadcast.shape.rank))
        for i in between:
            if i.opcode is Opcode.TRANSPOSE:
                at = [i.dimensions[d] for d in at]
        return [at[d] for d in broadcast.dimensions] == [d for d in range(len(at)) if d not in total.dimensions]

    def _note(self, i: HloInstruction) -> HloInstruction:
        self.inside.add(i)
        return i

    def _push(self, i: HloInstruction, operand: HloInstruction) -> HloInstruction:
        """Note an instruction of the chain and return the next."""
        self._note(i)
        self.chain.append(i)
        return operand

    def _down(self, i: HloInstruction, skipped: Callable[[HloInstruction], bool] = _keeps_order) -> HloInstruction:
        """Skip reshapes and conversions between floats."""
        while skipped(i):
            i = self._push(i, i.operands[0])
        return i

    def _reduction(self, i: HloInstruction, sizes: tuple[int, ...], combiner: str) -> HloInstruction | None:
        """Return the reduction of rows that an operand is the broadcast of."""
        if i.opcode is not Opcode.BROADCAST or i.shape.dimensions != sizes:
            return None
        self._note(i)
        i = i.operands[0]
        while i.opcode in _RESHAPES or i.opcode is Opcode.CONVERT:
            self._note(i)
            i = i.operands[0]
        if i.opcode is not Opcode.REDUCE or len(i.operands) != 2 or len(i.dimensions) != 1:
            return None
        root = i.attributes["to_apply"].root
        if root.opcode.text != combiner or {o.opcode for o in root.operands} != {Opcode.PARAMETER}:
            return None
        if root.operands[0] is root.operands[1] or _splat(i.operands[1]) != (0 if combiner == "add" else -math.inf):
            return None
        return self._note(i)

    @staticmethod
    def _axis(broadcast: HloInstruction) -> int | None:
        """Return the only dimension along which a broadcast repeats, if its dimensions are in order."""
        missing = [d for d in range(broadcast.shape.rank) if d not in broadcast.dimensions]
        in_order = list(broadcast.dimensions) == sorted(broadcast.dimensions)
        return missing[0] if len(missing) == 1 and in_order else None

    def _is(self, i: HloInstruction, wanted: HloInstruction) -> bool:
        """Check whether an instruction has the elements of another in the same order."""
        passed = [i]
        while i is not wanted and (i.opcode in _RESHAPES or i.opcode is Opcode.CONVERT):
            i = i.operands[0]
            passed.append(i)
        wanted_from = wanted
        upward = [wanted]
        while wanted_from.opcode in _RESHAPES:
            wanted_from = wanted_from.operands[0]
            upward.append(wanted_from)
        if i is not wanted and passed[-1] not in upward:
            return False
        self.inside.update(x for x in passed if x not in upward)
        return True

    def _same_row(self, reduce: HloInstruction, scores: HloInstruction, axis: int) -> bool:
        """Check whether a reduction is along `axis` of the scores, although their dimensions may be merged."""
        sizes, (d,) = reduce.operands[0].shape.dimensions, reduce.dimensions
        mine = scores.shape.dimensions
        return sizes[d] == mine[axis] and math.prod(sizes[:d]) == math.prod(mine[:axis])

    def _is_masked(self, i: HloInstruction, scores: HloInstruction) -> bool:
        """Check for broadcast(all(scores == -inf)) or broadcast(not(any(scores != -inf)))."""
        self._note(i)
        if i.opcode is not Opcode.BROADCAST:
            return False
        i, negated = i.operands[0], False
        while i.opcode in _RESHAPES or i.opcode is Opcode.NOT:
            negated ^= i.opcode is Opcode.NOT
            i = self._note(i).operands[0]
        if i.opcode is not Opcode.REDUCE:
            return False
        root = i.attributes["to_apply"].root
        if root.opcode is not (Opcode.OR if negated else Opcode.AND) or root.operands[0] is root.operands[1]:
            return False
        self._note(i)
        test, start = i.operands[:2]
        if start.opcode is not Opcode.CONSTANT or bool(start.value.value.flat[0]) is negated:
            return False
        if test.opcode is not Opcode.COMPARE or test.attr("direction") != ("NE" if negated else "EQ"):
            return False
        if _splat(test.operands[1]) != -math.inf:
            return False
        self.inside.update((test, test.operands[1]))
        return self._is(test.operands[0], scores)


def _splat(i: HloInstruction) -> float | None:
    """Return the value of a float scalar constant or of a broadcast of one."""
    if i.opcode is Opcode.BROADCAST:
        i = i.operands[0]
    if i.opcode is not Opcode.CONSTANT or not i.shape.is_scalar or not i.shape.element_type.is_float:
        return None
    return float(i.value.value.flat[0])


def _single_dot(scores: HloInstruction) -> HloInstruction | None:
    """Return the only dot that scores are computed from element by element, or None."""
    found = [i for i in upstream(scores) if i.opcode is Opcode.DOT]
    return found[0] if len(found) == 1 else None


def upstream(scores: HloInstruction) -> Iterator[HloInstruction]:
    """Yield the instructions that scores are computed from element by element, and the dots where that ends."""
    seen = {scores}
    work = [scores]
    while work:
        i = work.pop()
        yield i
        if i.opcode in (Opcode.DOT, Opcode.CONSTANT, Opcode.IOTA):
            continue
        for o in i.operands:
            if o not in seen and _is_pointwise(o):
                seen.add(o)
                work.append(o)


def _is_pointwise(i: HloInstruction) -> bool:
    moved = (Opcode.DOT, Opcode.BROADCAST, Opcode.TRANSPOSE, Opcode.CONSTANT, Opcode.IOTA, *_RESHAPES)
    return i.opcode in moved or (i.opcode.is_elementwise and i.opcode not in (Opcode.COPY, Opcode.MAP))
