"""Slice sinking: transposes and converts arrays that a loop only slices slice by slice inside the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.trip_count import trip_count_of
from compiler.analysis.while_loop import LoopView, invariant_elements
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.loop_editing import LoopEdit, Loops, refreshed_view

_MOVABLE = (Opcode.TRANSPOSE, Opcode.CONVERT)
SHORTEST = 32
"""Elements of a slice from which on gathering them costs more than another kernel."""


@register
@dataclass(frozen=True)
class WhileLoopSliceSinking:
    """Carry the operand of a transpose or convert into a loop that only slices the result.

    The loop over the layers of a model slices the stacked weights of all layers. If they are transposed or converted
    before the loop, they are in memory twice. The pass applies if the slices of all iterations together are not larger
    than the array, so it never adds work. An array whose steps come first by a transpose stays transposed: each
    iteration would gather its slice, which takes longer than transposing everything at once.
    """

    name: ClassVar[str] = "while-loop-slice-sinking"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            trips = trip_count_of(view.instruction)
            if trips is None:
                continue
            fixed = pinned(view.body)
            found = [n for n in sorted(invariant_elements(view)) if _is_sunk(view, n, trips, fixed)]
            if found:
                _sink(loops.owned(view), found)
                changed = True
        return changed


def _is_sunk(view: LoopView, n: int, trips: int, fixed: set[HloInstruction]) -> bool:
    value, reads = view.init[n], view.body_reads[n]
    if value.opcode not in _MOVABLE or view.condition_reads[n] or not _feeds_loops(value):
        return False
    slices = [user for g in reads for user in g.users if user is not view.body.root]
    whole = any(view.body.root.operands[k] is g for g in reads for k in range(view.size) if k != n)
    if not slices or whole or not all(_is_slice(s, g) for g in reads for s in g.users if s is not view.body.root):
        return False
    if any(i in fixed for i in (*reads, *slices)) or any(_is_scattered(s, value) for s in slices):
        return False
    return trips * sum(math.prod(s.shape.dimensions) for s in slices) <= math.prod(value.shape.dimensions)


def _is_scattered(s: HloInstruction, value: HloInstruction) -> bool:
    """Check whether the elements of a slice lie apart in the operand of a transpose, so that they would be gathered."""
    if value.opcode is not Opcode.TRANSPOSE or math.prod(s.shape.dimensions) < SHORTEST:
        return False
    last = list(value.attributes["dimensions"]).index(value.shape.rank - 1)
    return s.shape.dimensions[last] == 1 < value.shape.dimensions[last]


def _feeds_loops(value: HloInstruction) -> bool:
    """Check whether all uses are initial values of loops, so that nothing else needs the whole array."""
    return not value.is_root and all(
        user.opcode is Opcode.TUPLE and all(loop.opcode is Opcode.WHILE for loop in user.users) for user in value.users
    )


def _is_slice(user: HloInstruction, array: HloInstruction) -> bool:
    return user.opcode is Opcode.DYNAMIC_SLICE and list(user.operand_indices(array)) == [0]


def _sink(view: LoopView, found: list[int]) -> None:
    """Carry the operands of the initial values of some elements, and treat each slice in the body."""
    computation = view.instruction.parent
    assert computation is not None  # noqa: S101 - the loop was found in it
    for n in found:
        for result in view.results[n]:
            computation.replace_uses(result, view.init[n])
            computation.remove(result)
    view = refreshed_view(view)
    values = {n: view.init[n] for n in found}
    init = [values[n].operand(0) if n in values else i for n, i in enumerate(view.init)]
    slices = {n: [s for g in view.body_reads[n] for s in g.users if s is not view.body.root] for n in found}
    edit = LoopEdit.begin(view, init, {n: n for n in range(view.size)})
    b = Builder(view.body)
    for n, value in values.items():
        for gte in view.body_reads[n]:
            gte.set_shape(value.operand(0).shape)
        for s in slices[n]:
            view.body.replace_uses(s, _sliced(b, s, value))
            view.body.remove(s)
    edit.finish(view.outputs)
    edit.discard()


def _sliced(b: Builder, s: HloInstruction, value: HloInstruction) -> HloInstruction:
    """Return the slice of the operand of `value`, transposed or converted as `value` is."""
    sizes, starts = s.shape.dimensions, s.operands[1:]
    if value.opcode is Opcode.CONVERT:
        part = b.add(Opcode.DYNAMIC_SLICE, s.operand(0), *starts, dynamic_slice_sizes=sizes)
        return b.add(Opcode.CONVERT, part, shape=s.shape)
    order = value.attributes["dimensions"]
    at = {d: n for n, d in enumerate(order)}
    rank = range(len(order))
    part = b.add(
        Opcode.DYNAMIC_SLICE, s.operand(0), *(starts[at[d]] for d in rank),
        dynamic_slice_sizes=tuple(sizes[at[d]] for d in rank),
    )  # fmt: skip
    return b.transpose(part, order)
