"""Properties of the scalar functions of reductions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from compiler.errors import HlogymError
from compiler.interpreter import evaluate_computation
from compiler.ir import HloComputation, PrimitiveType

__all__ = ["combines_in_any_order"]

_NUMBERS = (-31.0, -2.5, -1.0, -0.375, 0.0, 0.25, 1.0, 3.75, 40.0)
_INTEGERS = (0, 1, 2, 3, 5, 7, 42, 100)
ROUNDINGS = 64
"""Differences of so many units in the last place count as rounding."""


def combines_in_any_order(function: HloComputation) -> bool:
    """Check whether a function of two scalars is commutative and associative, up to rounding, at sampled values.

    Reductions may then combine their elements in any order. A function that prefers one of its operands, such as the
    first or the last one, differs at some of these values.
    """
    shapes = function.parameter_shapes
    if len(shapes) != 2 or any(s != function.root.shape or not s.is_array or s.rank for s in shapes):
        return False
    t = shapes[0].element_type
    if not t.is_float and not t.is_integer:
        return False
    values = [np.asarray(v).astype(t.dtype) for v in (_NUMBERS if t.is_float else _INTEGERS)]
    try:
        return all(_agree(x, y, t) for x, y in _results(function, values))
    except HlogymError:
        return False


def _results(function: HloComputation, values: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of results that are equal if the order does not matter."""

    def call(x: Any, y: Any) -> Any:
        return evaluate_computation(function, [x, y])

    pairs = {(i, j): call(x, y) for i, x in enumerate(values) for j, y in enumerate(values)}
    for i, j in itertools.combinations(range(len(values)), 2):
        yield pairs[i, j], pairs[j, i]
    # Three values at distances that vary: all triples would take long.
    count = len(values)
    for i, j in pairs:
        k = (2 * i + 5 * j + 1) % count
        yield call(pairs[i, j], values[k]), call(values[i], pairs[j, k])


def _agree(x: Any, y: Any, t: PrimitiveType) -> bool:
    if not t.is_float:
        return bool(np.array_equal(x, y))
    a, b = float(x), float(y)
    if not np.isfinite(a) or not np.isfinite(b):
        return a == b or (np.isnan(a) and np.isnan(b))
    eps = float(ml_dtypes.finfo(t.dtype).eps)  # type: ignore[no-untyped-call]
    return abs(a - b) <= ROUNDINGS * eps * max(abs(a), abs(b), 1.0)
