"""Lowerings of Hurwitz' zeta function and of the derivatives of digamma, which are multiples of it."""

from __future__ import annotations

import math
from typing import Any

from compiler.frontends.torch_builder import Lowerings, TorchBuilder, broadcast_dims, in_single_precision
from compiler.frontends.torch_special import digamma, trigamma
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction

_TERMS = 9
"""The number of terms of the sum before the Euler-Maclaurin formula; `q` is positive there."""
_MOST_STEPS = 1 << 24
_TAIL = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000,
    77683 / 14101100039391805440000, -236364091 / 1693824136731743669452800000,
)  # fmt: skip
"""B(2j) / (2j)! for the tail of the sum."""


def _power(b: TorchBuilder, x: H, exponent: Any) -> H:
    """Return x^-exponent; the powers of integer exponents are products."""
    if isinstance(exponent, HloInstruction):
        return b.add(Opcode.POWER, x, b.add(Opcode.NEGATE, exponent))
    product = inverse = b.binary(Opcode.DIVIDE, 1, x, x.shape.element_type)
    for digit in f"{exponent:b}"[1:]:
        product = b.add(Opcode.MULTIPLY, product, product)
        if digit == "1":
            product = b.add(Opcode.MULTIPLY, product, inverse)
    return product


def zeta(b: TorchBuilder, s: H | int, q: H) -> H:
    """Return the sum of (q + k)^-s over k >= 0 in the type of `q`; `s` is a tensor of its type, or an integer above 1.

    It is infinite at s = 1 and where q is 0 or a negative integer, NaN for s < 1 and where s is no integer and q is
    negative.
    """
    t, dims = q.shape.element_type, broadcast_dims(s, q)
    q = b.reshape(b.broadcast(q, dims), [math.prod(dims)])
    exponents = [b.reshape(b.broadcast(s, dims), q.shape.dimensions)] if isinstance(s, HloInstruction) else []
    exponent: Any = exponents[0] if isinstance(s, HloInstruction) else s
    pole = b.add(Opcode.AND, b.compare(q, 0, "LE"), b.compare(q, b.add(Opcode.FLOOR, q), "EQ"))
    is_special = b.add(Opcode.OR, pole, b.compare(q, math.inf, "EQ"))
    below = b.add(Opcode.AND, b.add(Opcode.NOT, is_special), b.compare(q, 0, "LT"))

    def step(b: TorchBuilder, _n: H, q: H, total: H, *exponents: H) -> tuple[H, list[H]]:
        term = _power(b, b.add(Opcode.ABS, q), exponents[0] if exponents else exponent)
        # The sign is that of a whole exponent; the result for another one is NaN.
        if exponents:
            half = b.binary(Opcode.MULTIPLY, exponents[0], 0.5, t)
            is_odd = b.compare(half, b.add(Opcode.FLOOR, half), "NE")
            term = b.select(is_odd, b.add(Opcode.NEGATE, term), term, t)
        elif exponent % 2:
            term = b.add(Opcode.NEGATE, term)
        q = b.binary(Opcode.ADD, q, 1, t)
        return b.compare(q, 0, "LT"), [q, b.binary(Opcode.ADD, total, term, t), *exponents]

    start = [b.select(is_special, 1, q, t), b.full(0, q.shape), *exponents]
    at, total = b.repeat_until(below, start, step, _MOST_STEPS, "zeta_negative")[:2]
    for _ in range(_TERMS):
        total = b.binary(Opcode.ADD, total, _power(b, at, exponent), t)
        at = b.binary(Opcode.ADD, at, 1, t)
    last = _power(b, at, exponent)
    rest = b.binary(Opcode.DIVIDE, at, b.binary(Opcode.SUBTRACT, exponent, 1, t), t)
    rest = b.binary(Opcode.ADD, rest, 0.5, t)
    inverse = b.binary(Opcode.DIVIDE, 1, at, t)
    square = b.binary(Opcode.MULTIPLY, inverse, inverse, t)
    # The derivatives of the summand as a nested product: s / q (b1 + (s + 1) (s + 2) / q^2 (b2 + ...)).
    nested: Any = _TAIL[-1]
    for j in range(len(_TAIL) - 1, 0, -1):
        pair = [b.binary(Opcode.ADD, exponent, k, t) if exponents else exponent + k for k in (2 * j - 1, 2 * j)]
        product = b.binary(Opcode.MULTIPLY, b.binary(Opcode.MULTIPLY, square, pair[0], t), pair[1], t)
        nested = b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, product, nested, t), _TAIL[j - 1], t)
    nested = b.binary(Opcode.MULTIPLY, b.binary(Opcode.MULTIPLY, inverse, exponent, t), nested, t)
    result = b.binary(Opcode.ADD, total, b.binary(Opcode.MULTIPLY, last, b.binary(Opcode.ADD, rest, nested, t), t), t)
    result = b.select(b.compare(q, math.inf, "EQ"), 0, result, t)
    result = b.select(pole, math.inf, result, t)
    if exponents:
        is_fraction = b.compare(exponent, b.add(Opcode.FLOOR, exponent), "NE")
        undefined = b.add(Opcode.AND, is_fraction, b.add(Opcode.AND, b.compare(q, 0, "LE"), b.add(Opcode.NOT, pole)))
        undefined = b.add(Opcode.OR, undefined, b.compare(exponent, 1, "LT"))
        result = b.select(undefined, math.nan, result, t)
        result = b.select(b.compare(exponent, 1, "EQ"), math.inf, result, t)
    return b.reshape(result, dims)


@LOWERINGS.op("zeta", "special_zeta")
@in_single_precision
def _zeta(b: TorchBuilder, s: Any, q: Any) -> H:
    t, dims = b.type, broadcast_dims(s, q)
    return zeta(b, b.operand(s, t, dims), b.operand(q, t, dims))


@LOWERINGS.op("polygamma")
@in_single_precision
def _polygamma(b: TorchBuilder, order: int, x: H) -> H:
    """Return the derivative of this order of digamma."""
    x = b.convert(x, b.type)
    if order < 2:
        return trigamma(b, x) if order else digamma(b, x)
    factor = math.factorial(order) if order <= 170 else math.inf
    signed = float(factor if order % 2 else -factor)
    return b.binary(Opcode.MULTIPLY, zeta(b, order + 1, x), signed, x.shape.element_type)
