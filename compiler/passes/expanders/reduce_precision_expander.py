"""Reduced precision, as integer arithmetic on the bits of floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.expanders.bitcast_width import UNSIGNED
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder

T = PrimitiveType


@dataclass(frozen=True)
class ReducePrecisionExpander(InstructionPass):
    """Replace reduce-precision by integer ops on the bits of its operand, which kernels compute.

    Ties are rounded to even, overflow is infinite, and what would be subnormal in the smaller format is 0; NaN stays.
    """

    name: ClassVar[str] = "reduce-precision-expander"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.REDUCE_PRECISION})

    def visit(self, instruction: HloInstruction) -> bool:
        """Expand one instruction; return whether it changed."""
        i = instruction
        if i.parent is None or i.control_predecessors or i.shape.is_dynamic:
            return False
        t = i.shape.element_type
        if not t.is_float:
            return False
        b = Builder(i.parent)
        x = b.convert(i.operand(0), t if t is T.F64 else T.F32)
        reduced = _reduced(b, x, i.attr("exponent_bits"), i.attr("mantissa_bits"))
        i.parent.replace(i, b.convert(reduced, t))
        return True


def _reduced(b: Builder, x: HloInstruction, exponent_bits: int, mantissa_bits: int) -> HloInstruction:
    t = x.shape.element_type
    info = np.finfo(t.dtype)
    mantissa, exponent = int(info.nmant), int(info.nexp)
    shape = Shape(UNSIGNED[t.bits], x.shape.dimensions)

    def number(value: int) -> HloInstruction:
        return b.splat(value, shape)

    bits = b.add(Opcode.BITCAST_CONVERT, x, shape=shape)
    if (dropped := mantissa - mantissa_bits) > 0:
        last = b.add(Opcode.AND, b.add(Opcode.SHIFT_RIGHT_LOGICAL, bits, number(dropped)), number(1))
        bits = b.add(Opcode.ADD, bits, b.add(Opcode.ADD, last, number((1 << (dropped - 1)) - 1)))
        bits = b.add(Opcode.AND, bits, number((1 << t.bits) - (1 << dropped)))
    if exponent_bits < exponent:
        field = ((1 << exponent) - 1) << mantissa
        bias, smaller = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        size = b.add(Opcode.AND, bits, number(field))
        sign = b.add(Opcode.AND, bits, number(1 << (t.bits - 1)))
        is_over = b.compare(size, number((bias + smaller) << mantissa), "GT")
        is_under = b.compare(size, number((bias - smaller) << mantissa), "LE")
        bits = b.add(Opcode.SELECT, is_under, sign, bits)
        bits = b.add(Opcode.SELECT, is_over, b.add(Opcode.OR, sign, number(field)), bits)
    rounded = b.add(Opcode.BITCAST_CONVERT, bits, shape=Shape(t, x.shape.dimensions))
    return b.add(Opcode.SELECT, b.compare(x, x, "NE"), x, rounded)
