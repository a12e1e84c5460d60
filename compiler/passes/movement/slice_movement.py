"""Slice movement: pushes slices through ops towards the leaves, so that unused elements are not computed."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.attributes import SliceDim
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.movement.slice_pushing import Spec, is_computing, push_slice, spec_elements


@register
@dataclass(frozen=True)
class SliceMovement(ComputationPass):
    """Compute only what slices use: rewrite `slice(add(a, b))` -> `add(slice(a), slice(b))`.

    An op is split if all its users are slices that together use less than the whole. Slices of leaves and of pure data
    movement (broadcast, iota, concatenate, pad, slice) are resolved whatever other users these have. Users are
    processed before operands, so that one run moves a slice all the way.

    Attributes:
        split: also split ops that slices use completely, if no element is computed twice.
        max_pieces: maximum number of pieces per op.
    """

    name: ClassVar[str] = "slice-movement"
    split: bool = False
    max_pieces: int = number_option(16, 0, 1024)

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        return self.run_on_some(computation, None)

    def run_on_some(self, computation: HloComputation, splittable: Container[HloInstruction] | None) -> bool:
        """Run like `run_on`, but split ops that slices use completely only if they are in `splittable`."""
        if Opcode.SLICE not in computation.opcodes:
            return False
        fixed = pinned(computation)
        changed = False
        for op in reversed(computation.post_order()):
            if op.parent is not computation or not _is_sliced(op):
                continue
            if op not in fixed and not _untouchable(op):
                split = self.split and (splittable is None or op in splittable)
                changed |= self._move(op, computation, fixed, split)
        return changed

    def _move(self, op: HloInstruction, computation: HloComputation, fixed: set[HloInstruction], split: bool) -> bool:
        by_spec: dict[Spec, list[HloInstruction]] = {}
        others = op.is_root
        for user in op.users:
            if user.opcode is Opcode.SLICE and user not in fixed and not user.shape.is_dynamic:
                by_spec.setdefault(_normal(user.attributes["slice"]), []).append(user)
            else:
                others = True
        if not by_spec or not (
            op.opcode in _RESOLVED or (not others and self._is_profitable(op, list(by_spec), split))
        ):
            return False
        changed = False
        for spec, slices in by_spec.items():
            changed |= _replace(slices, op, spec, computation)
        return changed

    def _is_profitable(self, op: HloInstruction, specs: list[Spec], split: bool) -> bool:
        if not is_computing(op):
            return True
        taken, whole = sum(map(spec_elements, specs)), op.shape.num_elements
        if taken < whole and len(specs) <= self.max_pieces:
            return True
        return split and taken <= whole and len(specs) <= self.max_pieces


def _is_sliced(op: HloInstruction) -> bool:
    return any(user.opcode is Opcode.SLICE for user in op.users)


_RESOLVED = frozenset({Opcode.BROADCAST, Opcode.IOTA, Opcode.CONCATENATE, Opcode.PAD, Opcode.SLICE})


def _replace(slices: list[HloInstruction], op: HloInstruction, spec: Spec, computation: HloComputation) -> bool:
    builder = Builder(computation)
    new = push_slice(op, spec, builder)
    if new is None:
        computation.remove_dead(builder.made)
        return False
    for s in slices:
        computation.replace_uses(s, new)
    computation.remove_dead(slices)
    return True


def _normal(spec: Spec) -> Spec:
    """Normalize a slice: a single element has stride 1, and the limit is right after the last element."""
    return tuple(
        SliceDim(d.start, d.start + (d.size - 1) * d.stride + 1, d.stride if d.size > 1 else 1) if d.size else d
        for d in spec
    )


def _untouchable(op: HloInstruction) -> bool:
    if not op.shape.is_array or op.shape.is_dynamic or any(o.shape.is_dynamic for o in op.operands):
        return True
    return bool(op.attributes) and has_side_effect(op)
