"""Random rounding errors in the interpreter, which show how far rounding may move the outputs of a program.

A compiler may reassociate sums, contract products, keep half-precision values unrounded inside a fusion or call another
library. Each of these moves the result of an op by a few units in its last place, or in the last place of the terms of
a sum. `RandomRounding` moves the results of all inexact ops by as much at random. How far the outputs then move shows
how well conditioned each of their elements is (Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.interpreter import Evaluator
from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Value
from compiler.interpreter.scalars import binary_opcode
from compiler.ir import HloInstruction, Opcode

__all__ = ["Precision", "RandomRounding", "is_float", "precision"]

Array = npt.NDArray[Any]

SUM_STEPS, LONG_SUM = 2.0, 3.0
"""The error of a sum of n terms, in units in the last place of the terms' magnitudes and of the result: up to
`SUM_STEPS * (magnitudes + sqrt(n) / LONG_SUM * |result|)`. Each partial sum is rounded; they grow like the magnitudes
where the terms have mixed signs, and like the result where they do not."""
ABSORBED = 0.125
"""Part of a unit in the last place of a number below which another one is lost when the two are added."""
HALF_BYTES = 2
"""Size of the types that kernels hold in float32: their results need not be rounded before they are used."""
LARGEST_WHOLE = float(1 << 20)
"""Sums of integers are treated as exact up to this magnitude."""

_CORRECTLY_ROUNDED: dict[Opcode, Callable[..., Array]] = {
    Opcode.ADD: np.add,
    Opcode.SUBTRACT: np.subtract,
    Opcode.MULTIPLY: np.multiply,
    Opcode.DIVIDE: np.divide,
}
"""If the exact result is representable, every implementation returns it (but see `_is_exact`)."""
_ROUNDED = frozenset(
    {
        Opcode.ACOS, Opcode.ACOSH, Opcode.ASIN, Opcode.ASINH, Opcode.ATAN2, Opcode.ATANH, Opcode.CBRT, Opcode.COSH,
        Opcode.COSINE, Opcode.ERF, Opcode.EXPONENTIAL, Opcode.EXPONENTIAL_MINUS_ONE, Opcode.LOG, Opcode.LOG_PLUS_ONE,
        Opcode.LOGISTIC, Opcode.RSQRT, Opcode.SINE, Opcode.SINH, Opcode.SQRT, Opcode.TAN, Opcode.TANH,
    }
)  # fmt: skip
_COMBINERS = {
    Opcode.REDUCE: "to_apply",
    Opcode.REDUCE_WINDOW: "to_apply",
    Opcode.SCATTER: "to_apply",
    Opcode.SELECT_AND_SCATTER: "scatter",
}
_LIBRARY = frozenset(
    {
        Opcode.BATCH_NORM_GRAD, Opcode.BATCH_NORM_INFERENCE, Opcode.BATCH_NORM_TRAINING, Opcode.CHOLESKY,
        Opcode.TRIANGULAR_SOLVE,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """The precision of a floating-point type.

    Attributes:
        bits: number of bits of the mantissa, without the implicit leading one.
        eps: distance from 1 to the next number.
        tiny: the smallest normal number.
        smallest: the smallest positive number.
        steps: units in the last place by which implementations of one op may differ: float32 and float64 have functions
            that differ by a few; narrower types are computed in float32 and rounded once.
    """

    bits: int
    eps: float
    tiny: float
    smallest: float
    steps: float


@cache
def precision(dtype: np.dtype[Any]) -> Precision:
    """Return the precision of a floating-point type, or of the parts of a complex one."""
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    info: Any = ml_dtypes.finfo(real)  # type: ignore[no-untyped-call]
    steps = 8.0 if real.itemsize >= 4 else 1.0
    return Precision(int(info.nmant), float(info.eps), float(info.tiny), float(info.smallest_subnormal), steps)


@cache
def is_float(dtype: np.dtype[Any]) -> bool:
    """Check whether a type holds rounded numbers, real or complex."""
    if dtype.kind in "biufc":
        return dtype.kind in "fc"
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


class RandomRounding:
    """Random rounding errors from a seed; `decorate` goes into the interpreter's context.

    Ops that move, compare, select or convert values are exact, and so is arithmetic on numbers with few digits.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def decorate(self, instruction: HloInstruction, evaluator: Evaluator) -> Evaluator:
        """Return an evaluator with random errors in its results; the evaluator itself for an exact op."""
        opcode = instruction.opcode
        if not any(s.is_array and is_float(s.dtype) for s in instruction.shape.leaves()):
            return evaluator
        if opcode in _CORRECTLY_ROUNDED:
            return self._correctly_rounded(evaluator)
        is_modulus = opcode is Opcode.ABS and instruction.operands[0].shape.element_type.is_complex
        if opcode in _ROUNDED or is_modulus:
            return self._rounded(evaluator)
        if opcode is Opcode.POWER:
            return self._raised(evaluator)
        if opcode in (Opcode.DOT, Opcode.CONVOLUTION):
            return self._summed(evaluator)
        if opcode in _COMBINERS and not instruction.shape.is_tuple:
            combiner = binary_opcode(instruction.attr(_COMBINERS[opcode]))
            # A general combiner is a computation whose own ops are decorated.
            how = {Opcode.ADD: self._summed, Opcode.MULTIPLY: self._rounded}.get(combiner or Opcode.CALL)
            return evaluator if how is None else how(evaluator)
        if opcode is Opcode.FFT:
            return self._transformed(evaluator)
        if opcode in _LIBRARY or str(instruction.attr("custom_call_target", "")).startswith("lapack_"):
            return self._backward_stable(evaluator)
        return evaluator

    # ---- kinds of ops

    def _rounded(self, evaluator: Evaluator) -> Evaluator:
        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            return self._perturbed(np.asarray(evaluator(machine, instruction, values)))

        return run

    def _raised(self, evaluator: Evaluator) -> Evaluator:
        """Perturb a power, which may be `exp(y * log(x))`, so that its error grows with the exponent."""

        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            x = np.asarray(evaluator(machine, instruction, values))
            size = np.abs(x)
            return self._perturbed_sum(x, size * (1 + np.abs(np.log(_wide(size)))), precision(x.dtype).steps)

        return run

    def _correctly_rounded(self, evaluator: Evaluator) -> Evaluator:
        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            operands = [np.asarray(v) for v in values]
            x = np.asarray(evaluator(machine, instruction, values))
            where = ~_is_exact(instruction.opcode, operands, x)
            if x.dtype.kind == "c" or x.dtype.itemsize != HALF_BYTES:
                return self._perturbed(x, where)
            return self._perturbed(x, where, _CORRECTLY_ROUNDED[instruction.opcode](*map(_wide, operands)))

        return run

    def _summed(self, evaluator: Evaluator) -> Evaluator:
        """Perturb a sum in proportion to the sum of its terms' magnitudes, which is the op applied to magnitudes."""

        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            sizes = np.abs(np.asarray(evaluator(machine, instruction, [_magnitude(v) for v in values])))
            result = np.asarray(evaluator(machine, instruction, values))
            rounded = _are_rounded(sizes, values)
            growth = math.sqrt(_terms(instruction)) / LONG_SUM
            return self._perturbed_sum(
                result, _wide(sizes) + _wide(np.abs(result)) * np.float32(growth), SUM_STEPS, rounded
            )

        return run

    def _transformed(self, evaluator: Evaluator) -> Evaluator:
        """Perturb a Fourier transform, whose errors are spread evenly over its outputs."""

        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            result = np.asarray(evaluator(machine, instruction, values))
            axes = tuple(range(result.ndim - len(instruction.attr("fft_length")), result.ndim))
            power = np.mean(np.abs(result) ** 2, axis=axes, keepdims=True) if result.size else result
            return self._perturbed_sum(
                result, np.broadcast_to(np.sqrt(power), result.shape), precision(result.dtype).steps
            )

        return run

    def _backward_stable(self, evaluator: Evaluator) -> Evaluator:
        """Perturb operands and results, because a stable algorithm returns the exact result for perturbed operands."""

        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            return self._perturbed_value(evaluator(machine, instruction, [self._perturbed_value(v) for v in values]))

        return run

    # ---- errors

    def _perturbed_value(self, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(self._perturbed_value(v) for v in value)
        return self._perturbed(value) if is_float(value.dtype) else value

    def _perturbed(self, x: Array, where: Array | None = None, unrounded: Array | None = None) -> Array:
        """Return `x` perturbed by up to some units in the last place of each element (of its modulus, if complex).

        What is perturbed is `unrounded`, if it is given: the mean of many perturbed numbers is then the exact one,
        where rounding may have moved all of them in one direction, as in `x + y` with the same small y for many x.
        """
        if x.dtype.kind == "c":
            return self._perturbed_sum(x, np.abs(x), precision(x.dtype).steps)
        value, p = _wide(x) if unrounded is None else unrounded, precision(x.dtype)
        steps = np.maximum(np.abs(value) * value.dtype.type(p.eps), value.dtype.type(p.smallest))
        steps *= value != 0 if where is None else where
        return self._moved(value, steps, p.steps).astype(x.dtype, copy=False)

    def _perturbed_sum(self, x: Array, sizes: Array, most: float, where: Array | None = None) -> Array:
        """Return `x` perturbed by up to `most` units in the last place of `sizes`.

        Narrower types than float32 are perturbed in float32 and then rounded.
        """
        if x.dtype.kind == "c":
            out = np.empty(x.shape, x.dtype)
            out.real = self._perturbed_sum(np.asarray(x.real), sizes, most, where)
            out.imag = self._perturbed_sum(np.asarray(x.imag), sizes, most, where)
            return out
        value = _wide(x)
        steps = _wide(sizes) * value.dtype.type(precision(value.dtype).eps)
        if where is not None:
            steps *= where
        moved = self._moved(value, steps, most)
        return moved if x.dtype == moved.dtype else self._perturbed(moved.astype(x.dtype), where)

    def _moved(self, value: Array, steps: Array, most: float) -> Array:
        noise = np.asarray(self._rng.random(value.shape, value.dtype), value.dtype)
        noise -= value.dtype.type(0.5)
        noise *= steps
        noise *= value.dtype.type(2 * most)
        return np.where(np.isfinite(noise), value + noise, value)


def _is_exact(opcode: Opcode, operands: Sequence[Array], result: Array) -> Array:
    """Return where a result of arithmetic is not rounded."""
    if result.dtype.kind == "c":
        return np.zeros(result.shape, np.bool_)
    if result.dtype.itemsize == 8:
        exact = ~looks_inexact(result)
    else:
        wide = [o.astype(np.float64) for o in operands]
        exact = np.asarray(_CORRECTLY_ROUNDED[opcode](*wide) == result.astype(np.float64))
    if opcode is Opcode.DIVIDE:  # which may be a multiplication by the reciprocal, if that is representable
        exact &= np.abs(np.frexp(operands[1].astype(np.float64))[0]) == 0.5
    if opcode in (Opcode.ADD, Opcode.SUBTRACT) and result.dtype.itemsize >= 4:  # narrower sums may not be rounded
        exact |= _is_absorbed(*operands)
    return exact


def _is_absorbed(a: Array, b: Array) -> Array:
    """Return where a sum is its larger term in any implementation, as that of a number and a mask of -1e30 is.

    Moved by a few units in its last place, such a mask would differ from an equal one by more than any other number.
    """
    sizes = np.abs(a), np.abs(b)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.minimum(*sizes) < np.maximum(*sizes) * (ABSORBED * precision(a.dtype).eps))


def looks_inexact(x: Array) -> npt.NDArray[np.bool_]:
    """Return where a number is most likely rounded: it is no small integer, and its last bits are not all zero."""
    value, bits = _wide(x), precision(x.dtype).bits
    fraction = np.asarray((np.abs(value) > LARGEST_WHOLE) | (value != np.rint(value)))
    if bits < 7:
        return fraction
    pattern = np.asarray(x, order="C").view(np.dtype(f"u{x.dtype.itemsize}"))
    last = pattern.dtype.type((1 << (bits + 1) // 2) - 1)
    return np.asarray(fraction & ((pattern & last) != 0))


def _are_rounded(sums: Array, values: Sequence[Value]) -> npt.NDArray[np.bool_]:
    """Return where a sum of the magnitudes of values is most likely rounded: all that are not 0 if most of them are.

    The last bits of one sum of thousands are zero by chance. Narrow types have few bits: a large sum is an integer
    even if it is rounded, so their sums are exact only if all values are whole, and the sums not too large.
    """
    rest = np.asarray(sums != 0)
    if sums.dtype.itemsize < 4:
        arrays = [_wide(v) for v in values if not isinstance(v, tuple) and is_float(v.dtype)]
        if not all(np.array_equal(a, np.rint(a)) for a in arrays):
            return rest
        return rest & np.asarray(_wide(sums) > 2.0 ** (precision(sums.dtype).bits + 1))
    found = looks_inexact(sums)
    return rest if 2 * np.count_nonzero(found) > np.count_nonzero(rest) else found


def _wide(x: Array) -> Array:
    """Return values in the type they are computed in."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def _magnitude(value: Value) -> Value:
    if isinstance(value, tuple) or not is_float(value.dtype):
        return value
    return np.asarray(np.abs(value)).astype(value.dtype)


def _terms(instruction: HloInstruction) -> float:
    """Return about how many terms each element of a sum has."""
    left = instruction.operands[0].shape
    match instruction.opcode:
        case Opcode.DOT:
            return float(math.prod(left.dimensions[d] for d in instruction.attr("lhs_contracting_dims", ())))
        case Opcode.CONVOLUTION:
            kernel, labels = instruction.operands[1].shape, instruction.attr("dim_labels")
            return float(kernel.num_elements / max(1, kernel.dimensions[labels.rhs.index("o")]))
        case Opcode.REDUCE:
            return left.num_elements / max(1, instruction.shape.num_elements)
        case Opcode.REDUCE_WINDOW:
            return float(math.prod(w.size for w in instruction.attr("window").dims))
        case _:
            return instruction.operands[-1].shape.num_elements / max(1, left.num_elements)
