"""Elementary functions of complex numbers, computed from their real and imaginary parts.

The forms are those of Kahan, Branch cuts for complex elementary functions (1987), where a direct one would overflow or
cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.passes.infrastructure.builder import Builder

H = HloInstruction
Parts = tuple[H, H]


class Reals:
    """Arithmetic on real arrays of one shape, with numbers as operands."""

    def __init__(self, b: Builder, shape: Shape) -> None:
        self.b, self.shape = b, shape

    def of(self, x: H | float) -> H:
        """Return `x` as an array."""
        return x if isinstance(x, HloInstruction) else self.b.splat(x, self.shape)

    def __call__(self, opcode: Opcode, *operands: H | float) -> H:
        """Add an instruction."""
        return self.b.add(opcode, *(self.of(o) for o in operands))

    def plus(self, x: H | float, y: H | float) -> H:
        return self(Opcode.ADD, x, y)

    def minus(self, x: H | float, y: H | float) -> H:
        return self(Opcode.SUBTRACT, x, y)

    def times(self, x: H | float, y: H | float) -> H:
        return self(Opcode.MULTIPLY, x, y)

    def over(self, x: H | float, y: H | float) -> H:
        return self(Opcode.DIVIDE, x, y)

    def where(self, p: H, x: H | float, y: H | float) -> H:
        return self(Opcode.SELECT, p, x, y)

    def test(self, x: H, direction: str, y: H | float) -> H:
        return self.b.compare(x, self.of(y), direction)

    def is_infinite(self, x: H) -> H:
        return self.test(self(Opcode.ABS, x), "EQ", math.inf)

    def either(self, p: H, q: H) -> H:
        return self.b.add(Opcode.OR, p, q)

    def both(self, p: H, q: H) -> H:
        return self.b.add(Opcode.AND, p, q)

    def is_negative(self, x: H) -> H:
        """Check the sign, also of a zero."""
        return self.either(self.test(x, "LT", 0.0), self.test(self.over(1.0, x), "LT", 0.0))

    def size(self, x: H, y: H) -> H:
        """Return the absolute value of x + iy: infinite if a part is, even where the other one is NaN."""
        large, small = self._by_size(x, y)
        ratio = self.over(small, large)
        size = self.times(large, self(Opcode.SQRT, self.plus(1.0, self.times(ratio, ratio))))
        size = self.where(self.test(large, "EQ", 0.0), 0.0, size)
        return self.where(self.either(self.is_infinite(x), self.is_infinite(y)), math.inf, size)

    def _by_size(self, x: H, y: H) -> Parts:
        sizes = self(Opcode.ABS, x), self(Opcode.ABS, y)
        return self(Opcode.MAXIMUM, *sizes), self(Opcode.MINIMUM, *sizes)

    def log_size(self, x: H, y: H) -> H:
        """Return log|x + iy|."""
        large, small = self._by_size(x, y)
        ratio = self.where(self.test(small, "EQ", large), 1.0, self.over(small, large))
        log = self(Opcode.LOG, large)
        tail = self.times(0.5, self(Opcode.LOG_PLUS_ONE, self.times(ratio, ratio)))
        log = self.where(self.test(large, "EQ", 0.0), -math.inf, self.plus(log, tail))
        return self.where(self.either(self.is_infinite(x), self.is_infinite(y)), math.inf, log)

    def root(self, x: H, y: H) -> tuple[H, H, H]:
        """Return sqrt((|z| + |x|) / 2), the same over sqrt(m), and m = max(|x|, |y|), for finite z = x + iy."""
        large, small = self._by_size(x, y)
        scale = self.where(self.test(large, "EQ", 0.0), 1.0, large)
        ratio = self.over(small, scale)
        size = self(Opcode.SQRT, self.plus(1.0, self.times(ratio, ratio)))
        half = self.times(0.5, self.plus(size, self.over(self(Opcode.ABS, x), scale)))
        return self.times(self(Opcode.SQRT, large), self(Opcode.SQRT, half)), self(Opcode.SQRT, half), large

    def growth(self, y: H) -> tuple[H, H, H]:
        """Return cosh(y) / g, sinh(y) / g and g = exp(|y| / 2), a factor that keeps them from overflowing."""
        size = self(Opcode.ABS, y)
        factor = self(Opcode.EXPONENTIAL, self.times(0.5, size))
        less = self(Opcode.EXPONENTIAL_MINUS_ONE, self.times(-2.0, size))
        half = self.times(0.5, factor)
        cosine, sine = self.times(half, self.plus(2.0, less)), self.times(half, self(Opcode.NEGATE, less))
        return cosine, self.where(self.test(y, "LT", 0.0), self(Opcode.NEGATE, sine), sine), factor


def _exponential(r: Reals, x: H, y: H) -> Parts:
    # In two factors, because exp(x) may overflow where the result does not.
    half = r(Opcode.EXPONENTIAL, r.times(0.5, x))
    real, imaginary = (r.times(r.times(half, r(f, y)), half) for f in (Opcode.COSINE, Opcode.SINE))
    undefined = r(Opcode.NOT, r(Opcode.IS_FINITE, y))
    real = r.where(r.both(undefined, r.test(x, "EQ", math.inf)), math.inf, real)
    imaginary = r.where(r.test(y, "EQ", 0.0), y, imaginary)
    vanishes = r.both(undefined, r.test(x, "EQ", -math.inf))
    return r.where(vanishes, 0.0, real), r.where(vanishes, 0.0, imaginary)


def _exponential_minus_one(r: Reals, x: H, y: H) -> Parts:
    _, imaginary = _exponential(r, x, y)
    sine = r(Opcode.SINE, r.times(0.5, y))
    real = r.times(r(Opcode.EXPONENTIAL_MINUS_ONE, x), r(Opcode.COSINE, y))
    return r.minus(real, r.times(2.0, r.times(sine, sine))), imaginary


def _log(r: Reals, x: H, y: H) -> Parts:
    return r.log_size(x, y), r(Opcode.ATAN2, y, x)


def _log_plus_one(r: Reals, x: H, y: H) -> Parts:
    shifted = r.plus(x, 1.0)
    square = r.plus(r.times(x, r.plus(x, 2.0)), r.times(y, y))
    near = r.times(0.5, r(Opcode.LOG_PLUS_ONE, square))
    is_near = r(Opcode.AND, *(r.test(r(Opcode.ABS, p), "LT", 0.5) for p in (x, y)))
    return r.where(is_near, near, r.log_size(shifted, y)), r(Opcode.ATAN2, y, shifted)


def _square_root(r: Reals, x: H, y: H) -> Parts:
    root, _, _ = r.root(x, y)
    other = r.where(r.test(root, "EQ", 0.0), 0.0, r.over(r(Opcode.ABS, y), r.times(2.0, root)))
    root = r.where(r.is_infinite(x), math.inf, root)
    other = r.where(r.is_infinite(x), r.where(r.test(y, "EQ", y), 0.0, math.nan), other)
    is_left, is_tall = r.test(x, "LT", 0.0), r.is_infinite(y)
    real, imaginary = r.where(is_left, other, root), r.where(is_left, root, other)
    real, imaginary = (r.where(is_tall, math.inf, part) for part in (real, imaginary))
    return real, r.where(r.is_negative(y), r(Opcode.NEGATE, imaginary), imaginary)


def _inverse_square_root(r: Reals, x: H, y: H) -> Parts:
    """Return the conjugate of the square root over |z|, with both divided by powers of m = max(|x|, |y|)."""
    _, scaled, large = r.root(x, y)
    other = r.over(r.times(0.5, r.over(r(Opcode.ABS, y), large)), scaled)
    # |z| / m = scaled^2 + other^2, because the root of a number has the root of its size.
    size = r.plus(r.times(scaled, scaled), r.times(other, other))
    factor = r.over(r(Opcode.RSQRT, large), size)
    is_left = r.test(x, "LT", 0.0)
    real = r.times(r.where(is_left, other, scaled), factor)
    imaginary = r.times(r.where(is_left, scaled, other), factor)
    is_zero, vanishes = r.test(large, "EQ", 0.0), r.either(r.is_infinite(x), r.is_infinite(y))
    real = r.where(vanishes, 0.0, r.where(is_zero, math.inf, real))
    imaginary = r.where(vanishes, 0.0, r.where(is_zero, math.nan, imaginary))
    return real, r.where(r.is_negative(y), imaginary, r(Opcode.NEGATE, imaginary))


def _sine(r: Reals, x: H, y: H) -> Parts:
    cosh, sinh, factor = r.growth(y)
    real = r.times(r.times(r(Opcode.SINE, x), cosh), factor)
    imaginary = r.times(r.times(r(Opcode.COSINE, x), sinh), factor)
    return r.where(r.test(x, "EQ", 0.0), x, real), r.where(r.test(y, "EQ", 0.0), y, imaginary)


def _cosine(r: Reals, x: H, y: H) -> Parts:
    cosh, sinh, factor = r.growth(y)
    real = r.times(r.times(r(Opcode.COSINE, x), cosh), factor)
    imaginary = r(Opcode.NEGATE, r.times(r.times(r(Opcode.SINE, x), sinh), factor))
    on_axis = r.either(r.test(x, "EQ", 0.0), r.test(y, "EQ", 0.0))
    signed = r.where(r.either(r.is_negative(x), r.is_negative(y)), 0.0, -0.0)
    signed = r.where(r.both(r.is_negative(x), r.is_negative(y)), -0.0, signed)
    return real, r.where(on_axis, signed, imaginary)


_SATURATED = 10.0
"""From here on, the real part of tanh in single precision is 1."""


def _tanh(r: Reals, x: H, y: H) -> Parts:
    """Return (s sqrt(1 + s^2) + i sin(y) cos(y)) / (cos(y)^2 + s^2) with s = sinh(x)."""
    size, sine, cosine = r(Opcode.ABS, x), r(Opcode.SINE, y), r(Opcode.COSINE, y)
    more = r(Opcode.EXPONENTIAL_MINUS_ONE, r(Opcode.MINIMUM, size, _SATURATED))
    sinh = r.times(0.5, r.plus(more, r.over(more, r.plus(more, 1.0))))
    square, product = r.times(sinh, sinh), r.times(sine, cosine)
    divisor = r.plus(r.times(cosine, cosine), square)
    real = r.over(r.times(sinh, r(Opcode.SQRT, r.plus(1.0, square))), divisor)
    far = r.times(r.times(4.0, product), r(Opcode.EXPONENTIAL, r.times(-2.0, size)))
    is_far = r.test(size, "GT", _SATURATED)
    # With a finite y, the real part is 1 here; without one, only at infinity.
    limit = r.where(r.either(r(Opcode.IS_FINITE, y), r.is_infinite(x)), 1.0, math.nan)
    real, imaginary = r.where(is_far, limit, real), r.where(is_far, far, r.over(product, divisor))
    imaginary = r.where(r.both(r.is_infinite(x), r(Opcode.NOT, r(Opcode.IS_FINITE, y))), 0.0, imaginary)
    real = r.where(r.is_negative(x), r(Opcode.NEGATE, real), real)
    return r.where(r.test(x, "EQ", 0.0), x, real), r.where(r.test(y, "EQ", 0.0), y, imaginary)


def _tangent(r: Reals, x: H, y: H) -> Parts:
    """Return -i tanh(iz)."""
    real, imaginary = _tanh(r, r(Opcode.NEGATE, y), x)
    return imaginary, r(Opcode.NEGATE, real)


def _sign(r: Reals, x: H, y: H) -> Parts:
    size = r.size(x, y)
    divisor = r.where(r.test(size, "EQ", 0.0), 1.0, size)
    return r.over(x, divisor), r.over(y, divisor)


def power(r: Reals, x: Parts, y: Parts) -> Parts:
    """Return the power; of 0 it is 1 for the exponent 0, 0 for one with a positive real part, else NaN."""
    size, angle, (c, d) = r.size(*x), r(Opcode.ATAN2, x[1], x[0]), y
    is_zero = r.test(size, "EQ", 0.0)
    base = r.where(is_zero, 1.0, size)
    modulus, argument = r(Opcode.POWER, base, c), r.times(c, angle)
    turned = r.plus(argument, r.times(d, r(Opcode.LOG, base)))
    modulus = r.times(modulus, r(Opcode.EXPONENTIAL, r(Opcode.NEGATE, r.times(d, angle))))
    real, imaginary = r.times(modulus, r(Opcode.COSINE, turned)), r.times(modulus, r(Opcode.SINE, turned))
    no_exponent = r(Opcode.AND, *(r.test(p, "EQ", 0.0) for p in y))
    of_zero = r.where(r.test(c, "GT", 0.0), 0.0, math.nan)
    real = r.where(no_exponent, 1.0, r.where(is_zero, of_zero, real))
    return real, r.where(no_exponent, 0.0, r.where(is_zero, of_zero, imaginary))


FUNCTIONS: dict[Opcode, Callable[[Reals, H, H], Parts]] = {
    Opcode.EXPONENTIAL: _exponential,
    Opcode.EXPONENTIAL_MINUS_ONE: _exponential_minus_one,
    Opcode.LOG: _log,
    Opcode.LOG_PLUS_ONE: _log_plus_one,
    Opcode.SQRT: _square_root,
    Opcode.RSQRT: _inverse_square_root,
    Opcode.SINE: _sine,
    Opcode.COSINE: _cosine,
    Opcode.TANH: _tanh,
    Opcode.TAN: _tangent,
    Opcode.SIGN: _sign,
}
