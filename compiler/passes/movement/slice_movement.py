"""Slice movement: slices go through what they are taken of, towards the leaves, where nobody needs the rest."""

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
    """Compute only what slices take: `slice(add(a, b))` becomes `add(slice(a), slice(b))`.

    An op is taken apart when all its users are slices and together they take less than the whole. Slices of leaves and
    of pure movement (broadcast, iota, concatenate, pad, another slice) are resolved whoever else uses those. Users
    come first, so one run carries a slice all the way.

    Attributes:
        split: also take apart what slices use up entirely, as long as no element is computed twice.
        max_pieces: an op becomes at most so many.
    """

    name: ClassVar[str] = "slice-movement"
    split: bool = False
    max_pieces: int = number_option(16, 0, 1024)

    def run_on(self, computation: HloComputation) -> bool:
        """See the class."""
        return self.run_on_some(computation, None)

    def run_on_some(self, computation: HloComputation, splittable: Container[HloInstruction] | None) -> bool:
        """As `run_on`, but ops that slices use up entirely are only taken apart when they are among `splittable`."""
        order = computation.post_order()
        if not any(i.opcode is Opcode.SLICE for i in order):
            return False
        fixed = pinned(computation)
        changed = False
        for op in reversed(order):
            if op.parent is not computation or all(u.opcode is not Opcode.SLICE for u in op.users):
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
        if not by_spec or not (op.opcode in _RESOLVED or (not others and self._pays(op, list(by_spec), split))):
            return False
        changed = False
        for spec, slices in by_spec.items():
            changed |= _replace(slices, op, spec, computation)
        return changed

    def _pays(self, op: HloInstruction, specs: list[Spec], split: bool) -> bool:
        if not is_computing(op):
            return True
        taken, whole = sum(map(spec_elements, specs)), op.shape.num_elements
        if taken < whole and len(specs) <= self.max_pieces:
            return True
        return split and taken <= whole and len(specs) <= self.max_pieces


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
    """The same elements spelled one way: a single element has stride 1, the limit lies behind the last element."""
    return tuple(
        SliceDim(d.start, d.start + (d.size - 1) * d.stride + 1, d.stride if d.size > 1 else 1) if d.size else d
        for d in spec
    )


def _untouchable(op: HloInstruction) -> bool:
    if not op.shape.is_array or op.shape.is_dynamic or any(o.shape.is_dynamic for o in op.operands):
        return True
    return bool(op.attributes) and has_side_effect(op)
