"""Products of f32 whose operands have no more bits than a half: a library multiplies the halves by tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot, make_dot
from compiler.passes.dots.outlining import is_fused
from compiler.passes.dots.product_fusion import ProductSizes
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder

_MOVED = frozenset({
    Opcode.RESHAPE, Opcode.BITCAST, Opcode.TRANSPOSE, Opcode.SLICE, Opcode.BROADCAST, Opcode.REVERSE,
    Opcode.CONCATENATE, Opcode.PAD,
})  # fmt: skip
_SMALL = frozenset({
    T.PRED, T.S4, T.U4, T.S8, T.U8, T.F8E5M2, T.F8E4M3, T.F8E4M3FN, T.F8E4M3B11FNUZ, T.F8E3M4, T.F8E5M2FNUZ,
    T.F8E4M3FNUZ,
})  # fmt: skip
"""Types whose values both f16 and bf16 represent exactly; bf16 has 8 significant bits, which the integers need."""
_MOST_CONSTANTS = 1 << 16
"""Elements of a constant up to which it is checked whether a half represents them."""


@dataclass(frozen=True)
class HalfOperands(InstructionPass):
    """Rewrite f32 dot(convert(x), convert(y)) -> f32 dot(x, y) of bf16 or f16, if these types represent both exactly.

    Between a convert and the dot there may be ops that move elements, such as the patches of a convolution, which then
    move halves. Integers and floats of 8 bits are converted to halves. The products of two halves are exact in f32, in
    which they are added, so results change by the order of additions alone. Products with vectors are sums and stay.
    """

    name: ClassVar[str] = "half-operands"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.DOT})

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a dot; return whether anything changed."""
        dot, computation = instruction, instruction.parent
        if computation is None or is_fused(computation) or (half := _half_of(dot)) is None:
            return False
        b = Builder(computation)
        lhs, rhs = (_in_half(o, half, b) for o in dot.operands)
        computation.replace(dot, make_dot(b, dot, lhs, rhs, DotDims.of(dot)))
        return True


def _half_of(dot: HloInstruction) -> T | None:
    """Return the half type that represents both operands of a dot, or None if there is none."""
    if not is_uniform_dot(dot) or dot.shape.element_type is not T.F32 or dot.control_predecessors:
        return None
    if any(x.shape.is_dynamic for x in (dot, *dot.operands)):
        return None
    sizes = ProductSizes.of(dot)
    if min(sizes.batch, sizes.k) < 1 or min(sizes.m, sizes.n) < 2:
        return None
    leaves = [i for o in dot.operands for i in _moves(o)[1]]
    if not any(i.opcode is Opcode.CONVERT for i in leaves):
        return None
    return next((half for half in (T.BF16, T.F16) if all(_represents(half, i) for i in leaves)), None)


def _moves(operand: HloInstruction) -> tuple[list[HloInstruction], list[HloInstruction]]:
    """Return the ops that move elements above an operand, each after its operands, and the values that they move."""
    order: list[HloInstruction] = []
    leaves: list[HloInstruction] = []
    seen: set[HloInstruction] = set()
    stack = [(operand, False)]
    while stack:
        i, is_done = stack.pop()
        if is_done:
            order.append(i)
        elif i not in seen:
            seen.add(i)
            if i.opcode in _MOVED and not i.control_predecessors and not i.shape.is_dynamic:
                stack.append((i, True))
                stack += [(o, False) for o in i.operands]
            else:
                leaves.append(i)
    return order, leaves


def _represents(half: T, leaf: HloInstruction) -> bool:
    """Check whether a half type has every value of an array of f32, so far as is known."""
    if leaf.opcode is Opcode.CONVERT:
        source = leaf.operands[0].shape.element_type
        return source is half or source in _SMALL
    if leaf.opcode is Opcode.CONSTANT and leaf.shape.num_elements <= _MOST_CONSTANTS:
        values = leaf.value.value
        with np.errstate(over="ignore"):
            return bool(np.array_equal(values, values.astype(half.dtype).astype(values.dtype)))
    return False


def _in_half(operand: HloInstruction, half: T, b: Builder) -> HloInstruction:
    """Return an operand in a half type that represents it."""
    order, leaves = _moves(operand)
    made = {i: b.convert(i.operands[0] if i.opcode is Opcode.CONVERT else i, half) for i in leaves}
    for i in order:
        made[i] = b.with_operands(i, [made[o] for o in i.operands], Shape(half, i.shape.dimensions))
    return made[operand]
