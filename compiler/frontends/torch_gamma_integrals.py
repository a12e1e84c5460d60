"""Lowerings of the regularized incomplete gamma functions P (`igamma`) and Q = 1 - P (`igammac`).

With F = x^a exp(-x) / gamma(a) and m = x / a - 1 (Gil, Segura and Temme, Efficient and accurate algorithms for the
computation and inversion of the incomplete gamma function ratios, 2012):

- where x <= a or x <= 1, P is F / a times the sum of x^n / ((a + 1) ... (a + n)),
- elsewhere Q is F times a continued fraction, which Lentz's method evaluates,
- where x and a are small, Q is the sum of what x^a / gamma(a + 1) lacks of 1 and an alternating series,
- near a large a, both are an erfc and a correction by powers of 1 / a, whose coefficients are series in eta, with
  eta^2 / 2 = m - log(1 + m).

Each element iterates until its own series has converged.
"""

from __future__ import annotations

import functools
import importlib
import math
from fractions import Fraction
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, broadcast_dims, in_single_precision
from compiler.frontends.torch_special import complementary_erf, horner, log_gamma
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction

_LARGE, _NEAR = 20.0, 0.3
"""The series in eta are used for a larger `a`, where |m| is at most this."""
_STIRLING_FROM = 8.0
"""From here on, Stirling's series gives the factor F."""
_SMALL = 1.1
"""Up to here, Q may have the alternating series."""
_MOST_STEPS = 2000
_BERNOULLI = [
    Fraction(n, d) for n, d in ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510))
]
_STIRLING = [b / (2 * j * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, start=1)]
"""log(gamma(a)) is that of Stirling's formula plus the sum of these times a^-1, a^-3, ..."""


@functools.lru_cache(maxsize=4)
def _log_gamma_ratio(t: T) -> tuple[float, ...]:
    """Return a polynomial in s for log(gamma(1 + a)) / a at a = 0.625 (s + 1), from the highest power."""
    special: Any = importlib.import_module("scipy.special")
    chebyshev: Any = importlib.import_module("numpy.polynomial.chebyshev")

    def ratio(s: Any) -> Any:
        a = 0.625 * (s + 1)
        # Its Taylor series near 0, where the quotient has lost digits.
        series = -np.euler_gamma + sum((-1) ** k * special.zeta(k) / k * a ** (k - 1) for k in range(2, 16))
        return np.where(a < 0.05, series, special.gammaln(1 + a) / np.maximum(a, 0.01))

    found = chebyshev.chebinterpolate(ratio, 60)[: 12 if t is T.F32 else 24]
    return tuple(chebyshev.cheb2poly(found)[::-1].tolist())


@functools.lru_cache(maxsize=4)
def _temme_series(t: T) -> tuple[tuple[float, ...], ...]:
    """Return for each power of 1 / a the coefficients of its series in eta, from the highest power.

    They follow from c_0 = 1 / m - 1 / eta and c_k = c_(k-1)' / eta + (-1)^k g_k / m (DLMF, 8.12), where g_k are the
    coefficients of Stirling's series for gamma itself.
    """
    orders, degree = (4, 8) if t is T.F32 else (11, 18)
    n_terms = degree + 2 * orders + 2
    m = [Fraction(0), Fraction(1)]  # The series of m in eta, from m m' = eta (1 + m).
    for n in range(2, n_terms + 2):
        cross = sum((m[k] * (n + 1 - k) * m[n + 1 - k] for k in range(2, n)), Fraction(0))
        m.append((m[n - 1] - cross) / (n + 1))
    inverse = [Fraction(1)]  # That of eta / m.
    for n in range(1, n_terms + 1):
        inverse.append(-sum((m[j + 1] * inverse[n - j] for j in range(1, n + 1)), Fraction(0)))
    logs = [Fraction(0)] * (orders + 1)
    for j, c in enumerate(_STIRLING):
        if 2 * j + 1 <= orders:
            logs[2 * j + 1] = c
    stirling = [Fraction(1)]
    for n in range(1, orders + 1):
        stirling.append(sum((k * logs[k] * stirling[n - k] for k in range(1, n + 1)), Fraction(0)) / n)
    rows = [inverse[1:]]
    for k in range(1, orders):
        last, sign = rows[-1], (-1) ** k
        rows.append([(n + 2) * last[n + 2] + sign * stirling[k] * rows[0][n] for n in range(len(last) - 2)])
    return tuple(tuple(float(c) for c in row[degree - k :: -1]) for k, row in enumerate(rows))


class _Gamma:
    """Both functions at positive finite arguments: one dimension, one float type."""

    def __init__(self, b: TorchBuilder, a: H, x: H) -> None:
        self.b, self.a, self.x, self.t = b, a, x, a.shape.element_type
        self.epsilon = float(np.finfo(self.t.dtype).eps) / 2
        ratio = self.div(x, a)
        self.offset = self.div(self.sub(x, a), a)
        self.is_near = b.compare(b.add(Opcode.ABS, self.offset), _NEAR, "LE")
        # (m - log(1 + m)) / m^2 is a power series near 0, where the difference loses all digits.
        near = horner(b, self.offset, [(-1) ** n / n for n in range(15 if self.t is T.F32 else 30, 1, -1)])
        square = self.mul(self.offset, self.offset)
        self.root = b.add(Opcode.SQRT, self.mul(near, 2))
        far = self.sub(self.offset, b.add(Opcode.LOG, ratio))
        self.deviation = b.select(self.is_near, self.mul(square, near), far, self.t)
        self.uses_temme = self.both(b.compare(a, _LARGE, "GT"), self.is_near)
        self.has_series = self.either(b.compare(x, 1, "LE"), b.compare(x, a, "LE"))

    def add(self, x: Any, y: Any) -> H:
        return self.b.binary(Opcode.ADD, x, y, self.t)

    def sub(self, x: Any, y: Any) -> H:
        return self.b.binary(Opcode.SUBTRACT, x, y, self.t)

    def mul(self, x: Any, y: Any) -> H:
        return self.b.binary(Opcode.MULTIPLY, x, y, self.t)

    def div(self, x: Any, y: Any) -> H:
        return self.b.binary(Opcode.DIVIDE, x, y, self.t)

    def both(self, p: H, q: H) -> H:
        return self.b.add(Opcode.AND, p, q)

    def either(self, p: H, q: H) -> H:
        return self.b.add(Opcode.OR, p, q)

    def outside(self, p: H) -> H:
        return self.b.add(Opcode.NOT, p)

    def factor(self) -> H:
        """Return F = x^a exp(-x) / gamma(a)."""
        b, a = self.b, self.a
        inverse = self.div(1, a)
        tail = self.mul(horner(b, self.mul(inverse, inverse), [float(c) for c in reversed(_STIRLING)]), inverse)
        exponent = self.sub(b.add(Opcode.NEGATE, self.mul(a, self.deviation)), tail)
        large = self.mul(b.add(Opcode.SQRT, self.mul(a, 1 / (2 * math.pi))), b.add(Opcode.EXPONENTIAL, exponent))
        # exp(-x) is zero from the bound on, where the power need not be known.
        x = self.b.binary(Opcode.MINIMUM, self.x, 200 if self.t is T.F32 else 1000, self.t)
        least = self.b.binary(Opcode.MINIMUM, a, _STIRLING_FROM, self.t)
        small = self.mul(b.add(Opcode.POWER, x, least), b.add(Opcode.EXPONENTIAL, b.add(Opcode.NEGATE, x)))
        small = self.mul(small, b.add(Opcode.EXPONENTIAL, b.add(Opcode.NEGATE, log_gamma(b, least))))
        return b.select(b.compare(a, _STIRLING_FROM, "LT"), small, large, self.t)

    def series(self, active: H) -> H:
        """Return P / F: the series of x^n / (a (a + 1) ... (a + n))."""

        def step(b: TorchBuilder, _n: H, divisor: H, term: H, total: H, x: H) -> tuple[H, list[H]]:
            divisor = b.binary(Opcode.ADD, divisor, 1, self.t)
            term = b.binary(Opcode.MULTIPLY, term, b.binary(Opcode.DIVIDE, x, divisor, self.t), self.t)
            total = b.binary(Opcode.ADD, total, term, self.t)
            return b.compare(term, b.binary(Opcode.MULTIPLY, total, self.epsilon, self.t), "GT"), [
                divisor, term, total, x]  # fmt: skip

        one = self.b.full(1, self.a.shape)
        found = self.b.repeat_until(active, [self.a, one, one, self.x], step, _MOST_STEPS, "gamma_series")
        return self.div(found[2], self.a)

    def fraction(self, active: H) -> H:
        """Return Q / F: 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...)))."""

        def step(b: TorchBuilder, n: H, level: H, upper: H, lower: H, total: H, a: H) -> tuple[H, list[H]]:
            count = b.operand(b.binary(Opcode.ADD, n, 1, T.S32), self.t, a.shape.dimensions)
            numerator = b.binary(Opcode.MULTIPLY, count, b.binary(Opcode.SUBTRACT, a, count, self.t), self.t)
            level = b.binary(Opcode.ADD, level, 2, self.t)
            lower = b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, numerator, lower, self.t), level, self.t)
            lower = b.binary(Opcode.DIVIDE, 1, lower, self.t)
            upper = b.binary(Opcode.ADD, level, b.binary(Opcode.DIVIDE, numerator, upper, self.t), self.t)
            ratio = b.binary(Opcode.MULTIPLY, lower, upper, self.t)
            total = b.binary(Opcode.MULTIPLY, total, ratio, self.t)
            change = b.add(Opcode.ABS, b.binary(Opcode.SUBTRACT, ratio, 1, self.t))
            return b.compare(change, 2 * self.epsilon, "GT"), [level, upper, lower, total, a]

        level = self.add(self.sub(self.x, self.a), 1)
        first = self.div(1, level)
        start = [level, self.b.full(float(np.finfo(self.t.dtype).max) / 4, self.a.shape), first, first, self.a]
        return self.b.repeat_until(active, start, step, _MOST_STEPS, "gamma_fraction")[3]

    def small_complement(self, active: H) -> H:
        """Return Q for small arguments: 1 - x^a / gamma(a + 1) - x^a / gamma(a) * sum of (-x)^n / (n! (a + n))."""
        b = self.b

        def step(b: TorchBuilder, n: H, power: H, total: H, a: H, x: H) -> tuple[H, list[H]]:
            count = b.operand(b.binary(Opcode.ADD, n, 1, T.S32), self.t, a.shape.dimensions)
            power = b.binary(
                Opcode.MULTIPLY, power, b.binary(Opcode.DIVIDE, b.add(Opcode.NEGATE, x), count, self.t), self.t
            )
            term = b.binary(Opcode.DIVIDE, power, b.binary(Opcode.ADD, a, count, self.t), self.t)
            total = b.binary(Opcode.ADD, total, term, self.t)
            bound = b.binary(Opcode.MULTIPLY, b.add(Opcode.ABS, total), self.epsilon, self.t)
            return b.compare(b.add(Opcode.ABS, term), bound, "GT"), [power, total, a, x]

        start = [b.full(1, self.a.shape), b.full(0, self.a.shape), self.a, self.x]
        total = b.repeat_until(active, start, step, _MOST_STEPS, "gamma_complement")[1]
        log_ratio = horner(b, self.sub(self.mul(self.a, 1 / 0.625), 1), _log_gamma_ratio(self.t))
        exponent = self.mul(self.a, self.sub(b.add(Opcode.LOG, self.x), log_ratio))
        lack = b.add(Opcode.NEGATE, b.add(Opcode.EXPONENTIAL_MINUS_ONE, exponent))
        return self.sub(lack, self.mul(self.mul(b.add(Opcode.EXPONENTIAL, exponent), self.a), total))

    def temme(self, upper: bool) -> H:
        """Return Q, or P, near a large `a`."""
        b = self.b
        eta = self.mul(self.offset, self.root)
        inverse = self.div(1, self.a)
        total = b.full(0, self.a.shape)
        for row in reversed(_temme_series(self.t)):
            total = self.add(self.mul(total, inverse), horner(b, eta, row))
        scale = self.div(b.add(Opcode.EXPONENTIAL, b.add(Opcode.NEGATE, self.mul(self.a, self.deviation))),
                         b.add(Opcode.SQRT, self.mul(self.a, 2 * math.pi)))  # fmt: skip
        correction = self.mul(scale, total)
        argument = self.mul(eta, b.add(Opcode.SQRT, self.mul(self.a, 0.5)))
        if upper:
            return self.add(self.mul(complementary_erf(b, argument), 0.5), correction)
        return self.sub(self.mul(complementary_erf(b, b.add(Opcode.NEGATE, argument)), 0.5), correction)

    def value(self, upper: bool) -> H:
        """Return Q, or P."""
        b, t = self.b, self.t
        elsewhere, factor = self.outside(self.uses_temme), self.factor()
        small: H | None = None
        by_series = self.has_series
        if upper:
            # Where P is small, Q is 1 - P.
            bound = self.div(-0.4, b.add(Opcode.LOG, b.binary(Opcode.MINIMUM, self.x, 0.5, t)))
            bound = b.select(b.compare(self.x, 0.5, "LE"), bound, self.mul(self.x, 1.1), t)
            small = self.both(b.compare(self.x, _SMALL, "LE"), b.compare(self.a, bound, "LE"))
            by_series = self.both(self.has_series, self.outside(small))
        by_fraction = self.outside(self.either(by_series, small) if small is not None else by_series)
        lower = self.mul(factor, self.series(self.both(elsewhere, by_series)))
        rest = self.mul(factor, self.fraction(self.both(elsewhere, by_fraction)))
        if small is None:
            result = b.select(by_series, lower, self.sub(1, rest), t)
        else:
            result = b.select(by_series, self.sub(1, lower), rest, t)
            result = b.select(small, self.small_complement(small), result, t)
        return b.select(self.uses_temme, self.temme(upper), result, t)


def _incomplete(b: TorchBuilder, a: H, x: H, upper: bool) -> H:
    """Return P or Q with PyTorch's limits at zeros and infinities; NaN for negative arguments."""
    t, dims = b.type, broadcast_dims(a, x)
    a, x = (b.reshape(b.operand(v, t, dims), [math.prod(dims)]) for v in (a, x))
    regular = b.add(Opcode.AND, b.compare(a, 0, "GT"), b.compare(x, 0, "GT"))
    for v in (a, x):
        regular = b.add(Opcode.AND, regular, b.add(Opcode.IS_FINITE, v))
    result = _Gamma(b, b.select(regular, a, 1, t), b.select(regular, x, 1, t)).value(upper)
    # P of what is not regular: 1 or 0 where only one argument is 0 or infinite.
    a_zero, x_zero = b.compare(a, 0, "EQ"), b.compare(x, 0, "EQ")
    a_infinite, x_infinite = b.compare(a, math.inf, "EQ"), b.compare(x, math.inf, "EQ")
    ones, zeros = b.add(Opcode.OR, a_zero, x_infinite), b.add(Opcode.OR, x_zero, a_infinite)
    defined = b.add(Opcode.AND, b.compare(a, 0, "GE"), b.compare(x, 0, "GE"))
    limit = b.select(zeros, float(upper), math.nan, t)
    limit = b.select(ones, b.select(zeros, math.nan, float(not upper), t), limit, t)
    limit = b.select(defined, limit, math.nan, t)
    return b.reshape(b.select(regular, result, limit, t), dims)


@LOWERINGS.op("igamma", "special_gammainc")
@in_single_precision
def _lower(b: TorchBuilder, a: H, x: H) -> H:
    return _incomplete(b, a, x, upper=False)


@LOWERINGS.op("igammac", "special_gammaincc")
@in_single_precision
def _upper(b: TorchBuilder, a: H, x: H) -> H:
    return _incomplete(b, a, x, upper=True)
