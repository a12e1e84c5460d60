"""Stacks that a loop fills: their initial values are not computed if the loop overwrites all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from compiler.analysis.allocations import ALLOCATION, is_allocation
from compiler.analysis.while_loop import Induction, LoopView, affine_in, induction
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.loop_editing import Loops


@register
@dataclass(frozen=True)
class LoopStackAllocation(Options):
    """Replace the initial value of a carried array by an allocation if the loop overwrites every element of it.

    A scan carries its outputs as arrays of zeros, and each iteration updates a slice of them. The loop must have a
    known trip count, nothing else in it may read the array, and the updates of all iterations together must cover it.
    XLA uses the same custom call, `AllocateBuffer`; its contents are undefined and cost nothing, where zeros must be
    written for each array. It runs after the default pipeline, whose passes know more about zeros.

    Attributes:
        max_updates: maximum number of updates of one array over all iterations.
    """

    name: ClassVar[str] = "loop-stack-allocation"
    max_updates: int = number_option(1 << 20, 1, 1 << 24)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        for view in Loops(module).views():
            counter = induction(view)
            if counter is None:
                continue
            for n in range(view.size):
                if _is_unread(view, n) and self._is_filled(view, n, counter):
                    _allocate(view, n)
                    changed = True
        return changed

    def _is_filled(self, view: LoopView, n: int, counter: Induction) -> bool:
        """Check whether the updates of element `n` in all iterations cover it."""
        updates = _updates(view, n)
        if not updates or len(updates) * counter.trip_count > self.max_updates:
            return False
        windows = [w for u in updates if (w := _window(view, u, counter)) is not None]
        axes = {w.axis for w in windows}
        if len(windows) < len(updates) or len(axes) != 1:
            return False
        starts = np.concatenate([w.starts for w in windows])
        ends = np.concatenate([w.starts + w.length for w in windows])
        order = np.argsort(starts)
        reached = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
        return bool(np.all(starts[order] <= reached[:-1]) and reached[-1] == view.init[n].shape.dimensions[axes.pop()])


def _is_unread(view: LoopView, n: int) -> bool:
    """Check whether element `n` is an array with a value that the condition does not read."""
    init = view.init[n]
    if not init.shape.is_array or init.shape.rank == 0 or is_allocation(init):
        return False
    return not any(g.users or g.is_root for g in view.condition_reads[n])


def _updates(view: LoopView, n: int) -> list[HloInstruction]:
    """Return the updates between the read of element `n` and its next value if nothing else reads any of these."""
    found: list[HloInstruction] = []
    fixed = pinned(view.body)
    node, user = view.outputs[n], view.body.root
    while list(node.users) == [user] and not node.is_root and user.operands.count(node) == 1 and node not in fixed:
        if view.index_of(node) == n:
            return found if found and user.operands[0] is node and view.body_reads[n] == (node,) else []
        if node.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or (found and user.operands[0] is not node):
            return []
        found.append(node)
        node, user = node.operands[0], node
    return []


@dataclass(frozen=True)
class _Windows:
    """Where an update writes in each iteration: elements `starts` to `starts + length` along `axis`, and all others."""

    axis: int
    starts: npt.NDArray[np.int64]
    length: int


def _window(view: LoopView, update: HloInstruction, counter: Induction) -> _Windows | None:
    """Return where a dynamic-update-slice writes, None if that is unknown or not a whole slab."""
    sizes, lengths = update.shape.dimensions, update.operands[1].shape.dimensions
    partial = [d for d, (size, length) in enumerate(zip(sizes, lengths, strict=True)) if length != size]
    if len(partial) > 1 or len(update.operands) != 2 + len(sizes) or 0 in sizes:
        return None
    axis = partial[0] if partial else 0
    length = lengths[axis]
    if not partial:
        return _Windows(axis, np.zeros(1, np.int64), length) if counter.trip_count else None
    found = affine_in(view, update.operands[2 + axis], counter.index)
    if found is None:
        return None
    slope, offset = found
    starts = slope * (counter.start + counter.step * np.arange(counter.trip_count, dtype=np.int64)) + offset
    kind = update.operands[2 + axis].shape.element_type
    low, high = (0, 1 << kind.bits) if kind.is_unsigned else (-1 << (kind.bits - 1), 1 << (kind.bits - 1))
    if counter.trip_count == 0 or starts.min() < low or starts.max() >= high:
        return None  # the index wraps around
    return _Windows(axis, np.clip(starts, 0, sizes[axis] - length), length)


def _allocate(view: LoopView, n: int) -> None:
    loop, start = view.instruction, view.instruction.operand(0)
    outside = loop.parent
    assert outside is not None  # noqa: S101 - the loop was found in it
    shape = view.init[n].shape.without_layout()
    new = outside.add(Opcode.CUSTOM_CALL, [], shape, custom_call_target=ALLOCATION)
    if list(start.users) != [loop] or start.is_root:
        start = outside.clone_instruction(start, list(start.operands))
        loop.replace_operand(0, start)
    start.replace_operand(n, new)
