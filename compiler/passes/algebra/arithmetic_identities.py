"""Arithmetic identities: adding zero, multiplying by one, double negation, rounding twice, and similar.

NaN and infinities are preserved, so x*0 and x-x are kept for floats. The sign of zero is lost only in x+0 -> x, as in
XLA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    all_ones,
    highest,
    is_integral,
    is_op,
    is_real_float,
    is_splat,
    lowest,
    non_negative,
    operands_with_constant_right,
    splat_value,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ArithmeticIdentities(RewritePass):
    """Apply identities of add, subtract, multiply, negate, abs, max, min, clamp, rounding and complex parts."""

    name: ClassVar[str] = "arithmetic-identities"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.ADD)
def _add(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = operands_with_constant_right(i)
    if is_splat(y, 0):
        return x
    for p, q in ((x, y), (y, x)):
        if is_op(q, Opcode.NEGATE):
            return b.add(Opcode.SUBTRACT, p, q.operands[0])
        # (a - b) + b -> a is exact for integers only
        if is_integral(i.shape) and is_op(q, Opcode.SUBTRACT) and q.operands[1] is p:
            return q.operands[0]
    return None


@RULES.on(Opcode.SUBTRACT)
def _subtract(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if is_splat(y, 0):
        return x
    if is_op(y, Opcode.NEGATE):
        return b.add(Opcode.ADD, x, y.operands[0])
    if not is_integral(i.shape):
        return None
    if x is y:
        return b.splat(0, i.shape)
    if is_splat(x, 0):
        return b.add(Opcode.NEGATE, y)
    if is_op(x, Opcode.ADD) and y in x.operands:
        return x.operands[1] if x.operands[0] is y else x.operands[0]
    return None


@RULES.on(Opcode.MULTIPLY)
def _multiply(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = operands_with_constant_right(i)
    if is_splat(y, 1):
        return x
    if is_splat(y, 0) and is_integral(i.shape):
        return b.splat(0, i.shape)
    if is_splat(y, -1) and not i.shape.element_type.is_unsigned and not i.shape.element_type.is_complex:
        return b.add(Opcode.NEGATE, x)
    if is_op(x, Opcode.NEGATE) and is_op(y, Opcode.NEGATE):
        return b.add(Opcode.MULTIPLY, x.operands[0], y.operands[0])
    if x is y:
        return _square(x, b)
    value = splat_value(y)
    if is_op(x, Opcode.NEGATE) and value is not None:
        return b.add(Opcode.MULTIPLY, x.operands[0], b.splat(np.negative(value), y.shape))
    return None


def _square(x: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite |x| * |x| -> x * x and sqrt(x) * sqrt(x) -> x for non-negative x."""
    if is_op(x, Opcode.ABS) and x.operands[0].shape.element_type is x.shape.element_type:
        return b.add(Opcode.MULTIPLY, x.operands[0], x.operands[0])
    if is_op(x, Opcode.SQRT) and is_real_float(x.shape) and _has_no_sign(x.operands[0]):
        return x.operands[0]
    return None


@RULES.on(Opcode.NEGATE)
def _negate(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if is_op(x, Opcode.NEGATE):
        return x.operands[0]
    if is_op(x, Opcode.SUBTRACT) and is_integral(i.shape):
        return b.add(Opcode.SUBTRACT, x.operands[1], x.operands[0])
    if is_op(x, Opcode.MULTIPLY) and len(x.users) == 1:
        p, q = operands_with_constant_right(x)
        value = splat_value(q)
        if value is not None:
            return b.add(Opcode.MULTIPLY, p, b.splat(np.negative(value), q.shape))
    return None


@RULES.on(Opcode.ABS)
def _abs(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if i.shape.element_type.is_unsigned or (_has_no_sign(x) and i.shape.element_type is x.shape.element_type):
        return x
    if is_op(x, Opcode.ABS) and i.shape.element_type is x.shape.element_type:
        return x
    return b.add(Opcode.ABS, x.operands[0]) if is_op(x, Opcode.NEGATE) else None


def _has_no_sign(x: HloInstruction, depth: int = 4) -> bool:
    """Check whether no element is negative, ignoring the sign of zero: `non_negative`, also through max, select etc."""
    if non_negative(x):
        return True
    if depth == 0 or not x.shape.is_array or not x.shape.element_type.is_float:
        return False
    if x.opcode is Opcode.MAXIMUM:
        return any(_has_no_sign(o, depth - 1) for o in x.operands)
    if x.opcode in (Opcode.MINIMUM, Opcode.ADD, Opcode.MULTIPLY):
        return all(_has_no_sign(o, depth - 1) for o in x.operands)
    return x.opcode is Opcode.SELECT and all(_has_no_sign(o, depth - 1) for o in x.operands[1:])


@RULES.on(Opcode.MAXIMUM, Opcode.MINIMUM)
def _max_min(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = operands_with_constant_right(i)
    if x is y:
        return x
    for p, q in ((x, y), (y, x)):
        if is_op(p, Opcode.MAXIMUM, Opcode.MINIMUM) and q in p.operands and p.opcode is i.opcode:
            return p
    low, high = lowest(i.shape.element_type), highest(i.shape.element_type)
    neutral, absorbing = (low, high) if i.opcode is Opcode.MAXIMUM else (high, low)
    if neutral is not None and is_splat(y, neutral):
        return x
    if absorbing is not None and is_splat(y, absorbing) and not i.shape.element_type.is_float:
        return y
    return _of_clamp(i, x, y) or _to_clamp(i, x, y, b)


def _of_clamp(i: HloInstruction, x: HloInstruction, bound: HloInstruction) -> HloInstruction | None:
    """Rewrite max(clamp(low, v, high), c) -> clamp(low, v, high) for constants c <= low <= high; min likewise."""
    c = splat_value(bound)
    if c is None or not is_op(x, Opcode.CLAMP):
        return None
    low, high = splat_value(x.operands[0]), splat_value(x.operands[2])
    if low is None or high is None or not low <= high:
        return None
    return x if (c <= low if i.opcode is Opcode.MAXIMUM else c >= high) else None


def _to_clamp(i: HloInstruction, x: HloInstruction, bound: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite min(max(x, low), high) -> clamp(low, x, high) for constants low <= high; max of min likewise."""
    inner = Opcode.MINIMUM if i.opcode is Opcode.MAXIMUM else Opcode.MAXIMUM
    outer_value = splat_value(bound)
    if outer_value is None or not is_op(x, inner) or len(x.users) > 1:
        return None
    y, inner_bound = operands_with_constant_right(x)
    inner_value = splat_value(inner_bound)
    if (
        inner_value is None
        or i.shape.element_type.bits < 8
        or not (is_integral(i.shape) or i.shape.element_type.is_float)
    ):
        return None
    low, high = (outer_value, inner_value) if i.opcode is Opcode.MAXIMUM else (inner_value, outer_value)
    if not low <= high:
        return None
    scalar = i.shape.with_dimensions(())
    return b.add(Opcode.CLAMP, b.splat(low, scalar), y, b.splat(high, scalar))


@RULES.on(Opcode.CLAMP)
def _clamp(i: HloInstruction, b: Builder) -> HloInstruction | None:
    low, x, high = i.operands
    if is_op(x, Opcode.CLAMP) and x.operands[0] is low and x.operands[2] is high:
        return x
    low_value, high_value = splat_value(low), splat_value(high)
    if low_value is None or high_value is None:
        return None
    if is_op(x, Opcode.CLAMP):
        inner = (splat_value(x.operands[0]), splat_value(x.operands[2]))
        if inner[0] is not None and inner[1] is not None and inner[0] == low_value and inner[1] == high_value:
            return x
    least, most = lowest(i.shape.element_type), highest(i.shape.element_type)
    if least is not None and low_value == least:
        bound = high if high.shape.rank == i.shape.rank else b.broadcast(high, i.shape.dimensions, ())
        return b.add(Opcode.MINIMUM, x, bound)
    if most is not None and high_value == most:
        bound = low if low.shape.rank == i.shape.rank else b.broadcast(low, i.shape.dimensions, ())
        return b.add(Opcode.MAXIMUM, x, bound)
    return None


_ROUNDINGS = (Opcode.FLOOR, Opcode.CEIL, Opcode.ROUND_NEAREST_AFZ, Opcode.ROUND_NEAREST_EVEN)


@RULES.on(*_ROUNDINGS)
def _rounding(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if is_op(x, *_ROUNDINGS, Opcode.SIGN):
        return x
    if is_op(x, Opcode.CONVERT) and not x.operands[0].shape.element_type.is_float:
        return x
    return None


@RULES.on(Opcode.SIGN)
def _sign(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return i.operands[0] if is_op(i.operands[0], Opcode.SIGN) else None


@RULES.on(Opcode.REAL, Opcode.IMAG)
def _part(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if is_op(x, Opcode.COMPLEX):
        return x.operands[0 if i.opcode is Opcode.REAL else 1]
    if x.shape.element_type.is_complex:
        return None
    return x if i.opcode is Opcode.REAL else b.splat(0, i.shape)


@RULES.on(Opcode.COMPLEX)
def _complex(i: HloInstruction, b: Builder) -> HloInstruction | None:
    real, imag = i.operands
    if is_op(real, Opcode.REAL) and is_op(imag, Opcode.IMAG) and real.operands[0] is imag.operands[0]:
        return real.operands[0] if real.operands[0].shape.element_type.is_complex else None
    return None


@RULES.on(Opcode.POPULATION_COUNT, Opcode.COUNT_LEADING_ZEROS)
def _bit_count(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not is_splat(i.operands[0], all_ones(i.shape.element_type)):
        return None
    bits = i.shape.element_type.bits
    return b.splat(bits if i.opcode is Opcode.POPULATION_COUNT else 0, i.shape)
