"""Lowerings of the modified Bessel functions of the first kind, and of the scaled complementary error function.

For |x| <= 8, exp(-|x|) I(x) is a Chebyshev series in |x|, and sqrt(|x|) exp(-|x|) I(x) one in 1 / |x| beyond (Clenshaw,
Chebyshev series for mathematical functions, 1962). The coefficients interpolate the functions of SciPy.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, in_single_precision
from compiler.frontends.torch_special import erfc_tail
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction

_NEAR = 8.0
"""Where the second series begins."""
_DEGREES = {T.F32: (17, 8), T.F64: (29, 24)}
"""Degrees of the two series: the first terms left out are below half a unit in the last place."""


@functools.lru_cache(maxsize=8)
def _series(order: int, t: T) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the coefficients of both series, from that of degree 0; odd functions are divided by |x| in the first."""
    scaled = getattr(importlib.import_module("scipy.special"), f"i{order}e")
    chebyshev: Any = importlib.import_module("numpy.polynomial.chebyshev")

    def near(s: Any) -> Any:
        x = np.maximum((s + 1) * (_NEAR / 2), 1e-30)
        return scaled(x) / x**order

    def far(s: Any) -> Any:
        x = 2 * _NEAR / np.maximum(s + 1, 1e-300)
        return np.sqrt(x) * scaled(x)

    return tuple(
        tuple(chebyshev.chebinterpolate(f, 60)[: n + 1].tolist()) for f, n in zip((near, far), _DEGREES[t], strict=True)
    )  # type: ignore[return-value]


def evaluate_series(b: TorchBuilder, s: H, coefficients: tuple[float, ...]) -> H:
    """Evaluate a Chebyshev series at `s`, from -1 to 1, by Clenshaw's recurrence."""
    t = s.shape.element_type
    twice = b.binary(Opcode.ADD, s, s, t)
    last, before = b.full(coefficients[-1], s.shape), b.full(0, s.shape)
    for c in coefficients[-2:0:-1]:
        rest = b.binary(Opcode.SUBTRACT, c, before, t)
        last, before = b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, twice, last, t), rest, t), last
    rest = b.binary(Opcode.SUBTRACT, coefficients[0], before, t)
    return b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, s, last, t), rest, t)


def _scaled(b: TorchBuilder, x: H, order: int) -> tuple[H, H]:
    """Return exp(-|x|) I(x) of order 0 or 1, and |x|."""
    t = x.shape.element_type
    size = b.add(Opcode.ABS, x)
    near, far = _series(order, t)
    s = b.binary(Opcode.SUBTRACT, b.binary(Opcode.MULTIPLY, size, 2 / _NEAR, t), 1, t)
    first = evaluate_series(b, s, near)
    if order:
        first = b.binary(Opcode.MULTIPLY, first, size, t)
    s = b.binary(Opcode.SUBTRACT, b.binary(Opcode.DIVIDE, 2 * _NEAR, size, t), 1, t)
    second = b.binary(Opcode.DIVIDE, evaluate_series(b, s, far), b.add(Opcode.SQRT, size), t)
    result = b.select(b.compare(size, _NEAR, "GT"), second, first, t)
    if order:
        result = b.select(b.compare(x, 0, "LT"), b.add(Opcode.NEGATE, result), result, t)
    return result, size


def _function(b: TorchBuilder, x: H, order: int, scaled: bool) -> H:
    x = b.convert(x, b.type)
    result, size = _scaled(b, x, order)
    return result if scaled else b.binary(Opcode.MULTIPLY, result, b.add(Opcode.EXPONENTIAL, size))


@LOWERINGS.op("i0", "bessel_i0", "special_i0", "special_modified_bessel_i0")
@in_single_precision
def _i0(b: TorchBuilder, x: H) -> H:
    return _function(b, x, 0, scaled=False)


@LOWERINGS.op("bessel_i0e", "special_i0e")
@in_single_precision
def _i0e(b: TorchBuilder, x: H) -> H:
    return _function(b, x, 0, scaled=True)


@LOWERINGS.op("bessel_i1", "special_i1", "special_modified_bessel_i1")
@in_single_precision
def _i1(b: TorchBuilder, x: H) -> H:
    return _function(b, x, 1, scaled=False)


@LOWERINGS.op("bessel_i1e", "special_i1e")
@in_single_precision
def _i1e(b: TorchBuilder, x: H) -> H:
    return _function(b, x, 1, scaled=True)


@LOWERINGS.op("spherical_bessel_j0", "special_spherical_bessel_j0")
@in_single_precision
def _spherical(b: TorchBuilder, x: H) -> H:
    """Return sin(x) / x, which is 1 at 0 and 0 at infinity."""
    x = b.convert(x, b.type)
    t = x.shape.element_type
    ratio = b.binary(Opcode.DIVIDE, b.add(Opcode.SINE, x), x, t)
    ratio = b.select(b.compare(x, 0, "EQ"), 1, ratio, t)
    return b.select(b.compare(b.add(Opcode.ABS, x), np.inf, "EQ"), 0, ratio, t)


@LOWERINGS.op("erfcx", "special_erfcx")
@in_single_precision
def _scaled_erfc(b: TorchBuilder, x: H) -> H:
    """Return exp(x^2) erfc(x), from the series of erfc without its factor exp(-x^2) where x > 1."""
    x = b.convert(x, b.type)
    t = x.shape.element_type
    square = b.add(Opcode.EXPONENTIAL, b.binary(Opcode.MULTIPLY, x, x, t))
    middle = b.binary(Opcode.MULTIPLY, square, b.binary(Opcode.SUBTRACT, 1, b.add(Opcode.ERF, x), t), t)
    tail = erfc_tail(b, b.binary(Opcode.MAXIMUM, x, 1, t), None)
    return b.select(b.compare(x, 1, "GT"), tail, middle, t)
