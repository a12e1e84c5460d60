"""Division, remainder, power and roots: cheaper equivalent forms.

Accuracy: x / c -> x * (1/c) rounds twice (one more ulp of the result), as in XLA for all float types; it is skipped if
1/c is not a normal number. The same holds for a / sqrt(b) -> a * rsqrt(b) and for products instead of small powers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    STANDARD_FLOATS,
    Scalar,
    has_room,
    is_integral,
    is_op,
    is_real_float,
    is_splat,
    non_negative,
    single_use,
    splat_value,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DivisionPower(RewritePass):
    """Rewrite divisions by constants and roots, chained divisions, unsigned division by 2^k, and small powers."""

    name: ClassVar[str] = "division-power"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DIVIDE)
def _by_constant(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if is_splat(y, 1):
        return x
    if not i.shape.element_type.is_unsigned and not i.shape.element_type.is_complex and is_splat(y, -1):
        return b.add(Opcode.NEGATE, x)
    value = splat_value(y)
    if value is None or splat_value(x) is not None:
        return None
    if i.shape.element_type in STANDARD_FLOATS:
        inverse = _reciprocal(value)
        return None if inverse is None else b.add(Opcode.MULTIPLY, x, b.splat(inverse, i.shape))
    shift = _log2(value) if i.shape.element_type.is_unsigned else None
    return None if shift is None else b.add(Opcode.SHIFT_RIGHT_LOGICAL, x, b.splat(shift, i.shape))


def _reciprocal(value: Scalar) -> Scalar | None:
    """Return 1/value in its own type, or None unless both are normal numbers."""
    tiny = float(ml_dtypes.finfo(value.dtype).tiny)  # type: ignore[no-untyped-call]
    wide = abs(float(value))
    if not np.isfinite(wide) or wide < tiny or 1.0 / wide < tiny:
        return None
    inverse = np.asarray(1.0 / float(value)).astype(value.dtype)[()]
    return inverse if np.isfinite(float(inverse)) else None


def _log2(value: Scalar) -> int | None:
    number = int(value)
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None


@RULES.on(Opcode.REMAINDER)
def _remainder(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    value = splat_value(y)
    if value is None or not i.shape.element_type.is_unsigned:
        return None
    if _log2(value) is None:
        return None
    return b.add(Opcode.AND, x, b.splat(int(value) - 1, i.shape))


@RULES.on(Opcode.REMAINDER)
def _remainder_twice(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (x rem c) rem c -> x rem c."""
    x, y = i.operands
    return x if is_op(x, Opcode.REMAINDER) and x.operands[1] is y and is_integral(i.shape) else None


@RULES.on(Opcode.DIVIDE)
def _by_root(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a / sqrt(b) -> a * rsqrt(b) and a / rsqrt(b) -> a * sqrt(b)."""
    x, y = i.operands
    if not is_op(y, Opcode.SQRT, Opcode.RSQRT) or not is_real_float(i.shape) or not single_use(y):
        return None
    other = Opcode.RSQRT if y.opcode is Opcode.SQRT else Opcode.SQRT
    root = b.add(other, y.operands[0])
    return root if is_splat(x, 1) else b.add(Opcode.MULTIPLY, x, root)


@RULES.on(Opcode.RSQRT)
def _rsqrt_of_reciprocal(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite rsqrt(1 / x) -> sqrt(x)."""
    x = i.operands[0]
    return b.add(Opcode.SQRT, x.operands[1]) if is_op(x, Opcode.DIVIDE) and is_splat(x.operands[0], 1) else None


@RULES.on(Opcode.DIVIDE)
def _chain(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (a/b)/c -> a/(b*c) and a/(b/c) -> (a*c)/b for floats, which have one division less."""
    x, y = i.operands
    if not is_real_float(i.shape) or not has_room(i.shape):
        return None
    if is_op(y, Opcode.DIVIDE) and single_use(y):
        return b.add(Opcode.DIVIDE, b.add(Opcode.MULTIPLY, x, y.operands[1]), y.operands[0])
    if is_op(x, Opcode.DIVIDE) and single_use(x) and x is not y:
        return b.add(Opcode.DIVIDE, x.operands[0], b.add(Opcode.MULTIPLY, x.operands[1], y))
    return None


@RULES.on(Opcode.MULTIPLY)
def _times_reciprocal(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a * (1/b) -> a / b, if the reciprocal has no other user."""
    if not is_real_float(i.shape):
        return None
    for x, y in (i.operands, (i.operands[1], i.operands[0])):
        if x is not y and is_op(y, Opcode.DIVIDE) and is_splat(y.operands[0], 1) and single_use(y):
            return b.add(Opcode.DIVIDE, x, y.operands[1])
    return None


@RULES.on(Opcode.DIVIDE)
def _negated_sides(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if is_op(x, Opcode.NEGATE) and is_op(y, Opcode.NEGATE) and is_real_float(i.shape):
        return b.add(Opcode.DIVIDE, x.operands[0], y.operands[0])
    return None


@RULES.on(Opcode.POWER)
def _power(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite powers with a constant exponent of few halves as products of x and sqrt(x), and quotients of them."""
    x, y = i.operands
    value = splat_value(y)
    if value is None or i.shape.element_type.is_complex:
        return None
    if value == 0:
        return b.splat(1, i.shape)
    is_real = is_real_float(i.shape)
    if value in (1, 2, 3, 4):
        return _product(x, int(value), b)
    if is_real and value in (-1, -2, -3, -4):
        return b.add(Opcode.DIVIDE, b.splat(1, i.shape), _product(x, -int(value), b))
    if is_real and abs(value) in (0.5, 1.5, 2.5, 3.5):
        return _power_of_halves(x, float(value), b)
    return None


def _product(x: HloInstruction, power: int, b: Builder) -> HloInstruction:
    """Return `x` to a positive power as products of squares."""
    if power == 1:
        return x
    half = _product(x, power // 2, b)
    square = b.add(Opcode.MULTIPLY, half, half)
    return b.add(Opcode.MULTIPLY, square, x) if power % 2 else square


def _power_of_halves(x: HloInstruction, power: float, b: Builder) -> HloInstruction:
    """Return `x` to an odd multiple of 1/2.

    Roots and powers differ for -0, where powers are positive, and for -inf, where roots are NaN.
    """
    whole, is_positive = int(abs(power)), non_negative(x) and x.opcode is not Opcode.SQRT
    if power == 0.5:
        zero = b.splat(0, x.shape)
        root = b.add(Opcode.SQRT, x if is_positive else b.add(Opcode.SELECT, b.compare(x, zero, "EQ"), zero, x))
    elif whole == 0:
        root = b.add(Opcode.RSQRT, x)
    else:
        root = b.add(Opcode.MULTIPLY, _product(x, whole, b), b.add(Opcode.SQRT, x))
        if power < 0:
            root = b.add(Opcode.DIVIDE, b.splat(1, x.shape), root)
    if is_positive:
        return root
    size = root if power == 0.5 else b.add(Opcode.ABS, root)
    is_lowest = b.compare(x, b.splat(-np.inf, x.shape), "EQ")
    return b.add(Opcode.SELECT, is_lowest, b.splat(np.inf if power > 0 else 0, x.shape), size)


@RULES.on(Opcode.POWER)
def _power_of_exponential(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite pow(exp(x), y) -> exp(x*y)."""
    x, y = i.operands
    if not is_op(x, Opcode.EXPONENTIAL) or not single_use(x) or not is_real_float(i.shape):
        return None
    return b.add(Opcode.EXPONENTIAL, b.add(Opcode.MULTIPLY, x.operands[0], y))
