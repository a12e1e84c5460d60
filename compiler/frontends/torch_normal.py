"""The lowering of the quantiles of the normal distribution.

With t = sqrt(-2 log p), the quantile of a small p is -t and a Chebyshev series in 1 / t; for p from 0.1 to 0.9 it is
p - 1/2 times one in the square of that. The coefficients interpolate the functions of SciPy.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.frontends.torch_bessel import evaluate_series
from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, in_single_precision
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction

_MIDDLE = 0.4
"""Largest distance of p from 1/2 for the first series."""
_RANGES = ((math.sqrt(-2 * math.log(0.5 - _MIDDLE)), 6.0), (6.0, 40.0))
"""The values of t of the other series; the smallest double has 38.6."""
_DEGREES = {T.F32: (11, 9, 15), T.F64: (21, 21, 29)}


@functools.lru_cache(maxsize=4)
def _series(t: T) -> tuple[tuple[float, ...], ...]:
    """Return the coefficients of the three series, from that of degree 0."""
    chebyshev: Any = importlib.import_module("numpy.polynomial.chebyshev")
    special: Any = importlib.import_module("scipy.special")

    def middle(s: Any) -> Any:
        distance = np.sqrt(np.maximum((s + 1) * (_MIDDLE**2 / 2), 1e-16))
        return special.ndtri(0.5 + distance) / distance

    def tail(low: float, high: float) -> Callable[[Any], Any]:
        def lack(s: Any) -> Any:
            t = 1 / ((s + 1) * ((1 / low - 1 / high) / 2) + 1 / high)
            return t + special.ndtri_exp(-t * t / 2)

        return lack

    functions = [middle, *(tail(*r) for r in _RANGES)]
    return tuple(
        tuple(chebyshev.chebinterpolate(f, 80)[: n + 1].tolist()) for f, n in zip(functions, _DEGREES[t], strict=True)
    )


@LOWERINGS.op("ndtri", "special_ndtri")
@in_single_precision
def _quantile(b: TorchBuilder, p: H) -> H:
    """Return the number below which a normal variable is with probability `p`; NaN outside [0, 1]."""
    p = b.convert(p, b.type)
    t = p.shape.element_type
    middle, *tails = _series(t)
    distance = b.binary(Opcode.SUBTRACT, p, 0.5, t)
    square = b.binary(Opcode.MULTIPLY, distance, distance, t)
    s = b.binary(Opcode.SUBTRACT, b.binary(Opcode.MULTIPLY, square, 2 / _MIDDLE**2, t), 1, t)
    central = b.binary(Opcode.MULTIPLY, evaluate_series(b, s, middle), distance, t)
    least = b.binary(Opcode.MINIMUM, p, b.binary(Opcode.SUBTRACT, 1, p, t), t)
    root = b.add(Opcode.SQRT, b.binary(Opcode.MULTIPLY, b.add(Opcode.LOG, least), -2, t))
    values = []
    for (low, high), coefficients in zip(_RANGES, tails, strict=True):
        scale = 2 / (1 / low - 1 / high)
        s = b.binary(Opcode.SUBTRACT, b.binary(Opcode.DIVIDE, scale, root, t), 1 + scale / high, t)
        values.append(b.binary(Opcode.SUBTRACT, root, evaluate_series(b, s, coefficients), t))
    outer = b.select(b.compare(root, _RANGES[0][1], "LE"), values[0], values[1], t)
    outer = b.select(b.compare(least, 0, "EQ"), math.inf, outer, t)
    outer = b.select(b.compare(distance, 0, "LT"), b.add(Opcode.NEGATE, outer), outer, t)
    return b.select(b.compare(b.add(Opcode.ABS, distance), _MIDDLE, "LE"), central, outer, t)
