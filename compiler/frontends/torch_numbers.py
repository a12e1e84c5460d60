"""Lowerings of functions of integers and of the parts of floats: gcd, nextafter, frexp."""

from __future__ import annotations

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.ir import HloComputation, HloInstruction, Opcode, Shape

LOWERINGS = Lowerings()
H = HloInstruction

_UNSIGNED = {T.S8: T.U8, T.S16: T.U16, T.S32: T.U32, T.S64: T.U64, T.U8: T.U8}
_PARTS = {T.F32: (T.S32, 23, 8), T.F64: (T.S64, 52, 11), T.F16: (T.S16, 10, 5), T.BF16: (T.S16, 7, 8)}
"""The integer of the same width, and the bits of the fraction and of the exponent."""


@LOWERINGS.op("gcd")
def _gcd(b: TorchBuilder, x: H, y: H) -> H:
    """Return the greatest common divisor by Stein's algorithm, which needs no division.

    Each round removes the factors of two of one number and subtracts the smaller from the larger one; a position is
    done when a number is zero.
    """
    t, dims = b.out.element_type, b.out.dimensions
    unsigned = _UNSIGNED[t]
    left, right = (b.operand(v, t, dims) for v in (x, y))
    if t is not unsigned:
        left, right = (b.convert(b.add(Opcode.ABS, v), unsigned) for v in (left, right))
    twos = _trailing_zeros(b, b.binary(Opcode.OR, left, right, unsigned))
    odd = b.binary(Opcode.SHIFT_RIGHT_LOGICAL, left, _trailing_zeros(b, left), unsigned)
    # gcd(0, y) = y: the loop needs a number that is not zero on the left.
    is_zero = b.compare(left, 0, "EQ")
    odd = b.select(
        is_zero, b.binary(Opcode.SHIFT_RIGHT_LOGICAL, right, _trailing_zeros(b, right), unsigned), odd, unsigned
    )
    start = b.add(Opcode.TUPLE, odd, b.select(is_zero, 0, right, unsigned))

    condition, body = HloComputation("gcd_condition"), HloComputation("gcd_body")
    state = condition.add_parameter(0, start.shape)
    inside = b.inside(condition)
    rest = condition.add(Opcode.GET_TUPLE_ELEMENT, [state], attributes={"index": 1})
    unfinished = inside.compare(rest, 0, "NE")
    condition.root = inside.reduce(Opcode.OR, unfinished, range(len(dims)), False)

    state = body.add_parameter(0, start.shape)
    inside = b.inside(body)
    large, small = (body.add(Opcode.GET_TUPLE_ELEMENT, [state], attributes={"index": n}) for n in (1, 0))
    done = inside.compare(large, 0, "EQ")
    large = inside.binary(Opcode.SHIFT_RIGHT_LOGICAL, large, _trailing_zeros(inside, large), unsigned)
    least = inside.binary(Opcode.MINIMUM, small, large, unsigned)
    most = inside.binary(Opcode.MAXIMUM, small, large, unsigned)
    difference = inside.binary(Opcode.SUBTRACT, most, least, unsigned)
    body.root = inside.add(
        Opcode.TUPLE, inside.select(done, small, least, unsigned), inside.select(done, 0, difference, unsigned)
    )
    loop = b.add(Opcode.WHILE, start, shape=start.shape, condition=b.module.add(condition), body=b.module.add(body))
    found = b.add(Opcode.GET_TUPLE_ELEMENT, loop, index=0)
    return b.convert(b.binary(Opcode.SHIFT_LEFT, found, twos, unsigned), t)


def _trailing_zeros(b: TorchBuilder, x: H) -> H:
    """Return the number of zeros after the last one of unsigned integers; the width of the type for 0."""
    t = x.shape.element_type
    lowest = b.binary(Opcode.AND, x, b.add(Opcode.NEGATE, x), t)
    return b.add(Opcode.POPULATION_COUNT, b.binary(Opcode.SUBTRACT, lowest, 1, t))


@LOWERINGS.op("nextafter")
def _next_after(b: TorchBuilder, x: H, y: H) -> H:
    """Return the float next to `x` in the direction of `y`."""
    t, dims = b.out.element_type, b.out.dimensions
    bits_type, _, _ = _PARTS[t]
    x, y = b.operand(x, t, dims), b.operand(y, t, dims)
    bits = b.add(Opcode.BITCAST_CONVERT, x, shape=Shape(bits_type, dims))
    away = b.binary(Opcode.XOR, b.compare(x, y, "LT"), b.compare(x, 0, "LT"), T.PRED)
    moved = b.binary(Opcode.ADD, bits, b.select(away, 1, -1, bits_type), bits_type)
    lowest = 1 << (bits_type.bits - 1)
    from_zero = b.select(b.compare(y, 0, "LT"), 1 - lowest, 1, bits_type)
    moved = b.select(b.compare(x, 0, "EQ"), from_zero, moved, bits_type)
    result = b.add(Opcode.BITCAST_CONVERT, moved, shape=Shape(t, dims))
    result = b.select(b.compare(x, y, "EQ"), y, result, t)
    is_nan = b.binary(Opcode.OR, b.compare(x, x, "NE"), b.compare(y, y, "NE"), T.PRED)
    return b.select(is_nan, b.binary(Opcode.ADD, x, y, t), result, t)


@LOWERINGS.op("frexp")
def _parts(b: TorchBuilder, x: H) -> list[H]:
    """Return m and e with x = m 2^e and 1/2 <= |m| < 1; e is 0 for zeros, infinities and NaN."""
    t, dims = x.shape.element_type, x.shape.dimensions
    bits_type, fraction, width = _PARTS[t]
    largest = (1 << width) - 1
    # A subnormal number becomes a normal one first.
    is_small = b.compare(b.add(Opcode.ABS, x), 2.0 ** (2 - (largest >> 1)), "LT")
    scaled = b.select(is_small, b.binary(Opcode.MULTIPLY, x, 2.0**fraction, t), x, t)
    bits = b.add(Opcode.BITCAST_CONVERT, scaled, shape=Shape(bits_type, dims))
    exponent = b.binary(Opcode.SHIFT_RIGHT_LOGICAL, bits, fraction, bits_type)
    exponent = b.binary(Opcode.AND, exponent, largest, bits_type)
    shift = b.select(is_small, (largest >> 1) - 1 + fraction, (largest >> 1) - 1, bits_type)
    found = b.convert(b.binary(Opcode.SUBTRACT, exponent, shift, bits_type), T.S32)
    mantissa = b.binary(Opcode.AND, bits, ~(largest << fraction), bits_type)
    mantissa = b.binary(Opcode.OR, mantissa, ((largest >> 1) - 1) << fraction, bits_type)
    special = b.binary(Opcode.OR, b.compare(x, 0, "EQ"), b.compare(exponent, largest, "EQ"), T.PRED)
    part = b.add(Opcode.BITCAST_CONVERT, mantissa, shape=Shape(t, dims))
    return [b.select(special, x, part, t), b.select(special, 0, found, T.S32)]
