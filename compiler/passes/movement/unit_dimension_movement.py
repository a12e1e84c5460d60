"""Unit dimension movement: moves reshapes that drop dimensions of size 1 to the leaves, where they vanish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.attributes import PadDim
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned

Kept: TypeAlias = tuple[int, ...]
"""The kept dimensions, by their old numbers."""


@register
@dataclass(frozen=True)
class UnitDimensionMovement(ComputationPass):
    """Compute without dimensions of size 1 that all users drop.

    `reshape(add(a, b))` from f32[8,1] to f32[8] becomes an add of reshapes. Users are processed before operands, so
    that one run moves a reshape all the way; broadcasts, iotas and other reshapes absorb it. It stops at slices, which
    `slice-movement` moves through reshapes.
    """

    name: ClassVar[str] = "unit-dimension-movement"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        if Opcode.RESHAPE not in computation.opcodes:
            return False
        fixed = pinned(computation)
        changed = False
        for op in reversed(computation.post_order()):
            if op.parent is computation and op not in fixed and not op.is_root:
                changed |= _move(op, computation, fixed)
        return changed


def _move(op: HloInstruction, computation: HloComputation, fixed: set[HloInstruction]) -> bool:
    if not op.users or next(iter(op.users)).opcode is not Opcode.RESHAPE:
        return False
    users = list(op.users)
    if not op.shape.is_array or any(u.opcode is not Opcode.RESHAPE or u in fixed for u in users):
        return False
    wanted = users[0].shape.dimensions
    if any(u.shape.dimensions != wanted or u.shape.is_dynamic for u in users):
        return False
    kept = _kept(op.shape.dimensions, wanted)
    if kept is None or op.shape.is_dynamic or any(o.shape.is_dynamic for o in op.operands) or _effect(op):
        return False
    builder = Builder(computation)
    new = _push(op, kept, builder)
    if new is None:
        computation.remove_dead(builder.made)
        return False
    for u in users:
        computation.replace_uses(u, new)
    computation.remove_dead(users)
    return True


def _effect(op: HloInstruction) -> bool:
    return bool(op.attributes) and has_side_effect(op)


def _kept(dims: tuple[int, ...], wanted: tuple[int, ...]) -> Kept | None:
    """Return which of `dims` remain in `wanted` if all others are 1; None if none is dropped or for other reshapes."""
    if len(wanted) >= len(dims):
        return None
    kept: list[int] = []
    for d, n in enumerate(dims):
        left = len(wanted) - len(kept)
        # Match greedily: a unit dimension is kept if the wanted shape has one at this position.
        if left and n == wanted[len(kept)]:
            kept.append(d)
        elif n != 1:
            return None
    return tuple(kept) if len(kept) == len(wanted) else None


def _push(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction | None:
    if op.opcode.is_elementwise or (op.opcode is Opcode.BITCAST_CONVERT and op.shape.rank == op.operand(0).shape.rank):
        return _elementwise(op, kept, b)
    rule = _PUSHES.get(op.opcode)
    return None if rule is None else rule(op, kept, b)


def _sizes(op: HloInstruction, kept: Kept) -> tuple[int, ...]:
    return tuple(op.shape.dimensions[d] for d in kept)


def _elementwise(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction | None:
    if op.opcode is Opcode.MAP:
        return None
    sizes = _sizes(op, kept)
    operands = [o if o.shape.rank == 0 else b.reshape(o, sizes) for o in op.operands]
    return b.with_operands(op, operands, op.shape.with_dimensions(sizes))


def _broadcast(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction:
    source = op.operand(0)
    stays = [n for n, d in enumerate(op.dimensions) if d in kept]
    inner = b.reshape(source, [source.shape.dimensions[n] for n in stays])
    sizes = _sizes(op, kept)
    if inner.shape.dimensions == sizes:
        return inner
    return b.broadcast(inner, sizes, [kept.index(op.dimensions[n]) for n in stays])


def _iota(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction:
    at: int = op.attributes["iota_dimension"]
    shape = op.shape.with_dimensions(_sizes(op, kept))
    return b.add(Opcode.IOTA, shape=shape, iota_dimension=kept.index(at)) if at in kept else b.splat(0, shape)


def _reshape(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction:
    return b.reshape(op.operand(0), _sizes(op, kept))


def _transpose(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction:
    sources = [op.dimensions[d] for d in kept]
    order = sorted(sources)
    inner = b.reshape(op.operand(0), [op.operand(0).shape.dimensions[d] for d in order])
    return b.transpose(inner, [order.index(d) for d in sources])


def _concatenate(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction | None:
    (at,) = op.dimensions
    if at not in kept:
        return None
    parts = [b.reshape(o, [o.shape.dimensions[d] for d in kept]) for o in op.operands]
    return b.concatenate(parts, kept.index(at))


def _pad(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction | None:
    source, value = op.operands
    padding: tuple[PadDim, ...] = op.attributes["padding"]
    if any((p.low, p.high) != (0, 0) for d, p in enumerate(padding) if d not in kept):
        return None
    if any(source.shape.dimensions[d] != 1 for d in range(op.shape.rank) if d not in kept):
        return None
    return b.pad(b.reshape(source, [source.shape.dimensions[d] for d in kept]), value, [padding[d] for d in kept])


def _reduce(op: HloInstruction, kept: Kept, b: Builder) -> HloInstruction | None:
    if len(op.operands) != 2:
        return None
    source, init = op.operands
    left = [d for d in range(source.shape.rank) if d not in op.dimensions]
    dropped = {left[d] for d in range(op.shape.rank) if d not in kept}
    order = [d for d in range(source.shape.rank) if d not in dropped]
    inner = b.reshape(source, [source.shape.dimensions[d] for d in order])
    dims = tuple(order.index(d) for d in op.dimensions)
    return b.add(Opcode.REDUCE, inner, init, dimensions=dims, to_apply=op.attributes["to_apply"])


_PUSHES: dict[Opcode, Callable[[HloInstruction, Kept, Builder], HloInstruction | None]] = {
    Opcode.BROADCAST: _broadcast,
    Opcode.IOTA: _iota,
    Opcode.RESHAPE: _reshape,
    Opcode.TRANSPOSE: _transpose,
    Opcode.CONCATENATE: _concatenate,
    Opcode.PAD: _pad,
    Opcode.REDUCE: _reduce,
}
