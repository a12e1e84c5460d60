"""State splitting: an array that a loop carries and only ever uses by constant parts becomes several arrays."""

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
    """Carry `f32[N]` four times instead of `f32[N,4]`, when the loop takes columns apart and puts them together again.

    Where to cut follows from the slices that the body takes of the element, or else from the concatenate that makes its
    next value. The split is tried on copies of body and condition, with slices carried to the leaves and pointwise work
    and reductions done part by part; it is kept when nothing in them needs the whole array any more and the body
    puts fewer arrays together than before. Parts of size 1 along the cut lose that dimension.

    Attributes:
        max_pieces: an array is split into so many parts at most.
    """

    name: ClassVar[str] = "state-splitting"
    max_pieces: int = number_option(16, 0, 1024)

    def run(self, module: HloModule) -> bool:
        """See the class."""
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
    """Where an array is cut: the axis, and [start, limit) of each part along it."""

    axis: int
    parts: tuple[tuple[int, int], ...]


def _slices_downstream(reads: Sequence[HloInstruction]) -> Iterable[tuple[SliceDim, ...]]:
    """Slices taken of the values, or of what is computed from them element by element."""
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
    """Where the parts of the first concatenate along `axis` end that the output is computed from element by element."""
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
    """Split element `n`: its first part takes its place, the others follow at the end; None when that does not pay."""
    computation = view.instruction.parent
    assert computation is not None  # noqa: S101 - the loop was found in it
    dims = view.init[n].shape.dimensions
    parts = [view.init[n].shape.with_dimensions(_part_shape(dims, cut, part)) for part in cut.parts]
    elements = [i.shape for i in view.init]
    carried = tuple_shape(*elements[:n], parts[0], *elements[n + 1 :], *parts[1:])
    numbers = [n, *range(view.size, view.size + len(parts) - 1)]

    body = view.body.clone()
    whole = _read_parts(body, n, carried, numbers, cut, dims)
    outputs = body.root.operands
    taken = _take_apart(outputs[n], cut, Builder(body))
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
    start = _take_apart(view.init[n], cut, outside)
    init = [*view.init[:n], start[0], *view.init[n + 1 :], *start[1:]]
    loop = replace_computations(view, init, body, condition, loops)
    if view.results[n]:
        ends = [outside.add(Opcode.GET_TUPLE_ELEMENT, loop, index=k) for k in numbers]
        result = _put_together(ends, dims, cut, outside)
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
    """Let a body or condition read the parts and put them together where it read the whole; returns that."""
    parameter = computation.parameters[0]
    before = [u for u in parameter.users if u.attributes.get("index") == n]
    parameter.shape = carried
    b = Builder(computation)
    reads = [b.add(Opcode.GET_TUPLE_ELEMENT, parameter, index=k) for k in numbers]
    whole = _put_together(reads, dims, cut, b)
    for gte in before:
        computation.replace_uses(gte, whole)
        computation.remove(gte)
    return whole


def _dissolves(whole: HloInstruction, computation: HloComputation, max_pieces: int) -> bool:
    """Carry slices to the leaves and work on the whole to its parts; whether nothing needs the whole any more.

    What does not hang on an array put together from parts is not taken apart: its slices cost nothing, while one op a
    part would make the program as many times longer (a random generator for all columns stays one).
    """
    resolving, splitting = SliceMovement(), SliceMovement(split=True, max_pieces=max_pieces)
    units, sinking = UnitDimensionMovement(), ConcatenateSinking(max_parts=max_pieces)
    changed = True
    while changed:
        while resolving.run_on(computation) | units.run_on(computation):
            pass
        changed = splitting.run_on_some(computation, _behind_joins(computation))
        changed |= whole.parent is computation and sinking.run_on(computation)
    computation.remove_dead()
    return whole.parent is not computation


def _behind_joins(computation: HloComputation) -> set[HloInstruction]:
    """What is computed from arrays that are put together from parts."""
    found: set[HloInstruction] = set()
    for i in computation.post_order():
        if i.opcode in _JOINS or any(o in found for o in i.operands):
            found.add(i)
    return found


def _joins(computation: HloComputation) -> int:
    """How many ops put arrays together from parts."""
    return sum(i.opcode in _JOINS for i in computation.instructions)


_JOINS = (Opcode.CONCATENATE, Opcode.DYNAMIC_UPDATE_SLICE, Opcode.PAD, Opcode.SCATTER)


def _part_shape(dims: tuple[int, ...], cut: Cut, part: tuple[int, int]) -> tuple[int, ...]:
    size = part[1] - part[0]
    middle = () if size == 1 else (size,)
    return (*dims[: cut.axis], *middle, *dims[cut.axis + 1 :])


def _take_apart(value: HloInstruction, cut: Cut, b: Builder) -> list[HloInstruction]:
    dims = value.shape.dimensions
    found = []
    for part in cut.parts:
        spec = [SliceDim(*part) if d == cut.axis else SliceDim(0, size) for d, size in enumerate(dims)]
        found.append(b.reshape(b.slice(value, spec), _part_shape(dims, cut, part)))
    return found


def _put_together(parts: Sequence[HloInstruction], dims: tuple[int, ...], cut: Cut, b: Builder) -> HloInstruction:
    wide = [
        b.reshape(p, (*dims[: cut.axis], end - start, *dims[cut.axis + 1 :]))
        for p, (start, end) in zip(parts, cut.parts, strict=True)
    ]
    return b.concatenate(wide, cut.axis)
