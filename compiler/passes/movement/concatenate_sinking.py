"""Concatenate sinking: processes the parts of a concatenate separately if no user needs them in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import scalar_function, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned


@register
@dataclass(frozen=True)
class ConcatenateSinking(ComputationPass):
    """Split a concatenate that only feeds elementwise ops, slices within one part, and reductions.

    Followed through elementwise ops, every use must end in a slice of one part or in a reduction. A reduction over the
    concatenated dimension becomes a combination of reductions of the parts, which changes the order of a sum; one over
    other dimensions concatenates smaller results. The concatenate disappears, and no element is computed twice.

    Attributes:
        max_ops: maximum number of elementwise ops and reductions that splitting one concatenate may create.
        max_parts: concatenates of more operands are kept.
    """

    name: ClassVar[str] = "concatenate-sinking"
    max_ops: int = number_option(64, 0, 10_000)
    max_parts: int = number_option(16, 1, 1024)

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        found = computation.of_opcode(Opcode.CONCATENATE)
        fixed = pinned(computation) if found else set()
        changed = False
        for i in found:
            if i.parent is not computation or len(i.operands) > self.max_parts or i.shape.is_dynamic:
                continue
            region = _region(i, fixed)
            if region is not None and len(region) * len(i.operands) <= self.max_ops:
                _split(i, region, Builder(computation))
                changed = True
        return changed


def _region(source: HloInstruction, fixed: set[HloInstruction]) -> list[HloInstruction] | None:
    """Return everything downstream to be computed on parts, operands first; None if some use needs the whole."""
    (axis,) = source.dimensions
    found: dict[HloInstruction, None] = {}
    reductions = 0
    work = [source]
    while work:
        i = work.pop()
        if i.is_root or not i.users:
            return None
        for user in i.users:
            if user in found:
                continue
            if user in fixed or not _fits(user, i, source, axis):
                return None
            found[user] = None
            reductions += user.opcode is Opcode.REDUCE
            if user.opcode.is_elementwise:
                work.append(user)
            if len(found) > 256:
                return None
    if not reductions:
        return None  # slice-movement handles slices alone
    inside = {source, *found}
    if any(not _other_operands_cut(i, inside) for i in found):
        return None
    return _in_order(source, found)


def _fits(user: HloInstruction, operand: HloInstruction, source: HloInstruction, axis: int) -> bool:
    if user.opcode.is_elementwise:
        return user.shape.dimensions == source.shape.dimensions and user.opcode is not Opcode.MAP
    if user.opcode is Opcode.SLICE:
        return _part_of(user.attributes["slice"][axis], source, axis) is not None
    if user.opcode is not Opcode.REDUCE or len(user.operands) != 2 or user.operand(0) is not operand:
        return False
    return axis not in user.dimensions or _combination(user) is not None


def _combination(reduction: HloInstruction) -> Opcode | None:
    """Return the op that combines reductions of parts; None if the initial value would count several times."""
    function = scalar_function(reduction.attributes["to_apply"])
    if function in (Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR):
        return function
    neutral = {Opcode.ADD: 0, Opcode.MULTIPLY: 1, Opcode.XOR: 0}.get(function) if function is not None else None
    start = splat_value(reduction.operand(1))
    return function if neutral is not None and start is not None and start == neutral else None


def _part_of(cut: SliceDim, source: HloInstruction, axis: int) -> tuple[int, int] | None:
    """Return the operand that contains the slice, and where that operand begins."""
    begin = 0
    for n, o in enumerate(source.operands):
        end = begin + o.shape.dimensions[axis]
        if begin <= cut.start and cut.limit <= end and cut.size:
            return n, begin
        begin = end
    return None


def _other_operands_cut(i: HloInstruction, inside: set[HloInstruction]) -> bool:
    """Check whether the other operands can be sliced for free: scalars, broadcasts, iotas, parameters etc."""
    if not i.opcode.is_elementwise:
        return True
    return all(o in inside or o.shape.rank == 0 or o.opcode in _FREE_TO_SLICE for o in i.operands)


_FREE_TO_SLICE = frozenset(
    {Opcode.BROADCAST, Opcode.IOTA, Opcode.PARAMETER, Opcode.GET_TUPLE_ELEMENT, Opcode.CONCATENATE, Opcode.CONSTANT}
)


def _in_order(source: HloInstruction, found: dict[HloInstruction, None]) -> list[HloInstruction]:
    order: list[HloInstruction] = []
    waiting = {i: sum(o in found for o in set(i.operands)) for i in found}
    ready = [i for i, n in waiting.items() if n == 0]
    while ready:
        i = ready.pop()
        order.append(i)
        for user in i.users:
            if user in waiting:
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready.append(user)
    return order


def _split(source: HloInstruction, region: list[HloInstruction], b: Builder) -> None:
    (axis,) = source.dimensions
    bounds, at = [], 0
    for o in source.operands:
        bounds.append((at, at + o.shape.dimensions[axis]))
        at = bounds[-1][1]
    parts: dict[HloInstruction, list[HloInstruction]] = {source: list(source.operands)}

    def cut(x: HloInstruction) -> list[HloInstruction]:
        if x.shape.rank == 0:
            return [x] * len(bounds)
        if x not in parts:
            parts[x] = [b.slice(x, _spec(x, axis, SliceDim(*ends))) for ends in bounds]
        return parts[x]

    for i in region:
        if i.opcode.is_elementwise:
            columns = [cut(o) for o in i.operands]
            shapes = [i.shape.with_dimensions(p.shape.dimensions) for p in parts[source]]
            parts[i] = [b.with_operands(i, [c[n] for c in columns], s) for n, s in enumerate(shapes)]
        elif i.opcode is Opcode.SLICE:
            b.computation.replace_uses(i, _sliced(i, source, axis, cut(i.operand(0)), b))
        else:
            b.computation.replace_uses(i, _reduced(i, axis, cut(i.operand(0)), b))
    b.computation.remove_dead([*reversed(region), source, *b.made])


def _spec(x: HloInstruction, axis: int, on_axis: SliceDim) -> list[SliceDim]:
    return [on_axis if d == axis else SliceDim(0, n) for d, n in enumerate(x.shape.dimensions)]


def _sliced(
    i: HloInstruction, source: HloInstruction, axis: int, parts: list[HloInstruction], b: Builder
) -> HloInstruction:
    spec: tuple[SliceDim, ...] = i.attributes["slice"]
    place = _part_of(spec[axis], source, axis)
    assert place is not None  # noqa: S101 - `_fits` has checked it
    n, begin = place
    moved = SliceDim(spec[axis].start - begin, spec[axis].limit - begin, spec[axis].stride)
    return b.slice(parts[n], [moved if d == axis else s for d, s in enumerate(spec)])


def _reduced(i: HloInstruction, axis: int, parts: list[HloInstruction], b: Builder) -> HloInstruction:
    reduced = [b.reduce(p, i.operand(1), i.dimensions, i.attributes["to_apply"]) for p in parts]
    if axis not in i.dimensions:
        return b.concatenate(reduced, axis - sum(d < axis for d in i.dimensions))
    combine = _combination(i)
    assert combine is not None  # noqa: S101 - `_fits` has checked it
    total = reduced[0]
    for r in reduced[1:]:
        total = b.add(combine, total, r)
    return total
