"""Linear recurrences in segments: a GPU runs the steps of all segments of a long loop at the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.while_loop import induction
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.attributes import PadDim, SliceDim
from compiler.ir.types import PrimitiveType as T
from compiler.passes.expanders.scan_expander import ScanExpander
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.loops.batching import Batched, batch, has_rule, stacked
from compiler.passes.loops.loop_editing import Loops
from compiler.passes.loops.loop_to_scan import Walk, carried_elements, is_plain, replace_by_scan, step_function
from compiler.passes.loops.scans import add_scan, step_of_array

_TYPES = frozenset({T.F32, T.F64})
MOST_INSTRUCTIONS = 100
"""Instructions of a step up to which it is looked at."""


@register
@dataclass(frozen=True)
class LinearRecurrences(Options):
    """Rewrite loops whose state follows c = a * c + b, with any a and b of the step's inputs, in three loops.

    The steps are divided into segments. The first loop computes for all segments at once what they make of a state of
    0, and the product of their factors; the second one, from segment to segment, the states at which they start; the
    third one runs the steps of the program from there. Averages that decay, returns and advantages of reinforcement
    learning, and filters are such loops. The state at the start of a segment is rounded differently. A state of 0 stays
    0 also where a product of factors overflows.

    Attributes:
        min_steps: least number of steps.
        max_state: maximum number of elements of the state: larger ones keep a GPU busy by themselves.
    """

    name: ClassVar[str] = "linear-recurrences"
    min_steps: int = number_option(128, 2, 1 << 30)
    max_state: int = number_option(1 << 12, 1, 1 << 30)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            counter = induction(view)
            if counter is None or counter.step != 1 or counter.trip_count < self.min_steps or not is_plain(view):
                continue
            if view.instruction.parent is not module.entry or len(view.body) > MOST_INSTRUCTIONS:
                continue
            walk = Walk.of(view, counter)
            if walk is None or walk.axis != 0 or not walk.reads:
                continue
            carried = carried_elements(view, counter, walk)
            shapes = [view.init[n].shape for n in carried]
            if not carried or any(s.element_type not in _TYPES or s.num_elements > self.max_state for s in shapes):
                continue
            function = step_function(view, counter, walk, carried, loops)
            needs_last = any(g.users or g.is_root for n in carried for g in view.results[n])
            segments = _segments(counter.trip_count, needs_last)
            found = None if segments is None else _Recurrence.of(function, len(walk.reads))
            if found is not None and segments is not None:
                replace_by_scan(view, counter, walk, loops, function, _Segments(found, *segments).add)
                changed = True
        if changed:
            ScanExpander().run(module)
            module.remove_unreachable()
        return changed


def _segments(steps: int, divides: bool) -> tuple[int, int] | None:
    """Return the number of segments and their steps, about as many that the sum of the three loops is least.

    Args:
        steps: number of steps.
        divides: whether the segments may not have more steps together.
    """
    wanted = math.isqrt(2 * steps)
    exact = [n for n in range(max(2, wanted // 2), 2 * wanted + 1) if steps % n == 0]
    if exact:
        segments = min(exact, key=lambda n: 2 * steps // n + n)
        return segments, steps // segments
    return None if divides else (-(-steps // (each := -(-steps // wanted))), each)


@dataclass(frozen=True)
class _Step:
    """A step of which some parameters are inputs and the others states.

    Attributes:
        inputs, states: its parameters.
        outputs: values of the step that are kept.
        following: the next states.
    """

    inputs: tuple[HloInstruction, ...]
    states: tuple[HloInstruction, ...]
    outputs: tuple[HloInstruction, ...]
    following: tuple[HloInstruction, ...]


@dataclass(frozen=True)
class _Recurrence:
    """A linear recurrence: each state is multiplied by factors and added to, all of which do not depend on states.

    A carried value that is nothing but an input of the step before counts as an input.

    Attributes:
        step: the step of the program.
        factors: a step that has no outputs, but for each state the product of its factors as another state.
        late: for each carried value that is an input of the step before its number and that of the input.
    """

    step: _Step
    factors: _Step
    late: dict[int, int]

    @staticmethod
    def of(function: HloComputation, inputs: int) -> _Recurrence | None:
        """Return the recurrence of a function of inputs and carried values, or None if it is no linear one."""
        plain = (Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE)
        if not all(i.opcode in plain or has_rule(i) for i in function.instructions):
            return None
        step, late = _divided_step(function, inputs)
        made = function.clone()
        copied, _ = _divided_step(made, inputs)
        b = Builder(made)
        factors = _factors(made, copied.states, b)
        totals, products = [], []
        for state, following in zip(copied.states, copied.following, strict=True):
            found = factors.get(following)
            if found is None or found[0] is not state or found[1] is None:
                return None
            totals.append(made.add_parameter(len(made.parameters), state.shape))
            products.append(b.add(Opcode.MULTIPLY, totals[-1], found[1]))
        doubled = _Step(copied.inputs, (*copied.states, *totals), (), (*copied.following, *products))
        return _Recurrence(step, doubled, late) if step.states else None


def _unreshaped(x: HloInstruction) -> HloInstruction:
    while x.opcode is Opcode.RESHAPE:
        x = x.operand(0)
    return x


def _divided_step(function: HloComputation, inputs: int) -> tuple[_Step, dict[int, int]]:
    """Return the step of a function of inputs and carried values, and which of these are inputs of the step before."""
    read, carried = function.parameters[:inputs], function.parameters[inputs:]
    returned = function.root.operands
    nexts = returned[len(returned) - len(carried) :]
    sources = [_unreshaped(x) for x in nexts]
    late = {n: read.index(x) for n, x in enumerate(sources) if x in read and x.shape == carried[n].shape}
    kept = [n for n in range(len(carried)) if n not in late]
    step = _Step(
        (*read, *(carried[n] for n in late)), tuple(carried[n] for n in kept),
        tuple(returned[: len(returned) - len(carried)]), tuple(nexts[n] for n in kept),
    )  # fmt: skip
    return step, late


_Factor = tuple[HloInstruction, "HloInstruction | None"]


def _factors(
    function: HloComputation, states: Sequence[HloInstruction], b: Builder
) -> Mapping[HloInstruction, _Factor]:
    """Return by which factor each value that depends on a state depends on it, and on which one.

    The factor is None if the value is no linear function of one state at the same position.
    """
    found: dict[HloInstruction, _Factor] = {s: (s, b.splat(1, s.shape)) for s in states}
    for i in function.post_order():
        inside = [o for o in i.operands if o in found]
        if i in found or not inside:
            continue
        state = found[inside[0]][0]
        known = all(found[o][0] is state and found[o][1] is not None for o in inside)
        found[i] = state, _factor(i, {o: found[o][1] for o in inside}, b) if known else None
    return found


def _factor(i: HloInstruction, by: Mapping[HloInstruction, HloInstruction | None], b: Builder) -> HloInstruction | None:
    """Return the factor of an op of which some operands have factors, or None if it is not linear."""
    of = [by.get(o) for o in i.operands]
    match i.opcode, of:
        case Opcode.ADD, _:
            left, right = of
            return b.add(Opcode.ADD, left, right) if left and right else left or right
        case Opcode.SUBTRACT, [left, None]:
            return left
        case Opcode.SUBTRACT, [None, right] if right is not None:
            return b.add(Opcode.NEGATE, right)
        case Opcode.SUBTRACT, [left, right] if left is not None and right is not None:
            return b.add(Opcode.SUBTRACT, left, right)
        case Opcode.MULTIPLY, [left, None] if left is not None:
            return b.add(Opcode.MULTIPLY, left, i.operand(1))
        case Opcode.MULTIPLY, [None, right] if right is not None:
            return b.add(Opcode.MULTIPLY, i.operand(0), right)
        case Opcode.DIVIDE, [left, None] if left is not None:
            return b.add(Opcode.DIVIDE, left, i.operand(1))
        case Opcode.NEGATE, [only] if only is not None:
            return b.add(Opcode.NEGATE, only)
        case Opcode.RESHAPE, [only] if only is not None:
            return b.reshape(only, i.shape.dimensions)
        case Opcode.SELECT, [None, left, right]:
            zero = b.splat(0, i.shape)
            return b.with_operands(i, [i.operand(0), left or zero, right or zero])
    return None


@dataclass(frozen=True)
class _Segments:
    """A recurrence in segments.

    Attributes:
        recurrence: its step.
        count: number of segments.
        steps: of each segment; all together may be more than there are.
    """

    recurrence: _Recurrence
    count: int
    steps: int

    def add(
        self,
        b: Builder,
        function: HloComputation,
        inputs: Sequence[HloInstruction],
        init: Sequence[HloInstruction],
        axis: int,
        reverse: bool,
    ) -> list[HloInstruction]:
        """Add the loops; arguments and result are those of `scans.add_scan`."""
        del function
        length, late, states = inputs[0].shape.dimensions[axis], self.recurrence.late, self.recurrence.step.states
        shifted = [_late(inputs[m], init[n], reverse, b) for n, m in late.items()]
        divided = [self._divided(x, length, reverse, b) for x in (*inputs, *shifted)]
        module = b.computation.parent
        assert module is not None  # noqa: S101 - the loop was found in it
        first = [b.reshape(s, (s.shape.num_elements,)) for n, s in enumerate(init) if n not in late]
        flat = [s.shape.with_dimensions((self.count * s.shape.num_elements,)) for s in first]
        zeros, ones = ([b.splat(n, s) for s in flat] for n in (0, 1))
        partial = module.add(_batched(self.recurrence.factors, self.count))
        ends = add_scan(b, partial, divided, [*zeros, *ones], 1, reverse)
        each = [b.reshape(x, (self.count, *s.shape.dimensions)) for x, s in zip(ends, (*first, *first), strict=True)]
        starts = add_scan(b, module.add(_following(first)), each, first, 0, reverse)[: len(first)]
        begun = [b.reshape(x, s.dimensions) for x, s in zip(starts, flat, strict=True)]
        found = add_scan(b, module.add(_batched(self.recurrence.step, self.count)), divided, begun, 1, reverse)
        outputs = [self._joined(x, length, reverse, b) for x in found[: len(found) - len(first)]]
        ended = iter(zip(found[len(outputs) :], states, strict=True))
        carried = []
        for n in range(len(init)):
            if n in late:
                carried.append(step_of_array(inputs[late[n]], 0, 0 if reverse else length - 1, b))
                continue
            x, s = next(ended)
            whole = b.reshape(x, (self.count, *s.shape.dimensions))
            carried.append(step_of_array(whole, 0, 0 if reverse else self.count - 1, b))
        return [*outputs, *carried]

    def _divided(self, x: HloInstruction, length: int, reverse: bool, b: Builder) -> HloInstruction:
        """Return an array of all steps as [segments, steps, ...], with zeros for steps that come last."""
        more = self.count * self.steps - length
        ends = [PadDim(more if reverse else 0, 0 if reverse else more), *(PadDim(0, 0),) * (x.shape.rank - 1)]
        whole = b.pad(x, b.scalar(0, x.shape.element_type), ends)
        return b.reshape(whole, (self.count, self.steps, *x.shape.dimensions[1:]))

    def _joined(self, x: HloInstruction, length: int, reverse: bool, b: Builder) -> HloInstruction:
        """Return an array [segments, steps, ...] with all steps that there are along its first dimension."""
        total = self.count * self.steps
        whole = b.reshape(x, (total, *x.shape.dimensions[2:]))
        first = total - length if reverse else 0
        rest = [SliceDim(0, n) for n in whole.shape.dimensions[1:]]
        return b.slice(whole, [SliceDim(first, first + length), *rest])


def _late(x: HloInstruction, first: HloInstruction, reverse: bool, b: Builder) -> HloInstruction:
    """Return an array of all steps moved on by one step, with an initial value."""
    length, sizes = x.shape.dimensions[0], x.shape.dimensions[1:]
    kept = SliceDim(1, length) if reverse else SliceDim(0, length - 1)
    rest = b.slice(x, [kept, *(SliceDim(0, n) for n in sizes)])
    start = b.reshape(first, (1, *sizes))
    return b.concatenate([rest, start] if reverse else [start, rest], 0)


def _batched(step: _Step, count: int) -> HloComputation:
    """Return a function of `count` steps at once, all of whose instructions have a rule.

    Inputs and outputs have a new leading dimension; states have one dimension, which threads divide.
    """
    made = HloComputation("segments")
    b = Builder(made)
    values: dict[HloInstruction, Batched] = {}
    for n, p in enumerate((*step.inputs, *step.states)):
        sizes = (count, *p.shape.dimensions)
        shape = p.shape.with_dimensions(sizes if n < len(step.inputs) else (math.prod(sizes),))
        values[p] = Batched(b.reshape(made.add_parameter(n, shape), sizes), varies=True)
    function = step.states[0].parent
    assert function is not None  # noqa: S101 - a parameter has one
    for i in function.post_order():
        if i in values or i.opcode is Opcode.TUPLE:
            continue
        operands = [values[o] for o in i.operands]
        if not any(o.varies for o in operands):
            values[i] = Batched(made.clone_instruction(i, [o.value for o in operands]), varies=False)
            continue
        stacked_value = batch(i, operands, count, b)
        assert stacked_value is not None  # noqa: S101 - operands that may not vary are constants
        values[i] = Batched(stacked_value, varies=True)
    outputs = [stacked(values[o], count, b) for o in step.outputs]
    following = [stacked(values[o], count, b) for o in step.following]
    states = [b.reshape(x, (x.shape.num_elements,)) for x in following]
    made.root = b.add(Opcode.TUPLE, *outputs, *states)
    made.remove_dead()
    return made


def _following(states: Sequence[HloInstruction]) -> HloComputation:
    """Return the step from segment to segment: inputs are ends and products of factors, outputs the states before."""
    made = HloComputation("following")
    b = Builder(made)
    count = len(states)
    ends = [made.add_parameter(n, s.shape) for n, s in enumerate(states)]
    factors = [made.add_parameter(count + n, s.shape) for n, s in enumerate(states)]
    before = [made.add_parameter(2 * count + n, s.shape) for n, s in enumerate(states)]
    after = []
    for end, factor, state in zip(ends, factors, before, strict=True):
        zero = b.splat(0, state.shape)
        moved = b.add(Opcode.MULTIPLY, factor, state)
        kept = b.add(Opcode.SELECT, b.compare(state, zero, "EQ"), zero, moved)
        after.append(b.add(Opcode.ADD, kept, end))
    made.root = b.add(Opcode.TUPLE, *before, *after)
    return made
