"""State splitting: replaces a carried array that is only used by constant parts by several arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from compiler.analysis.while_loop import LoopView, invariant_elements, view_loop
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape
from compiler.ir.attributes import SliceDim
from compiler.ir.shape import tuple_shape
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.loops.loop_editing import Loops, replace_computations
from compiler.passes.movement.concatenate_sinking import ConcatenateSinking
from compiler.passes.movement.slice_movement import SliceMovement
from compiler.passes.movement.unit_dimension_movement import UnitDimensionMovement


@register
@dataclass(frozen=True)
class StateSplitting(Options):
    """Carry four `f32[N]` instead of `f32[N,4]` if the loop slices out the columns and concatenates them again.

    The cuts follow from the body's slices of the element, or else from the concatenate that defines its next value. The
    split is tried on clones of body and condition, in which slices are moved to the leaves, and elementwise ops and
    reductions are done part by part. It is kept if nothing uses the whole array any more, and if the body joins fewer
    arrays than before. Parts of size 1 along the cut lose that dimension.

    Attributes:
        max_pieces: maximum number of parts per array.
    """

    name: ClassVar[str] = "state-splitting"
    max_pieces: int = number_option(16, 0, 1024)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            changed |= self._split_all(view, loops)
        if changed:
            module.remove_unreachable()
        return changed

    def _split_all(self, view: LoopView, loops: Loops) -> bool:
        changed = False
        fixed = invariant_elements(view)
        for n in range(view.size):
            cut = None if n in fixed else self._where_to_cut(view, n)
            if cut is None:
                continue
            loop = _try(view, n, cut, self.max_pieces, loops)
            if loop is None:
                continue
            again = view_loop(loop)
            assert again is not None  # noqa: S101 - splitting keeps the explicit form
            view, changed = again, True
        return changed

    def _where_to_cut(self, view: LoopView, n: int) -> Cut | None:
        # Cut at all bounds of slices along an axis; try the last (contiguous) axis first.
        shape = view.init[n].shape
        if not shape.is_array or shape.is_dynamic or shape.rank == 0:
            return None
        slices = list(_slices_downstream(view.body_reads[n]))
        for axis in reversed(range(shape.rank)):
            bounds = {0, shape.dimensions[axis]}
            for spec in slices:
                bounds |= {spec[axis].start, spec[axis].limit} if spec[axis].stride == 1 else set()
            if not slices:
                bounds |= _concatenate_bounds(view.outputs[n], axis)
            if 2 < len(bounds) <= self.max_pieces + 1:
                ends = sorted(bounds)
                return Cut(axis, tuple(pairwise(ends)))
        return None


@dataclass(frozen=True)
class Cut:
    """The cut of an array: the axis, and [start, limit) of each part along it."""

    axis: int
    parts: tuple[tuple[int, int], ...]


def _slices_downstream(reads: Sequence[HloInstruction]) -> Iterable[tuple[SliceDim, ...]]:
    """Yield the slices of the values, and of what depends on them elementwise."""
    seen = set(reads)
    work = list(reads)
    while work:
        for user in work.pop().users:
            if user.opcode is Opcode.SLICE:
                yield user.attributes["slice"]
            elif user.opcode.is_elementwise and user not in seen:
                seen.add(user)
                work.append(user)


def _concatenate_bounds(output: HloInstruction, axis: int) -> set[int]:
    """Return the ends of the parts of the first concatenate along `axis` that the output depends on elementwise."""
    seen = {output}
    work = [output]
    while work:
        i = work.pop()
        if i.opcode is Opcode.CONCATENATE and i.dimensions == (axis,):
            ends, at = set(), 0
            for o in i.operands:
                at += o.shape.dimensions[axis]
                ends.add(at)
            return ends
        fresh = [o for o in i.operands if i.opcode.is_elementwise and o not in seen]
        seen.update(fresh)
        work.extend(fresh)
    return set()


def _try(view: LoopView, n: int, cut: Cut, max_pieces: int, loops: Loops) -> HloInstruction | None:
    """Split element `n`: the first part replaces it, the others are appended; return None if that is not profitable."""
    computation = view.instruction.parent
    assert computation is not None  # noqa: S101 - the loop was found in it
    dims = view.init[n].shape.dimensions
    parts = [view.init[n].shape.with_dimensions(_part_shape(dims, cut, part)) for part in cut.parts]
    elements = [i.shape for i in view.init]
    carried = tuple_shape(*elements[:n], parts[0], *elements[n + 1 :], *parts[1:])
    numbers = [n, *range(view.size, view.size + len(parts) - 1)]

    # First the clones, which are not yet in the module and can simply be dropped; then the loop itself.
    body = view.body.clone()
    whole = _read_parts(body, n, carried, numbers, cut, dims)
    outputs = body.root.operands
    taken = _split(outputs[n], cut, Builder(body))
    before = body.root
    body.root = body.add(Opcode.TUPLE, [*outputs[:n], taken[0], *outputs[n + 1 :], *taken[1:]], name=before.name)
    body.remove_dead([before])
    if not _dissolves(whole, body, max_pieces) or _joins(body) >= _joins(view.body):
        return None
    condition = None
    if view.condition_reads[n]:
        condition = view.condition.clone()
        if not _dissolves(_read_parts(condition, n, carried, numbers, cut, dims), condition, max_pieces):
            return None

    outside = Builder(computation)
    start = _split(view.init[n], cut, outside)
    init = [*view.init[:n], start[0], *view.init[n + 1 :], *start[1:]]
    loop = replace_computations(view, init, body, condition, loops)
    if view.results[n]:
        ends = [outside.add(Opcode.GET_TUPLE_ELEMENT, loop, index=k) for k in numbers]
        result = _join(ends, dims, cut, outside)
        for gte in view.results[n]:
            computation.replace_uses(gte, result)
            computation.remove(gte)
        computation.remove_dead([result])
    before = view.instruction.operand(0)
    computation.remove(view.instruction)
    computation.remove_dead([before])
    return loop


def _read_parts(
    computation: HloComputation, n: int, carried: Shape, numbers: Sequence[int], cut: Cut, dims: tuple[int, ...]
) -> HloInstruction:
    """Make a body or condition read the parts and join them instead of reading the whole; return the joined array."""
    parameter = computation.parameters[0]
    before = [u for u in parameter.users if u.attributes.get("index") == n]
    parameter.set_shape(carried)
    b = Builder(computation)
    reads = [b.add(Opcode.GET_TUPLE_ELEMENT, parameter, index=k) for k in numbers]
    whole = _join(reads, dims, cut, b)
    for gte in before:
        computation.replace_uses(gte, whole)
        computation.remove(gte)
    return whole


def _dissolves(whole: HloInstruction, computation: HloComputation, max_pieces: int) -> bool:
    """Move slices to the leaves, and ops on the whole to its parts; return whether the whole became unused.

    Ops that do not depend on a joined array are not split: their slices are free, while one op per part would multiply
    the size of the program (a random generator for all columns remains one).
    """
    resolving, splitting = SliceMovement(), SliceMovement(split=True, max_pieces=max_pieces)
    units, sinking = UnitDimensionMovement(), ConcatenateSinking(max_parts=max_pieces)
    changed = True
    while changed:
        while resolving.run_on(computation) | units.run_on(computation):
            pass
        changed = splitting.run_on_some(computation, _downstream_of_joins(computation))
        changed |= whole.parent is computation and sinking.run_on(computation)
    computation.remove_dead()
    return whole.parent is not computation


def _downstream_of_joins(computation: HloComputation) -> set[HloInstruction]:
    """Return the instructions that depend on an array joined from parts."""
    found: set[HloInstruction] = set()
    for i in computation.post_order():
        if i.opcode in _JOINS or any(o in found for o in i.operands):
            found.add(i)
    return found


def _joins(computation: HloComputation) -> int:
    """Count the ops that join arrays from parts."""
    return sum(i.opcode in _JOINS for i in computation.instructions)


_JOINS = (Opcode.CONCATENATE, Opcode.DYNAMIC_UPDATE_SLICE, Opcode.PAD, Opcode.SCATTER)


def _part_shape(dims: tuple[int, ...], cut: Cut, part: tuple[int, int]) -> tuple[int, ...]:
    size = part[1] - part[0]
    middle = () if size == 1 else (size,)
    return (*dims[: cut.axis], *middle, *dims[cut.axis + 1 :])


def _split(value: HloInstruction, cut: Cut, b: Builder) -> list[HloInstruction]:
    dims = value.shape.dimensions
    found = []
    for part in cut.parts:
        spec = [SliceDim(*part) if d == cut.axis else SliceDim(0, size) for d, size in enumerate(dims)]
        found.append(b.reshape(b.slice(value, spec), _part_shape(dims, cut, part)))
    return found


def _join(parts: Sequence[HloInstruction], dims: tuple[int, ...], cut: Cut, b: Builder) -> HloInstruction:
    wide = [
        b.reshape(p, (*dims[: cut.axis], end - start, *dims[cut.axis + 1 :]))
        for p, (start, end) in zip(parts, cut.parts, strict=True)
    ]
    return b.concatenate(wide, cut.axis)
