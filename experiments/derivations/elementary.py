"""The polynomials of the elementary functions in `compiler/codegen/printing/math_c.h`.

    python -m experiments.derivations.elementary [NAME ...]

Each polynomial minimises the largest weighted error on an interval; the exchange algorithm of Remez finds it on a dense
grid, in 40 digits. On an interval of positive numbers, coefficients are rounded one at a time, the lowest power first.
After each rounding the remaining ones are fitted again, so that they correct it. On an interval around zero the
remaining powers have no unique best fit, and all coefficients are rounded at once. Needs mpmath.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

from experiments.module_command import plain_errors

mp.dps = 40
GRID = 700
ROUNDS = 30


@dataclass(frozen=True)
class Fit:
    """A polynomial sum(c[k] x^k) that approximates a function.

    Attributes:
        function: the function.
        weight: factor of the error; the largest weighted error is minimised.
        low: lower end of the interval.
        high: upper end of the interval.
        degree: degree of the polynomial.
        is_double: whether coefficients are rounded to double rather than float.
    """

    function: Callable[[Any], Any]
    weight: Callable[[Any], Any]
    low: Any
    high: Any
    degree: int
    is_double: bool = False


def _log_tail(x: Any) -> Any:
    return (mp.log1p(x) - x + x**2 / 2) / x**3


def _exp_tail(x: Any) -> Any:
    return (mp.expm1(x) - x) / x**2


def _of_square(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda z: f(mp.sqrt(z))


def _erf_quotient(z: Any) -> Any:
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z)


def _erf_divisor(z: Any) -> Any:
    """Return the denominator of the best quotient of polynomials of degree 5, with coefficients rounded to float."""
    return mp.polyval([mpf(float.fromhex(c)) for c in ERF_DIVISOR], z)


def _scaled_erfc(t: Any) -> Any:
    x = (1 / t - 1) / mpf("0.3")
    return mp.erfc(x) * mp.exp(x**2) / t


ERF_DIVISOR = ("0x1.3ecfb2p-15", "0x1.30ea58p-10", "0x1.eae4bp-7", "0x1.d3ace8p-4", "0x1.0125e4p-1", "0x1p+0")
HALF_LN2 = mp.log(2) / 2 * mpf("1.0002")
LOG_LOW, LOG_HIGH = mp.sqrt(mpf(1) / 2) - 1, mp.sqrt(2) - 1
FITS: dict[str, Fit] = {
    # exp(x) = 1 + x + x^2 P(x); the weight is that of expm1, which shares P.
    "exp": Fit(_exp_tail, lambda x: abs(x**2 / mp.expm1(x)), -HALF_LN2, HALF_LN2, 4),
    "exp_f64": Fit(
        lambda x: (mp.expm1(x) - x) / x**2, lambda x: abs(x**2 / mp.expm1(x)), -HALF_LN2, HALF_LN2, 10, True
    ),
    # log(1 + x) = x - x^2/2 + x^3 P(x)
    "log": Fit(_log_tail, lambda x: x**3 / mp.log1p(x), LOG_LOW, LOG_HIGH, 7),
    # log2(1 + x) = x P(x)
    "log2": Fit(lambda x: mp.log1p(x) / mp.log(2) / x, lambda x: x / mp.log1p(x), LOG_LOW, LOG_HIGH, 12, True),
    # 2^x = P(x)
    "exp2": Fit(lambda x: mpf(2) ** x, lambda x: mpf(2) ** -x, mpf("-0.5001"), mpf("0.5001"), 6, True),
    # tanh(x) = x + x^3 P(x^2)
    "tanh_f64": Fit(_of_square(lambda x: (mp.tanh(x) / x - 1) / x**2), lambda z: z, mpf(0), mpf("0.36"), 11, True),
    # erf(x) = x P(x^2) / Q(x^2), until it is 1.
    "erf": Fit(
        lambda z: _erf_quotient(z) * _erf_divisor(z),
        lambda z: 1 / _erf_quotient(z) / _erf_divisor(z),
        mpf(0),
        mpf("15.5"),
        5,
    ),
    # erfc(x) = exp(-x^2) t P(t) for t = 1 / (1 + 0.3 x), until exp(-x^2) is zero.
    "erfc": Fit(_scaled_erfc, lambda t: 1 / _scaled_erfc(t), 1 / mpf("3.85"), mpf(1), 8),
    # atan(x) = x + x^3 P(x^2)
    "atan": Fit(_of_square(lambda x: (mp.atan(x) / x - 1) / x**2), lambda z: z, mpf(0), mpf(1), 7),
    # asin(x) = x + x^3 P(x^2)
    "asin": Fit(_of_square(lambda x: (mp.asin(x) / x - 1) / x**2), lambda z: z, mpf(0), mpf("0.25"), 4),
}


def solve(fit: Fit) -> tuple[list[float], float]:
    """Return the rounded coefficients, in ascending powers, and the largest weighted error."""
    middle, half = (fit.high + fit.low) / 2, (fit.high - fit.low) / 2
    # The nodes avoid the ends and zero, where quotients such as sin(x) / x are 0 / 0.
    grid = [middle + half * mp.cos(mp.pi * (mpf(k) + mpf("0.5")) / GRID) for k in range(GRID)][::-1]
    values = [fit.function(x) for x in grid]
    weights = [fit.weight(x) for x in grid]
    rounded: list[float] = []
    best = _remez(grid, values, weights, 0, fit.degree)
    for power in range(fit.degree + 1):
        if power > 0:
            best = best[1:] if fit.low < 0 else _remez(grid, values, weights, power, fit.degree)
        coefficient = float(best[0]) if fit.is_double else float(np.float32(best[0]))
        rounded.append(coefficient)
        values = [v - mpf(coefficient) * x**power for v, x in zip(values, grid, strict=True)]
    return rounded, float(max(abs(v * w) for v, w in zip(values, weights, strict=True)))


def _remez(x: list[Any], f: list[Any], w: list[Any], first: int, last: int) -> list[Any]:
    """Return the coefficients of the powers `first` to `last` with the least largest weighted error."""
    terms = last - first + 1
    positions = [
        round((len(x) - 1) * (1 - float(np.cos(np.pi * (k + 0.5) / (terms + 1)))) / 2) for k in range(terms + 1)
    ]
    coefficients = [mpf(0)] * terms
    for _ in range(ROUNDS):
        rows = mp.matrix(terms + 1, terms + 1)
        right = mp.matrix(terms + 1, 1)
        for row, p in enumerate(positions):
            for k in range(terms):
                rows[row, k] = x[p] ** (first + k) * w[p]
            rows[row, terms] = (-1) ** row
            right[row] = f[p] * w[p]
        solution = mp.lu_solve(rows, right)
        coefficients, level = list(solution[:terms]), abs(solution[terms])
        residual = [
            (fi - xi**first * mp.polyval(coefficients[::-1], xi)) * wi for xi, fi, wi in zip(x, f, w, strict=True)
        ]
        if max(map(abs, residual)) <= level * mpf("1.001"):
            break
        positions = _alternation(residual, terms + 1)
    return coefficients


def _alternation(residual: list[Any], count: int) -> list[int]:
    """Return the positions of `count` residuals of alternating sign, among them the largest one."""
    runs: list[int] = []
    for k, r in enumerate(residual):
        if runs and (r >= 0) == (residual[runs[-1]] >= 0):
            if abs(r) > abs(residual[runs[-1]]):
                runs[-1] = k
        else:
            runs.append(k)
    while len(runs) > count:
        # Dropping an end keeps the alternation; dropping an inner one needs its smaller neighbour to go with it.
        ends = (0, len(runs) - 1)
        runs.pop(min(ends, key=lambda k: abs(residual[runs[k]])))
    if len(runs) < count:
        raise ValueError(f"{len(runs)} extrema found where {count} are needed")
    return runs


def _constant(value: float) -> str:
    return re.sub(r"\.?0*p", "p", value.hex())


def main() -> None:
    """Print the coefficients as C constants."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *FITS], metavar="NAME", help=", ".join(FITS))
    for name in parser.parse_args().names or FITS:
        fit = FITS[name]
        coefficients, error = solve(fit)
        print(f"{name}: largest weighted error 2^{np.log2(error):.1f}")
        print("  " + ", ".join(_constant(c) + ("" if fit.is_double else "f") for c in coefficients))


if __name__ == "__main__":
    with plain_errors():
        main()
