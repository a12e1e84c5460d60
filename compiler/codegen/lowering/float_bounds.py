"""Bounds of the floats of a kernel that follow from its code, such as those of a value that is quantized."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_ROUNDED = {
    Opcode.FLOOR: (math.floor, math.floor), Opcode.CEIL: (math.ceil, math.ceil),
    Opcode.ROUND_NEAREST_EVEN: (math.floor, math.ceil), Opcode.ROUND_NEAREST_AFZ: (math.floor, math.ceil),
}  # fmt: skip
"""Bounds of rounded values from those of the values."""


class FloatBounds:
    """The bounds of values by name: each is NaN or in [low, high]."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def set_literal(self, name: str, value: float) -> None:
        """Record a constant."""
        if not math.isnan(value):
            self._known[name] = value, value

    def set_result(self, name: str, op: ScalarOp, args: Sequence[str]) -> None:
        """Record what is known of the result of an op."""
        if not (op.type.is_float and op.result is op.type):
            return
        low, high = self._result(op.opcode, [self._known.get(a, (-math.inf, math.inf)) for a in args])
        if low <= high and (low, high) != (-math.inf, math.inf):
            self._known[name] = low, high

    def fit(self, name: str, t: T) -> bool:
        """Check whether a value is known to be NaN or in the range of an integer type."""
        low, high = self._known.get(name, (-math.inf, math.inf))
        least, most = (-(2 ** (t.bits - 1)), 2 ** (t.bits - 1) - 1) if t.is_signed else (0, 2**t.bits - 1)
        return least <= low and high <= most

    def _result(self, opcode: Opcode, given: Sequence[tuple[float, float]]) -> tuple[float, float]:
        if opcode is Opcode.CLAMP:
            low, x, high = given
            return _least(_greatest(x, low), high)
        if opcode is Opcode.MAXIMUM:
            return _greatest(*given)
        if opcode is Opcode.MINIMUM:
            return _least(*given)
        if opcode in _ROUNDED and all(map(math.isfinite, given[0])):
            down, up = _ROUNDED[opcode]
            return down(given[0][0]), up(given[0][1])
        return -math.inf, math.inf


def _greatest(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return max(a[0], b[0]), max(a[1], b[1])


def _least(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), min(a[1], b[1])
