"""Integer arithmetic with XLA's semantics: it wraps, and division by zero and oversized shifts are defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.interpreter.precision import compute_dtype, wrap_small
from compiler.interpreter.registry import Array
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType


def bit_width(x: Array) -> int:
    """Return the number of bits of an element."""
    return 8 * x.dtype.itemsize


def unsigned(x: Array) -> Array:
    """Return the same bits as an unsigned type."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def is_signed(x: Array) -> bool:
    """Check whether the elements are signed integers."""
    return x.dtype.kind == "i"


def divide(x: Array, y: Array) -> Array:
    """Divide towards zero; by zero gives all bits set, and the smallest number by -1 gives itself."""
    all_ones = np.array(-1 if is_signed(x) else np.iinfo(x.dtype).max, x.dtype)
    by_zero = y == 0
    safe = np.where(by_zero, x.dtype.type(1), y)
    if not is_signed(x):
        return np.where(by_zero, all_ones, x // safe)
    by_minus_one = safe == -1
    safe = np.where(by_minus_one, x.dtype.type(1), safe)
    floor = x // safe
    inexact = (floor * safe != x) & ((x < 0) != (safe < 0))
    quotient = np.where(by_minus_one, np.negative(x), floor + inexact.astype(x.dtype))
    return np.where(by_zero, all_ones, quotient)


def remainder(x: Array, y: Array) -> Array:
    """Return the remainder with the sign of `x`; by zero gives x."""
    by_zero = y == 0
    safe = np.where(by_zero | ((y == -1) if is_signed(x) else False), x.dtype.type(1), y)
    return np.where(by_zero, x, np.fmod(x, safe))


def power(x: Array, y: Array) -> Array:
    """Compute a wrapping power; a negative exponent gives 0, except for the bases 1 and -1.

    XLA:CPU reads only the last six bits of the exponent, so overflowing results may differ from it.
    """
    x, y = np.broadcast_arrays(x, y)
    # Square and multiply.
    result = np.ones_like(x)
    base = x.copy()
    exponent = np.where(y < 0, 0, y) if is_signed(y) else y.copy()
    while np.any(exponent):
        result = np.where(exponent & 1, result * base, result).astype(x.dtype)
        base = (base * base).astype(x.dtype)
        exponent = exponent >> 1
    if not is_signed(y):
        return result
    odd = np.where(y & 1, x, np.ones_like(x))
    reciprocal = np.where(x == 1, 1, np.where(x == -1, odd, 0))
    return np.where(y < 0, reciprocal, result).astype(x.dtype)


def mulhi(x: Array, y: Array) -> Array:
    """Return the upper half of the double-width product."""
    n = bit_width(x)
    if n <= 32:
        wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
        product: Array = (x.astype(wide) * y.astype(wide)) >> n
        return product.astype(x.dtype)
    a, b = unsigned(x), unsigned(y)
    # 64 bits: schoolbook multiplication of 32-bit halves (Hacker's Delight, mulhu).
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    carry = (middle & low) + a0 * b1
    high = a1 * b1 + (middle >> half) + (carry >> half)
    if is_signed(x):
        high = high - np.where(x < 0, b, 0).astype(np.uint64) - np.where(y < 0, a, 0).astype(np.uint64)
    return np.asarray(high).view(x.dtype)


def shift_left(x: Array, y: Array) -> Array:
    """Shift left by an unsigned amount; by the width or more gives 0."""
    past = unsigned(y) >= bit_width(x)
    return np.where(past, x.dtype.type(0), x << np.where(past, y.dtype.type(0), y))


def shift_right_logical(x: Array, y: Array) -> Array:
    """Shift right and fill with zeros; by the width or more gives 0."""
    a, by = unsigned(x), unsigned(y)
    past = by >= bit_width(x)
    shifted = np.where(past, a.dtype.type(0), a >> np.where(past, by.dtype.type(0), by))
    return shifted.view(x.dtype)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    """Shift right and fill with the sign bit, also for unsigned types and amounts beyond the width."""
    a = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    by = np.minimum(unsigned(y), bit_width(x) - 1).astype(a.dtype)
    return np.asarray(a >> by).view(x.dtype)


def count_leading_zeros(x: Array) -> Array:
    """Count the zeros above the highest set bit; the width for 0."""
    # Set all bits below the highest set bit; the remaining zeros are the leading ones.
    bits, n = unsigned(x).copy(), bit_width(x)
    step = 1
    while step < n:
        bits |= bits >> bits.dtype.type(step)
        step *= 2
    return (n - np.bitwise_count(bits)).astype(x.dtype)


def population_count(x: Array) -> Array:
    """Count the set bits."""
    return np.bitwise_count(unsigned(x)).astype(x.dtype)


FUNCTIONS: dict[Opcode, Callable[..., Any]] = {
    Opcode.ABS: np.abs,
    Opcode.NEGATE: np.negative,
    Opcode.SIGN: np.sign,
    Opcode.NOT: np.invert,
    Opcode.COUNT_LEADING_ZEROS: count_leading_zeros,
    Opcode.POPULATION_COUNT: population_count,
    Opcode.ADD: np.add,
    Opcode.SUBTRACT: np.subtract,
    Opcode.MULTIPLY: np.multiply,
    Opcode.DIVIDE: divide,
    Opcode.REMAINDER: remainder,
    Opcode.POWER: power,
    Opcode.MULHI: mulhi,
    Opcode.MAXIMUM: np.maximum,
    Opcode.MINIMUM: np.minimum,
    Opcode.AND: np.bitwise_and,
    Opcode.OR: np.bitwise_or,
    Opcode.XOR: np.bitwise_xor,
    Opcode.SHIFT_LEFT: shift_left,
    Opcode.SHIFT_RIGHT_LOGICAL: shift_right_logical,
    Opcode.SHIFT_RIGHT_ARITHMETIC: shift_right_arithmetic,
}


BIT_FUNCTIONS = frozenset(
    {
        Opcode.COUNT_LEADING_ZEROS,
        Opcode.POPULATION_COUNT,
        Opcode.MULHI,
        Opcode.SHIFT_RIGHT_LOGICAL,
        Opcode.SHIFT_RIGHT_ARITHMETIC,
    }
)
"""Functions that depend on the width, so that narrower types cannot be computed in 8 bits."""


def on_small_type(opcode: Opcode, t: PrimitiveType, x: Array, y: Array | None = None) -> Array:
    """Compute one of `BIT_FUNCTIONS` on a type of less than 8 bits."""
    mask, wide = np.uint8((1 << t.bits) - 1), compute_dtype(t)
    bits = x.astype(wide).view(np.uint8) & mask
    if opcode is Opcode.COUNT_LEADING_ZEROS:
        return wrap_small(count_leading_zeros(bits) - (8 - t.bits), t)
    if opcode is Opcode.POPULATION_COUNT:
        return wrap_small(population_count(bits), t)
    if y is None:
        raise TypeError(f"{opcode.text} takes two operands")
    if opcode is Opcode.MULHI:
        return wrap_small((x.astype(np.int16) * y.astype(np.int16)) >> t.bits, t)
    by = y.astype(wide).view(np.uint8) & mask
    if opcode is Opcode.SHIFT_RIGHT_LOGICAL:
        return wrap_small(np.where(by >= t.bits, np.uint8(0), bits >> np.minimum(by, 7)), t)
    signed = np.asarray(bits << (8 - t.bits)).astype(np.uint8).view(np.int8) >> (8 - t.bits)
    return wrap_small(signed >> np.minimum(by, 7).astype(np.int8), t)
