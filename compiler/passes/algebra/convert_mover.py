"""Convert mover: computes integer arithmetic in a narrower type if only the low bits are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned

_LOW_BITS = frozenset(
    {Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.AND, Opcode.OR, Opcode.XOR, Opcode.NEGATE, Opcode.NOT}
)
"""Ops whose low bits depend only on the low bits of the operands."""


@register
@dataclass(frozen=True)
class ConvertMover(ComputationPass):
    """Rewrite convert(add(a, b)) from u64 to u32 -> add(convert(a), convert(b)), if that adds at most one convert.

    Users are processed before operands, so that one run moves a convert to the leaves: constants, iotas and other
    converts absorb it. A convert of a broadcast becomes a broadcast of a convert for all types.
    """

    name: ClassVar[str] = "convert-mover"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        if Opcode.CONVERT not in computation.opcodes:
            return False
        fixed = pinned(computation)
        changed = False
        for op in reversed(computation.post_order()):
            if op.parent is computation and op not in fixed and not op.is_root and op.users:
                changed |= _move(op, computation, fixed)
        return changed


def _move(op: HloInstruction, computation: HloComputation, fixed: set[HloInstruction]) -> bool:
    if next(iter(op.users)).opcode is not Opcode.CONVERT:
        return False
    users = list(op.users)
    if any(u.opcode is not Opcode.CONVERT or u in fixed for u in users) or op.shape.is_dynamic:
        return False
    target = users[0].shape.element_type
    if any(u.shape.element_type is not target for u in users) or target is op.shape.element_type:
        return False
    builder = Builder(computation)
    new = _converted(op, target, builder)
    if new is None:
        return False
    for u in users:
        computation.replace_uses(u, new)
    computation.remove_dead(users)
    return True


def _converted(op: HloInstruction, target: PrimitiveType, b: Builder) -> HloInstruction | None:
    source = op.shape.element_type
    if op.opcode is Opcode.BROADCAST and op.operand(0).shape.num_elements < op.shape.num_elements:
        return b.broadcast(b.convert(op.operand(0), target), op.shape.dimensions, op.dimensions)
    if not (source.is_integer and target.is_integer and target.bits <= source.bits):
        return None
    if op.opcode is Opcode.IOTA:
        size = op.shape.dimensions[op.attributes["iota_dimension"]]
        fits = size <= 1 << (target.bits - 1)
        shape = op.shape.with_type(target)
        return b.add(Opcode.IOTA, shape=shape, iota_dimension=op.attributes["iota_dimension"]) if fits else None
    if target.bits == source.bits or not _low_bits_suffice(op, target):
        return None
    if sum(not _absorbs(o) for o in op.operands) > 1:
        return None
    return b.with_operands(op, [b.convert(o, target) for o in op.operands], op.shape.with_type(target))


def _low_bits_suffice(op: HloInstruction, target: PrimitiveType) -> bool:
    if op.opcode is not Opcode.SHIFT_LEFT:
        return op.opcode in _LOW_BITS
    by = splat_value(op.operand(1))
    return by is not None and 0 <= int(by) < target.bits


def _absorbs(operand: HloInstruction) -> bool:
    if operand.opcode in (Opcode.IOTA, Opcode.CONVERT) or splat_value(operand) is not None:
        return True
    return operand.opcode is Opcode.BROADCAST and operand.operand(0).shape.rank == 0
