"""Lowerings of special functions of ATen without an HLO op: gamma functions, erfc, erfinv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, in_single_precision
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction

# Lanczos approximation with g = 7, as in XLA's lgamma and digamma.
_LANCZOS_G = 7.0
_LANCZOS = (
    0.99999999999980993227684700473478, 676.520368121885098567009190444019, -1259.13921672240287047156078755283,
    771.3234287776530788486528258894, -176.61502916214059906584551354, 12.507343278686904814458936853,
    -0.13857109526572011689554707, 9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip


def horner(b: TorchBuilder, x: H, coefficients: Sequence[float]) -> H:
    """Evaluate a polynomial, given the coefficient of the highest power first."""
    total: Any = coefficients[0]
    for c in coefficients[1:]:
        product = b.binary(Opcode.MULTIPLY, x, total, x.shape.element_type)
        total = b.binary(Opcode.ADD, product, c, x.shape.element_type)
    return b.operand(total, x.shape.element_type, x.shape.dimensions)


def _lanczos_sum(b: TorchBuilder, z: H, squared: bool = False) -> tuple[H, H]:
    """Return the series at `z`, and the sum of its terms divided again (its negative derivative)."""
    t = z.shape.element_type
    total, derivative = b.full(_LANCZOS[0], z.shape), b.full(0, z.shape)
    for k, c in enumerate(_LANCZOS[1:], start=1):
        shifted = b.binary(Opcode.ADD, z, k, t)
        term = b.binary(Opcode.DIVIDE, c, shifted, t)
        total = b.binary(Opcode.ADD, total, term, t)
        if squared:
            derivative = b.binary(Opcode.ADD, derivative, b.binary(Opcode.DIVIDE, term, shifted, t), t)
    return total, derivative


def _mirrored(b: TorchBuilder, x: H) -> tuple[H, H]:
    """Return where the reflection formula applies, and the argument of the series, which is x - 1."""
    t = x.shape.element_type
    reflect = b.compare(x, 0.5, "LT")
    z = b.select(reflect, b.add(Opcode.NEGATE, x), b.binary(Opcode.SUBTRACT, x, 1, t), t)
    return reflect, z


def _log_base(b: TorchBuilder, z: H) -> H:
    """Return log(z + g + 1/2), using log1p to keep the digits of small `z`."""
    t = z.shape.element_type
    shift = _LANCZOS_G + 0.5
    part = b.add(Opcode.LOG_PLUS_ONE, b.binary(Opcode.DIVIDE, z, shift, t))
    return b.binary(Opcode.ADD, part, math.log(shift), t)


@LOWERINGS.op("lgamma")
@in_single_precision
def _lgamma(b: TorchBuilder, x: H) -> H:
    return log_gamma(b, b.convert(x, b.type))


def log_gamma(b: TorchBuilder, x: H) -> H:
    """Return log|gamma(x)| in the type of `x`."""
    t = x.shape.element_type
    reflect, z = _mirrored(b, x)
    total, _ = _lanczos_sum(b, z)
    base, log_base = b.binary(Opcode.ADD, z, _LANCZOS_G + 0.5, t), _log_base(b, z)
    # (z + 1/2) log(base) - base, arranged such that large terms cancel last.
    exponent = b.binary(Opcode.SUBTRACT, b.binary(Opcode.ADD, z, 0.5, t), b.binary(Opcode.DIVIDE, base, log_base, t), t)
    log_gamma = b.binary(Opcode.MULTIPLY, exponent, log_base, t)
    log_gamma = b.binary(Opcode.ADD, log_gamma, b.add(Opcode.LOG, total), t)
    log_gamma = b.binary(Opcode.ADD, log_gamma, 0.5 * math.log(2 * math.pi), t)
    # log|gamma(x)| = log(pi) - log|sin(pi x)| - log(gamma(1 - x)), which is infinite at non-positive integers.
    size = b.add(Opcode.ABS, x)
    fraction = b.binary(Opcode.SUBTRACT, size, b.add(Opcode.FLOOR, size), t)
    fraction = b.select(b.compare(fraction, 0.5, "GT"), b.binary(Opcode.SUBTRACT, 1, fraction, t), fraction, t)
    log_sine = b.add(Opcode.LOG, b.add(Opcode.SINE, b.binary(Opcode.MULTIPLY, fraction, math.pi, t)))
    mirrored = b.binary(Opcode.SUBTRACT, b.binary(Opcode.SUBTRACT, math.log(math.pi), log_sine, t), log_gamma, t)
    mirrored = b.select(b.add(Opcode.IS_FINITE, log_sine), mirrored, b.add(Opcode.NEGATE, log_sine), t)
    result = b.select(reflect, mirrored, log_gamma, t)
    return b.select(b.compare(size, math.inf, "EQ"), math.inf, result, t)


@LOWERINGS.op("digamma")
@in_single_precision
def _digamma(b: TorchBuilder, x: H) -> H:
    return digamma(b, b.convert(x, b.type))


def digamma(b: TorchBuilder, x: H) -> H:
    """Return the derivative of log(gamma(x)) in the type of `x`."""
    t = x.shape.element_type
    reflect, z = _mirrored(b, x)
    total, derivative = _lanczos_sum(b, z, squared=True)
    base, log_base = b.binary(Opcode.ADD, z, _LANCZOS_G + 0.5, t), _log_base(b, z)
    ratio = b.binary(Opcode.DIVIDE, derivative, total, t)
    digamma = b.binary(Opcode.SUBTRACT, log_base, ratio, t)
    digamma = b.binary(Opcode.SUBTRACT, digamma, b.binary(Opcode.DIVIDE, _LANCZOS_G, base, t), t)
    # digamma(x) = digamma(1 - x) - pi / tan(pi x), where the tangent has period one.
    near = b.binary(Opcode.ADD, x, b.add(Opcode.ABS, b.add(Opcode.FLOOR, b.binary(Opcode.ADD, x, 0.5, t))), t)
    angle = b.binary(Opcode.MULTIPLY, near, math.pi, t)
    cotangent = b.binary(Opcode.DIVIDE, b.add(Opcode.COSINE, angle), b.add(Opcode.SINE, angle), t)
    mirrored = b.binary(Opcode.SUBTRACT, digamma, b.binary(Opcode.MULTIPLY, cotangent, math.pi, t), t)
    result = b.select(reflect, mirrored, digamma, t)
    whole = b.binary(Opcode.AND, b.compare(x, 0, "LT"), b.compare(x, b.add(Opcode.FLOOR, x), "EQ"), T.PRED)
    result = b.select(whole, math.nan, result, t)
    zero = b.compare(x, 0, "EQ")
    # 1 / x has the sign that torch gives the pole at zero.
    return b.select(zero, b.add(Opcode.NEGATE, b.binary(Opcode.DIVIDE, 1, x, t)), result, t)


def trigamma(b: TorchBuilder, x: H) -> H:
    """Return the derivative of digamma in the type of `x`, by recurrence and asymptotic series."""
    t = x.shape.element_type
    reflect = b.compare(x, 0.5, "LT")
    z = b.select(reflect, b.binary(Opcode.SUBTRACT, 1, x, t), x, t)
    total = b.full(0, x.shape)
    for _ in range(8):
        total = b.binary(Opcode.ADD, total, b.binary(Opcode.DIVIDE, 1, b.add(Opcode.MULTIPLY, z, z), t), t)
        z = b.binary(Opcode.ADD, z, 1, t)
    square = b.binary(Opcode.DIVIDE, 1, b.add(Opcode.MULTIPLY, z, z), t)
    series = horner(b, square, (-691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6, 1))
    series = b.binary(Opcode.ADD, series, b.binary(Opcode.DIVIDE, 0.5, z, t), t)
    total = b.binary(Opcode.ADD, total, b.binary(Opcode.DIVIDE, series, z, t), t)
    sine = b.add(Opcode.SINE, b.binary(Opcode.MULTIPLY, x, math.pi, t))
    pole = b.binary(Opcode.DIVIDE, math.pi**2, b.add(Opcode.MULTIPLY, sine, sine), t)
    return b.select(reflect, b.binary(Opcode.SUBTRACT, pole, total, t), total, t)


# For |x| >= 1, erfc is exp(-x^2) / |x| times a polynomial in 1 / x^2 (Cephes, as in XLA); in double precision it is a
# quotient of polynomials in |x|.
_ERFC_NEAR = (
    +2.326819970068386e-2, -1.387039388740657e-1, +3.687424674597105e-1, -5.824733027278666e-1, +6.210004621745983e-1,
    -4.944515323274145e-1, +3.404879937665872e-1, -2.741127028184656e-1, +5.638259427386472e-1,
)  # fmt: skip
_ERFC_FAR = (
    -1.047766399936249e1, +1.297719955372516e1, -7.495518717768503, +2.921019019210786, -1.015265279202700,
    +4.218463358204948e-1, -2.820767439740514e-1, +5.641895067754075e-1,
)  # fmt: skip
_ERFC_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
_ERFC_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
_ERFC_R = (
    5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195,
    7.40974269950448939160, 2.97886665372100240670,
)  # fmt: skip
_ERFC_S = (
    1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1, 1.70814450747565897222e1,
    9.60896809063285878198, 3.36907645100081516050,
)  # fmt: skip


def erfc_tail(b: TorchBuilder, size: H, scale: H | None) -> H:
    """Return erfc of numbers from 1 on, given their exp(-x^2); None: the quotient of erfc and that factor."""
    t = size.shape.element_type
    if t is T.F64:
        near = b.binary(Opcode.DIVIDE, horner(b, size, _ERFC_P), horner(b, size, _ERFC_Q), t)
        far = b.binary(Opcode.DIVIDE, horner(b, size, _ERFC_R), horner(b, size, _ERFC_S), t)
        series = b.select(b.compare(size, 8, "LT"), near, far, t)
        if scale is not None:
            return b.binary(Opcode.MULTIPLY, scale, series, t)
        limit = b.binary(Opcode.DIVIDE, 1 / math.sqrt(math.pi), size, t)
        return b.select(b.compare(size, 1e10, "GT"), limit, series, t)
    inverse = b.binary(Opcode.DIVIDE, 1, b.add(Opcode.MULTIPLY, size, size), t)
    near, far = horner(b, inverse, _ERFC_NEAR), horner(b, inverse, _ERFC_FAR)
    series = b.select(b.compare(size, 2, "LT"), near, far, t)
    return b.binary(Opcode.MULTIPLY, b.binary(Opcode.DIVIDE, 1 if scale is None else scale, size, t), series, t)


@LOWERINGS.op("erfc", "special_erfc")
@in_single_precision
def _erfc(b: TorchBuilder, x: H) -> H:
    return complementary_erf(b, b.convert(x, b.type))


def complementary_erf(b: TorchBuilder, x: H) -> H:
    """Return 1 - erf(x) in the type of `x`, without cancellation for large `x`."""
    t = x.shape.element_type
    size = b.binary(Opcode.MAXIMUM, b.add(Opcode.ABS, x), 1, t)
    scale = b.add(Opcode.EXPONENTIAL, b.add(Opcode.NEGATE, b.add(Opcode.MULTIPLY, size, size)))
    tail = erfc_tail(b, size, scale)
    tail = b.select(b.compare(scale, 0, "EQ"), 0, tail, t)
    tail = b.select(b.compare(x, 0, "LT"), b.binary(Opcode.SUBTRACT, 2, tail, t), tail, t)
    middle = b.binary(Opcode.SUBTRACT, 1, b.add(Opcode.ERF, x), t)
    return b.select(b.compare(b.add(Opcode.ABS, x), 1, "GT"), tail, middle, t)


# erfinv in single precision: polynomials in w = -log(1 - x^2) (Giles, "Approximating the erfinv
# function").
_ERFINV_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


@LOWERINGS.op("erfinv", "special_erfinv")
@in_single_precision
def _inverse_erf(b: TorchBuilder, x: H) -> H:
    """Return erfinv; in double precision, two steps of Newton's method follow the approximation."""
    x = b.convert(x, b.type)
    t = x.shape.element_type
    square = b.add(Opcode.MULTIPLY, x, x)
    w = b.add(Opcode.NEGATE, b.add(Opcode.LOG_PLUS_ONE, b.add(Opcode.NEGATE, square)))
    middle = horner(b, b.binary(Opcode.SUBTRACT, w, 2.5, t), _ERFINV_MIDDLE)
    tail = horner(b, b.binary(Opcode.SUBTRACT, b.add(Opcode.SQRT, w), 3, t), _ERFINV_TAIL)
    result = b.binary(Opcode.MULTIPLY, b.select(b.compare(w, 5, "LT"), middle, tail, t), x, t)
    for _ in range(2 if t is T.F64 else 0):
        slope = b.add(Opcode.EXPONENTIAL, b.add(Opcode.NEGATE, b.add(Opcode.MULTIPLY, result, result)))
        slope = b.binary(Opcode.MULTIPLY, slope, 2 / math.sqrt(math.pi), t)
        error = b.binary(Opcode.SUBTRACT, b.add(Opcode.ERF, result), x, t)
        result = b.binary(Opcode.SUBTRACT, result, b.binary(Opcode.DIVIDE, error, slope, t), t)
    at_end = b.compare(b.add(Opcode.ABS, x), 1, "EQ")
    return b.select(at_end, b.binary(Opcode.MULTIPLY, x, math.inf, t), result, t)


@LOWERINGS.op("round")
def _round(b: TorchBuilder, x: H, *, decimals: int = 0) -> H:
    """Round to the nearest integer, or to that many decimals; ties go to even."""
    if x.shape.element_type.is_integer:
        return x
    if decimals == 0:
        return b.add(Opcode.ROUND_NEAREST_EVEN, x)
    scale, up = float(np.power(10.0, abs(decimals))), decimals > 0
    scaled = b.binary(Opcode.MULTIPLY if up else Opcode.DIVIDE, x, scale)
    return b.binary(Opcode.DIVIDE if up else Opcode.MULTIPLY, b.add(Opcode.ROUND_NEAREST_EVEN, scaled), scale)
