"""Typed scalar operations of the loop IR: which ops kernels can compute on single elements, and for which types.

A `ScalarOp` says what is computed and on which types, and nothing about how a language writes it; `scalar` has the
expressions of C and CUDA C++. f16 and bf16 are computed in float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir import shape_rules
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode, Trait
from compiler.ir.types import PrimitiveType as T

COMPUTE_BYTES: dict[T, int] = {
    T.PRED: 1, T.S8: 1, T.S16: 2, T.S32: 4, T.S64: 8, T.U8: 1, T.U16: 2, T.U32: 4, T.U64: 8,
    T.F16: 4, T.BF16: 4, T.F32: 4, T.F64: 8,
}  # fmt: skip
"""Size in bytes of a value of each element type while a kernel computes with it."""

HELD_TYPES: dict[T, T] = {
    **dict.fromkeys(
        (T.F8E5M2, T.F8E4M3, T.F8E4M3FN, T.F8E4M3B11FNUZ, T.F8E3M4, T.F8E5M2FNUZ, T.F8E4M3FNUZ, T.U4, T.U2), T.U8
    ),
    **dict.fromkeys((T.S4, T.S2), T.S8),
    T.C64: T.U64,
}  # fmt: skip
"""The integers as which kernels hold values of types that they move, select and convert: the bits of a float of 8 bits,
the number of an integer of up to 4, and the bits of both parts of a complex number, the real one in the lower half.
Kernels support no types but these and those of COMPUTE_BYTES."""

SCALAR_BYTES: dict[T, int] = {**COMPUTE_BYTES, **{t: COMPUTE_BYTES[held] for t, held in HELD_TYPES.items()}}
"""Size in bytes of a value of each element type in a kernel."""

COMBINERS = frozenset({Opcode.ADD, Opcode.MULTIPLY, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR})
"""Ops that a reduction may apply in any order."""

NEAR_ANGLE = 2.0**16
"""Maximum size of an angle whose sine or cosine of f32 is computed without a reduction in high precision."""
_NOT_SCALAR = frozenset(
    {Opcode.STOCHASTIC_CONVERT, Opcode.REDUCE_PRECISION, Opcode.MAP}
)  # fmt: skip
"""Elementwise ops without a `ScalarOp`: passes expand them, or the interpreter computes them."""
SCALAR_OPCODES = {op for op in Opcode if op.has(Trait.ELEMENTWISE)} - _NOT_SCALAR | {Opcode.BITCAST_CONVERT}
"""The opcodes that a `ScalarOp` may have."""
_FLOAT_ONLY = frozenset({Opcode.POWER, Opcode.ATAN2, Opcode.IS_FINITE}) | {
    op for op in SCALAR_OPCODES if op.row.rule in (shape_rules.unary_float, shape_rules.unary_smooth)
}


_PARTS = {
    Opcode.REAL: frozenset({(t, t) for t in COMPUTE_BYTES if t.is_float} | {(T.C64, T.F32)}),
    Opcode.IMAG: frozenset({(T.C64, T.F32)}),
    Opcode.COMPLEX: frozenset({(T.F32, T.C64)}),
}
"""Ops between complex numbers and their parts, with the types of the operands and the result."""
_SMALL_INTEGER_OPS = frozenset(
    {
        Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.DIVIDE, Opcode.REMAINDER, Opcode.MAXIMUM, Opcode.MINIMUM,
        Opcode.CLAMP, Opcode.AND, Opcode.OR, Opcode.XOR, Opcode.NOT, Opcode.NEGATE, Opcode.ABS, Opcode.SIGN,
        Opcode.COMPARE,
    }
)  # fmt: skip
"""Ops on integers of up to 4 bits that are those of 8 bits, wrapped around."""


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """An operation on single elements.

    Attributes:
        opcode: what is computed, one of SCALAR_OPCODES.
        type: element type of the first operand; of the second for a select, whose first is a pred.
        result: element type of the result.
        direction: of a comparison, "EQ", "NE", "LT", "LE", "GT" or "GE"; empty for other ops.
        total_order: whether a comparison of floats uses their total order.
        near: of a sine or cosine of f32, whether the angle is known to be at most NEAR_ANGLE in size.
        in_range: of a conversion from float to integer, whether the value is known to be NaN or in the range of the
            integers.
        multiplied: of a division or a reciprocal root of f32, whether it is computed by multiplications; a divisor is
            then the same for all elements of the loop around it.
    """

    opcode: Opcode
    type: T
    result: T
    direction: str = ""
    total_order: bool = False
    near: bool = False
    in_range: bool = False
    multiplied: bool = False

    @property
    def flops(self) -> int:
        """Return the arithmetic operations it costs, with transcendental functions weighted."""
        return self.opcode.row.flops

    @property
    def is_expensive(self) -> bool:
        """Return whether it takes many instructions, as transcendental functions do."""
        return self.opcode.has(Trait.EXPENSIVE)

    def __str__(self) -> str:
        detail = f".{self.direction.lower()}" if self.direction else ""
        to = "" if self.result is self.type or self.direction else f".{self.result.text}"
        return f"{self.opcode.text}{detail}.{self.type.text}{to}"


def binary(opcode: Opcode, t: T) -> ScalarOp:
    """Return an op whose operands and result have one type."""
    return ScalarOp(opcode, t, t)


def conversion(source: T, target: T) -> ScalarOp:
    """Return the conversion of one element type to another."""
    return ScalarOp(Opcode.CONVERT, source, target)


def comparison(direction: str, t: T) -> ScalarOp:
    """Return a comparison of two values of a type."""
    return ScalarOp(Opcode.COMPARE, t, T.PRED, direction)


def is_supported_type(t: T) -> bool:
    """Check whether kernels compute with an element type."""
    return t in COMPUTE_BYTES


def is_value_type(t: T) -> bool:
    """Check whether kernels read, move and write values of an element type, though they may not compute with it."""
    return t in SCALAR_BYTES


def literal_of(value: Any, t: T) -> int | float:
    """Return the number as which a kernel holds a Python or NumPy scalar of an element type."""
    if t in HELD_TYPES and not t.is_integer:
        return int(np.asarray(value, t.dtype).view(HELD_TYPES[t].dtype))
    return float(value) if t.is_float else int(value)


def scalar_op_of(i: HloInstruction) -> ScalarOp:
    """Return the operation of an elementwise instruction; raise UnsupportedError if kernels do not have it."""
    op = i.opcode
    if not i.operands or op not in SCALAR_OPCODES:
        raise UnsupportedError(f"%{i.name}: {op.text} has no kernel")
    for s in (i.shape, *(o.shape for o in i.operands)):
        if s.element_type not in SCALAR_BYTES:
            raise UnsupportedError(f"%{i.name}: element type {s.element_type.text} has no kernel")
    t, result = i.operands[1 if op is Opcode.SELECT else 0].shape.element_type, i.shape.element_type
    reason = _refusal(op, t, result)
    if reason is not None:
        raise UnsupportedError(f"%{i.name}: {reason} has no kernel")
    if op is Opcode.COMPARE:
        return ScalarOp(op, t, T.PRED, i.attr("direction"), i.attr("type") == "TOTALORDER" and t.is_float)
    if op is Opcode.CLAMP:
        t = i.operands[1].shape.element_type
    return ScalarOp(op, t, result)


def _refusal(op: Opcode, t: T, result: T) -> str | None:
    """Return what kernels lack, or None if they have the op for these types."""
    if op in _PARTS:
        has_kernel = (t, result) in _PARTS[op]
        return None if has_kernel else f"{op.text} of {t.text}"
    if t in HELD_TYPES or result in HELD_TYPES:
        return _held_refusal(op, t, result)
    if op in _FLOAT_ONLY and not t.is_float:
        return f"{op.text} of {t.text}"
    if op is Opcode.MULHI and t.bits > 32:
        return f"{op.text} of {t.text}"
    if op is Opcode.BITCAST_CONVERT:
        both_float = t.is_float and result.is_float and t is not result
        if t.bits != result.bits or T.PRED in (t, result) or both_float:
            return f"{op.text} from {t.text} to {result.text}"
    return None


def _held_refusal(op: Opcode, t: T, result: T) -> str | None:
    """Return what kernels lack of an op on values that they hold as integers."""
    if op in (Opcode.COPY, Opcode.SELECT):
        return None
    if op is Opcode.CONVERT:
        has_kernel = T.C64 not in (t, result)
    elif op is Opcode.BITCAST_CONVERT:
        has_kernel = t.bits == result.bits == 8 and T.PRED not in (t, result)
    else:
        has_kernel = t.is_integer and op in _SMALL_INTEGER_OPS
    return None if has_kernel else f"{op.text} from {t.text} to {result.text}"


def has_exact_identity(op: ScalarOp) -> bool:
    """Return whether combining any value with `identity_of` the op gives that value bit for bit.

    A sum of floating-point numbers has no such identity here, because 0 + -0 is 0.
    """
    return op.opcode in COMBINERS and not (op.opcode is Opcode.ADD and op.type.is_float)


def identity_of(combiner: Opcode, t: T) -> bool | int | float:
    """Return the identity element of a combiner.

    That of sums of floats is -0.0, which changes no value, whereas 0.0 + -0.0 is 0.0: a C compiler omits such an
    addition. Besides, gcc fills arrays with zeros by a call or by narrower stores than the loads that follow.
    """
    if combiner is Opcode.ADD and t.is_float:
        return -0.0
    if combiner in (Opcode.ADD, Opcode.OR):
        return 0
    if combiner is Opcode.MULTIPLY:
        return 1
    if combiner is Opcode.AND:
        return 1 if t is T.PRED else (-1 if t.is_signed else 2**t.bits - 1)
    largest = combiner is Opcode.MINIMUM
    if t.is_float:
        return math.inf if largest else -math.inf
    if t is T.PRED:
        return int(largest)
    high = 2 ** (t.bits - 1) - 1 if t.is_signed else 2**t.bits - 1
    low = -(2 ** (t.bits - 1)) if t.is_signed else 0
    return high if largest else low
