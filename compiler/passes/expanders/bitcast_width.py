"""Bit casts between types of different widths, as shifts of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register

UNSIGNED = {8: PrimitiveType.U8, 16: PrimitiveType.U16, 32: PrimitiveType.U32, 64: PrimitiveType.U64}
"""The unsigned integer of each width in bits."""
_FLOATS = frozenset({PrimitiveType.F16, PrimitiveType.BF16, PrimitiveType.F32, PrimitiveType.F64})


@register
@dataclass(frozen=True)
class BitcastWidth(InstructionPass):
    """Rewrite a bitcast-convert to narrower or wider elements as shifts, which kernels compute.

    Element 0 of a group of narrow elements has the lowest bits of the wide one. Booleans, types of less than
    8 bits and floats of 8 bits are kept.
    """

    name: ClassVar[str] = "bitcast-width"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.BITCAST_CONVERT})

    def visit(self, instruction: HloInstruction) -> bool:
        """Expand one bit cast; return whether it changed."""
        i = instruction
        if i.parent is None or i.control_predecessors or i.shape.is_dynamic:
            return False
        x = i.operand(0)
        wide, narrow = (_unsigned(s.element_type) for s in (x.shape, i.shape))
        if wide is None or narrow is None or wide is narrow:
            return False
        b = Builder(i.parent)
        bits = _cast(b, x, wide)
        new = _parts(b, bits, i.shape, narrow) if wide.bits > narrow.bits else _joined(b, bits, narrow)
        i.parent.replace(i, _cast(b, new, i.shape.element_type))
        return True


def _unsigned(t: PrimitiveType) -> PrimitiveType | None:
    return UNSIGNED.get(t.bits) if t in _FLOATS or t.is_integer else None


def _cast(b: Builder, x: HloInstruction, t: PrimitiveType) -> HloInstruction:
    """Return the bits of an array as another type of the same width."""
    if x.shape.element_type is t:
        return x
    return b.add(Opcode.BITCAST_CONVERT, x, shape=Shape(t, x.shape.dimensions))


def _shifts(b: Builder, wide: PrimitiveType, narrow: PrimitiveType, sizes: tuple[int, ...]) -> HloInstruction:
    """Return by how many bits the element of each position is shifted."""
    shape = Shape(wide, sizes)
    return b.add(
        Opcode.MULTIPLY, b.add(Opcode.IOTA, shape=shape, iota_dimension=len(sizes) - 1), b.splat(narrow.bits, shape)
    )


def _parts(b: Builder, x: HloInstruction, shape: Shape, narrow: PrimitiveType) -> HloInstruction:
    """Return the narrow parts of wide integers."""
    wide, sizes = x.shape.element_type, shape.dimensions
    spread = b.broadcast(x, sizes, tuple(range(x.shape.rank)))
    shifted = b.add(Opcode.SHIFT_RIGHT_LOGICAL, spread, _shifts(b, wide, narrow, sizes))
    return b.convert(shifted, narrow)


def _joined(b: Builder, x: HloInstruction, wide: PrimitiveType) -> HloInstruction:
    """Return wide integers from their narrow parts; sums of parts that share no bits are their disjunction."""
    sizes = x.shape.dimensions
    parts = b.add(Opcode.SHIFT_LEFT, b.convert(x, wide), _shifts(b, wide, x.shape.element_type, sizes))
    return b.sum(parts, [len(sizes) - 1])
