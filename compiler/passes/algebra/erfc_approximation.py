"""The function erfc in f32: recognition of its expansion, and an approximation that takes less than half of the work.

HLO has no op for erfc, so JAX expands it, in the exact GELU and in the normal distribution, to three polynomials and
two quotients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, is_splat, splat_value

__all__ = ["cheaper_erfc"]

SCALE = 0.3
COEFFICIENTS = tuple(
    float.fromhex(c)
    for c in (
        "0x1.5a8016p-3", "0x1.5d93b8p-3", "0x1.3017a2p-3", "0x1.b72a2p-3", "-0x1.7f827p-4", "0x1.17c0eap-1",
        "-0x1.05bf5ap-1", "0x1.f0bd14p-2", "-0x1.0914c2p-3",
    )
)  # fmt: skip
"""erfc(x) = exp(-x^2) t P(t) for t = 1 / (1 + SCALE x), x >= 0; experiments/derivations/elementary.py derives P."""
UNDERFLOW = -88.72284
"""Exponent below which the exponential counts as zero, as it does in the expansion."""
LARGEST_EXPANSION = 120
"""Maximum number of instructions of an expansion; that of JAX has about 75."""
TOLERANCE = 1e-5
"""Relative difference from erfc at which an expression is another function; JAX's expansion differs by 1e-6."""

Array = npt.NDArray[Any]


def cheaper_erfc(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a select by |x| < 1 that has the values of erfc(x) or erfc(|x|) with one polynomial and one quotient.

    The expression must consist of arithmetic on x and constants alone, so that its values at many points tell what it
    computes.
    """
    p, near, far = i.operands
    if i.shape.element_type is not PrimitiveType.F32 or not is_op(p, Opcode.COMPARE) or not is_op(far, Opcode.SELECT):
        return None
    size, one = p.operands
    is_below_one = p.attributes["direction"] == "LT" and is_op(size, Opcode.ABS) and is_splat(one, 1)
    if not is_below_one or not is_op(near, Opcode.SUBTRACT, Opcode.ADD):
        return None
    (x,) = size.operands
    from scipy import special  # importing it takes long, and few programs have the expression

    points = _points()
    values = _values(i, x, points)
    if values is None:
        return None
    if _agree(values, special.erfc(np.abs(points))):
        return _of_positive(x, size, b)
    if not _agree(values, special.erfc(points)):
        return None
    positive = _of_positive(x, size, b)
    negative = b.add(Opcode.SUBTRACT, b.splat(2, x.shape), positive)
    return b.add(Opcode.SELECT, b.compare(x, b.splat(0, x.shape), "LT"), negative, positive)


def _of_positive(x: HloInstruction, size: HloInstruction, b: Builder) -> HloInstruction:
    """Return erfc(|x|) for `x` and its size."""

    def constant(value: float) -> HloInstruction:
        return b.splat(value, x.shape)

    divisor = b.add(Opcode.ADD, b.add(Opcode.MULTIPLY, size, constant(SCALE)), constant(1))
    t = b.add(Opcode.DIVIDE, constant(1), divisor)
    polynomial = constant(COEFFICIENTS[-1])
    for c in COEFFICIENTS[-2::-1]:
        polynomial = b.add(Opcode.ADD, b.add(Opcode.MULTIPLY, polynomial, t), constant(c))
    exponent = b.add(Opcode.NEGATE, b.add(Opcode.MULTIPLY, x, x))
    scaled = b.add(Opcode.MULTIPLY, b.add(Opcode.MULTIPLY, b.add(Opcode.EXPONENTIAL, exponent), t), polynomial)
    is_zero = b.compare(exponent, constant(UNDERFLOW), "LT")
    return b.add(Opcode.SELECT, is_zero, constant(0), scaled)


@cache
def _points() -> Array:
    """Return the points at which expansions are evaluated, dense where erfc is neither 0 nor 2."""
    rest = [-np.inf, -1e30, -100.0, -0.0, 1e-30, 100.0, 1e30, np.inf, np.nan]
    return np.concatenate([np.linspace(-11, 11, 1761), rest]).astype(np.float32)


def _values(i: HloInstruction, x: HloInstruction, points: Array) -> Array | None:
    """Return the values of an expression of few instructions on `x` and constants; None if it is none."""
    values: dict[HloInstruction, Array | None] = {x: points}
    with np.errstate(all="ignore"):
        found = _evaluate(i, values)
    return found if len(values) <= LARGEST_EXPANSION else None


def _agree(values: Array, wanted: Array) -> bool:
    return np.allclose(values, wanted, rtol=TOLERANCE, atol=float(np.finfo(np.float32).tiny), equal_nan=True)


def _evaluate(i: HloInstruction, values: dict[HloInstruction, Array | None]) -> Array | None:
    """Return the values of an instruction at the sampled points; None if it is not such an expression."""
    if i in values or len(values) > LARGEST_EXPANSION:
        return values.get(i)
    values[i] = None
    constant = splat_value(i)
    if constant is not None:
        values[i] = np.asarray(constant)
        return values[i]
    function = _COMPARISONS.get(i.attributes["direction"]) if is_op(i, Opcode.COMPARE) else _FUNCTIONS.get(i.opcode)
    if function is None:
        return None
    operands = [_evaluate(o, values) for o in i.operands]
    if any(o is None for o in operands):
        return None
    values[i] = function(*operands)
    return values[i]


_FUNCTIONS: Mapping[Opcode, Callable[..., Array]] = {
    Opcode.ADD: np.add,
    Opcode.SUBTRACT: np.subtract,
    Opcode.MULTIPLY: np.multiply,
    Opcode.DIVIDE: np.divide,
    Opcode.NEGATE: np.negative,
    Opcode.ABS: np.abs,
    Opcode.EXPONENTIAL: np.exp,
    Opcode.SELECT: np.where,
}
_COMPARISONS: Mapping[str, Callable[..., Array]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip
