"""While loop unrolling: several iterations per body, or no loop at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.analysis.loop_marks import unroll_factor
from compiler.analysis.while_loop import Induction, LoopView, induction
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.attributes import Raw
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.loops.loop_editing import Loops, copy_condition, copy_iteration
from compiler.passes.loops.while_loop_simplifier import replace_loop


@register
@dataclass(frozen=True)
class WhileLoopUnroller(Options):
    """Unroll loops of known trip count, inner loops first.

    A loop with at most `max_trips` iterations and `max_ops` instructions in all of them becomes straight-line code.
    With `factor` above 1, any other innermost loop runs that many iterations at once, and the remainder of the trip
    count is peeled off before the loop.

    Attributes:
        factor: iterations per new body.
        full: whether to unroll loops completely.
        max_trips: largest trip count to unroll completely.
        max_ops: maximum number of instructions that unrolling one loop may create.
        stencils: also unroll loops whose iterations shift arrays of the state, by a concatenation or padding.
    """

    name: ClassVar[str] = "while-loop-unroller"
    factor: int = number_option(1, 1, 1024)
    full: bool = True
    max_trips: int = number_option(64, 0, 100_000)
    max_ops: int = number_option(4000, 0, 100_000)
    stencils: bool = True

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            counter = induction(view)
            if counter is None or any(has_side_effect(i) for i in view.condition.instructions):
                continue
            if self.stencils or not _is_stencil(view):
                changed |= self._unroll(view, counter, loops)
        if changed:
            module.remove_unreachable()
        return changed

    def _unroll(self, view: LoopView, counter: Induction, loops: Loops) -> bool:
        size = len(view.body)
        if self.full and counter.trip_count <= self.max_trips and counter.trip_count * size <= self.max_ops:
            unroll_fully(view, counter, loops)
            return True
        if self.factor <= 1 or self.factor * size > self.max_ops or not _worth_a_factor(view, counter, self.factor):
            return False
        unroll_by(view, counter, self.factor, loops)
        return True


def _is_stencil(view: LoopView) -> bool:
    """Check whether an array of the state's shape is put together from parts in the body."""
    carried = {v.shape.dimensions for v in view.init if v.shape.is_array and v.shape.rank > 0}
    shifts = (i for i in view.body.instructions if i.opcode in (Opcode.CONCATENATE, Opcode.PAD))
    return any(i.shape.dimensions in carried for i in shifts)


def _worth_a_factor(view: LoopView, counter: Induction, factor: int) -> bool:
    innermost = all(i.opcode is not Opcode.WHILE for i in view.body.instructions)
    # Unrolled loops are not unrolled again, so that the pass is idempotent.
    return innermost and counter.trip_count >= 2 * factor and unroll_factor(view.instruction) == 1


def unroll_fully(view: LoopView, counter: Induction, loops: Loops) -> None:
    """Replace the loop by one copy of the body per iteration, in which the counter is constant."""
    computation = view.instruction.parent
    if computation is None:
        raise ValueError(f"%{view.instruction.name} has been removed already")
    values, counted = _copy_iterations(view, counter, counter.trip_count, computation, loops)
    replace_loop(view, values)
    computation.remove_dead(counted)


def _copy_iterations(
    view: LoopView, counter: Induction, count: int, computation: HloComputation, loops: Loops
) -> tuple[list[HloInstruction], list[HloInstruction]]:
    """Copy the first `count` iterations into the loop's own computation.

    Returns:
        The values after them, and the copies of the counter that constants replace. Remove these only after all values
        are in use: a value's only user so far may be such a copy.
    """
    values, counted = list(view.init), []
    leaves: dict[HloInstruction, HloInstruction] = {}
    dtype = values[counter.index].shape.dtype
    for n in range(1, count + 1):
        values = copy_iteration(view, computation, values, leaves, loops)
        counted.append(values[counter.index])
        values[counter.index] = computation.add_constant(np.asarray(counter.start + n * counter.step, dtype))
    return values, counted


def _home(view: LoopView) -> HloComputation:
    """Return the computation of a loop; raise ValueError if the loop has been removed."""
    computation = view.instruction.parent
    if computation is None:
        raise ValueError(f"%{view.instruction.name} has been removed already")
    return computation


def _new_body(view: LoopView, loops: Loops) -> tuple[HloComputation, list[HloInstruction]]:
    """Return a new body for a loop that does nothing yet, and the values that it begins with.

    Raises:
        ValueError: the loop has been removed.
    """
    _home(view)
    body = loops.module.add(HloComputation(view.body.name))
    parameter = body.add_parameter(0, view.body.parameters[0].shape, view.body.parameters[0].name)
    return body, [body.add(Opcode.GET_TUPLE_ELEMENT, [parameter], index=n) for n in range(view.size)]


def unroll_by(view: LoopView, counter: Induction, factor: int, loops: Loops) -> HloInstruction:
    """Run `factor` iterations in one, with the remainder of the trip count before the loop; return the new loop."""
    loop, computation = view.instruction, _home(view)
    body, values = _new_body(view, loops)
    leaves: dict[HloInstruction, HloInstruction] = {}
    for _ in range(factor):
        values = copy_iteration(view, body, values, leaves, loops)
    body.root = body.add(Opcode.TUPLE, values)
    body.remove_dead()

    outside, counted = _copy_iterations(view, counter, counter.trip_count % factor, computation, loops)
    start = computation.add(Opcode.TUPLE, outside, name=loop.operand(0).name)
    return _replace(view, start, body, factor, loops, counted)


def guarded_refusal(view: LoopView) -> str | None:
    """Return why a loop cannot run several iterations in one without a known trip count, or None if it can."""
    everything = (*view.body.instructions, *view.condition.instructions)
    if any(has_side_effect(i) for i in everything):
        return "it has side effects"
    if any(i.opcode is Opcode.WHILE for i in everything):
        return "it contains a loop, which might not end after the last iteration"
    if not all(v.shape.is_array and not v.shape.is_dynamic for v in view.init):
        return "it carries something other than arrays"
    return None


def unroll_guarded(view: LoopView, factor: int, loops: Loops) -> HloInstruction:
    """Run `factor` iterations in one, of which all but the first keep the state if the condition does not hold.

    The condition is then false for the next ones, too, because it depends on the state alone. Return the new loop.
    """
    body, values = _new_body(view, loops)
    leaves: dict[HloInstruction, HloInstruction] = {}
    values = copy_iteration(view, body, values, leaves, loops)
    for _ in range(factor - 1):
        going_on = copy_condition(view, body, values, leaves, loops)
        after = copy_iteration(view, body, values, leaves, loops)
        values = [_guarded(going_on, new, old) for new, old in zip(after, values, strict=True)]
    body.root = body.add(Opcode.TUPLE, values)
    body.remove_dead()
    return _replace(view, view.instruction.operand(0), body, factor, loops)


def _replace(
    view: LoopView,
    start: HloInstruction,
    body: HloComputation,
    factor: int,
    loops: Loops,
    unused: Sequence[HloInstruction] = (),
) -> HloInstruction:
    """Replace a loop by one that runs `factor` iterations in one, and return that.

    Args:
        view: the loop.
        start: the state that the new loop begins with.
        body: of the new loop.
        factor: of the mark, see `unroll_mark`.
        loops: of the module.
        unused: what may have no user afterwards, besides the results.
    """
    loop, computation = view.instruction, _home(view)
    attributes = {k: v for k, v in loop.attributes.items() if k != "backend_config"}
    attributes |= {"body": body, "frontend_attributes": unroll_mark(loop, factor)}
    unrolled = computation.add(Opcode.WHILE, [start], name=loop.name, attributes=attributes)
    loops.note_copies([unrolled])
    results = [computation.add(Opcode.GET_TUPLE_ELEMENT, [unrolled], index=n) for n in range(view.size)]
    replace_loop(view, results)
    computation.remove_dead([*results, *unused])
    return unrolled


def _guarded(condition: HloInstruction, new: HloInstruction, old: HloInstruction) -> HloInstruction:
    """Return the new value if the condition holds, else the old one; an updated part of an array alone is selected."""
    if new is old:
        return new
    computation = new.parent
    assert computation is not None  # noqa: S101 - it has just been made
    b = Builder(computation)
    if new.opcode is Opcode.DYNAMIC_UPDATE_SLICE and new.operand(0) is old and not new.users:
        update, starts = new.operand(1), new.operands[2:]
        sizes = update.shape.dimensions
        before = b.add(Opcode.DYNAMIC_SLICE, old, *starts, dynamic_slice_sizes=sizes)
        return b.add(Opcode.DYNAMIC_UPDATE_SLICE, old, _selected(b, condition, update, before), *starts)
    return _selected(b, condition, new, old)


def _selected(b: Builder, condition: HloInstruction, new: HloInstruction, old: HloInstruction) -> HloInstruction:
    return b.add(Opcode.SELECT, b.broadcast(condition, new.shape.dimensions, ()), new, old)


def unroll_mark(loop: HloInstruction, factor: int) -> Raw:
    """Return the loop's `frontend_attributes` with a mark for `unroll_factor`."""
    mark = f'unrolled_by="{factor}"'
    attributes: Raw | None = loop.attr("frontend_attributes", None)
    others = "" if attributes is None else attributes.text.strip()[1:-1].strip()
    return Raw("{" + (f"{others}," if others else "") + mark + "}")
