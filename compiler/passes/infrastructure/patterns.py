"""Queries for rewrite rules: constant values, splats, and the scalar functions of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from compiler.ir import HloComputation, HloInstruction, Opcode, Shape
from compiler.ir.types import PrimitiveType

Scalar: TypeAlias = Any
"""A numpy (or ml_dtypes) scalar."""


def is_op(i: HloInstruction, *opcodes: Opcode) -> bool:
    """Check whether the instruction has one of these opcodes."""
    return i.opcode in opcodes


def single_use(i: HloInstruction) -> bool:
    """Check whether exactly one instruction uses it (possibly as several operands), and it is not the root."""
    return len(i.users) == 1 and not i.is_root


def splat_value(i: HloInstruction) -> Scalar | None:
    """Return the common value of all elements of a constant, or of a broadcast of one; None if unknown."""
    while i.opcode is Opcode.BROADCAST or i.opcode is Opcode.RESHAPE:
        i = i.operands[0]
    return i.literal.common_value if i.opcode is Opcode.CONSTANT and i.literal is not None else None


def is_splat(i: HloInstruction, value: complex) -> bool:
    """Check whether every element is known to be `value`."""
    found = splat_value(i)
    if found is None or (found.dtype == np.bool_ and value not in (0, 1)):
        return False
    try:
        return bool(found == found.dtype.type(value))
    except OverflowError:  # the type cannot represent the value
        return False


def is_constant(i: HloInstruction) -> bool:
    """Check whether it is a constant, or a broadcast or reshape of one."""
    while i.opcode in (Opcode.BROADCAST, Opcode.RESHAPE):
        i = i.operands[0]
    return i.opcode is Opcode.CONSTANT


def all_ones(element_type: PrimitiveType) -> int:
    """Return the value with all bits set: True for pred, -1 for signed, the maximum for unsigned types."""
    if element_type is PrimitiveType.PRED:
        return 1
    return (1 << element_type.bits) - 1 if element_type.is_unsigned else -1


def is_real_float(shape: Shape) -> bool:
    """Check whether elements are real floating-point numbers."""
    return shape.element_type.is_float


def is_integral(shape: Shape) -> bool:
    """Check whether elements are integers, excluding pred."""
    return shape.element_type.is_integer


def is_numeric(shape: Shape) -> bool:
    """Check whether elements are integers or standard floats (f16, bf16, f32, f64), which numpy computes like XLA."""
    return shape.element_type.is_integer or shape.element_type in STANDARD_FLOATS


def has_room(shape: Shape) -> bool:
    """Check whether sums and products may be reordered: types as in `is_numeric`, except f16.

    The maximum of f16, 65504, is easily exceeded by a sum that is scaled afterwards instead of before, or by a product
    of divisors.
    """
    return is_numeric(shape) and shape.element_type is not PrimitiveType.F16


STANDARD_FLOATS = (PrimitiveType.F16, PrimitiveType.BF16, PrimitiveType.F32, PrimitiveType.F64)


def operands_with_constant_right(i: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """Return both operands of a binary op, with a splat second if exactly one operand is a splat."""
    a, b = i.operands
    return (b, a) if splat_value(a) is not None and splat_value(b) is None else (a, b)


def other_operand(i: HloInstruction, operand: HloInstruction) -> HloInstruction:
    """Return the operand of a binary op that is not `operand`, or `operand` if both are."""
    return i.operands[1] if i.operands[0] is operand else i.operands[0]


def scalar_function(computation: HloComputation) -> Opcode | None:
    """Return the binary opcode that a scalar computation applies to its two parameters, in any order if commutative.

    Return None for comparisons, too, because their opcode does not determine the function.
    """
    root = computation.root
    if root.opcode is Opcode.COMPARE:
        return None
    if len(root.operands) != 2 or len(computation) > 3 + 8:
        return None
    numbers = tuple(o.parameter_number for o in root.operands)
    if len(computation.parameters) != 2:
        return None
    if numbers == (0, 1) or (numbers == (1, 0) and root.opcode in COMMUTATIVE):
        return root.opcode
    return None


COMMUTATIVE = (Opcode.ADD, Opcode.MULTIPLY, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR, Opcode.XOR)


def identity_value(function: Opcode, element_type: PrimitiveType) -> Scalar | None:
    """Return the identity element of a reduction by `function`, or None if there is none."""
    dtype = element_type.dtype
    if function in (Opcode.ADD, Opcode.XOR, Opcode.OR):
        return dtype.type(0)
    if function is Opcode.MULTIPLY:
        return dtype.type(1)
    if function is Opcode.AND:
        return np.asarray(all_ones(element_type)).astype(dtype)[()]
    if function not in (Opcode.MAXIMUM, Opcode.MINIMUM):
        return None
    return lowest(element_type) if function is Opcode.MAXIMUM else highest(element_type)


def lowest(element_type: PrimitiveType) -> Scalar | None:
    """Return the smallest value of a real type, which is minus infinity for the standard floats."""
    if element_type in STANDARD_FLOATS:
        return element_type.dtype.type(-np.inf)
    if element_type is PrimitiveType.PRED:
        return np.False_
    if element_type.is_integer and element_type.bits >= 8:
        return np.iinfo(element_type.dtype).min + element_type.dtype.type(0)
    return None


def highest(element_type: PrimitiveType) -> Scalar | None:
    """Return the largest value of a real type, which is infinity for the standard floats."""
    if element_type in STANDARD_FLOATS:
        return element_type.dtype.type(np.inf)
    if element_type is PrimitiveType.PRED:
        return np.True_
    if element_type.is_integer and element_type.bits >= 8:
        return np.iinfo(element_type.dtype).max + element_type.dtype.type(0)
    return None


def inverse_permutation(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse permutation."""
    out = [0] * len(dims)
    for i, d in enumerate(dims):
        out[d] = i
    return tuple(out)


def non_negative(i: HloInstruction) -> bool:
    """Check whether every element is known to be zero, positive or NaN, looking only at a few ops."""
    if i.opcode in (Opcode.EXPONENTIAL, Opcode.LOGISTIC, Opcode.COSH):
        return i.shape.element_type.is_float
    if i.opcode in (Opcode.ABS, Opcode.SQRT):
        return i.shape.element_type.is_float
    if i.opcode is Opcode.MULTIPLY and i.operands[0] is i.operands[1]:
        return i.shape.element_type.is_float
    if i.opcode in (Opcode.BROADCAST, Opcode.RESHAPE, Opcode.TRANSPOSE, Opcode.SLICE):
        return non_negative(i.operands[0])
    value = splat_value(i) if i.shape.element_type.is_float else None
    return value is not None and bool(value >= 0)
