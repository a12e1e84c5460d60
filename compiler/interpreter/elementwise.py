"""Evaluators of elementwise ops on floats, complex numbers and booleans, and the dispatch by element type.

Functions broadcast their operands like numpy, so that the same evaluators can run scalar computations on whole arrays
(`scalars.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.errors import InterpreterError
from compiler.interpreter import integers
from compiler.interpreter.precision import in_compute_type, is_direct, total_order_key, widen
from compiler.interpreter.registry import Array, array_evaluator, specialiser
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

Function = Callable[..., Array]


def _round_away(x: Array) -> Array:
    whole = np.trunc(x)
    away = whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(x.dtype.type(1), x), x.dtype.type(0))
    return np.asarray(np.copysign(away, x))


def _sign(x: Array) -> Array:
    """Return -1, 1, or x itself if it is zero or NaN; x / |x| for complex numbers."""
    if np.iscomplexobj(x):
        size = np.abs(x)
        return np.where(np.isnan(size), x, np.where(size == 0, 0, x / np.where(size == 0, 1, size))).astype(x.dtype)
    return np.where((x == 0) | np.isnan(x), x, np.copysign(x.dtype.type(1), x))


def _logistic(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def _log_plus_one(x: Array) -> Array:
    """Return log(1 + x); NumPy's loses the digits of small complex numbers."""
    if not np.iscomplexobj(x):
        return np.asarray(np.log1p(x))
    re, im = x.real.astype(np.float64), x.imag.astype(np.float64)
    near = (np.abs(re) < 0.5) & (np.abs(im) < 0.5)
    size = np.where(near, np.log1p(np.where(near, re * (re + 2) + im * im, 0)) / 2, np.log(np.hypot(re + 1, im)))
    out = np.empty_like(x)
    out.real, out.imag = size, np.arctan2(im, re + 1)
    return out


def _rsqrt(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / np.sqrt(x))


def _erf(x: Array) -> Array:
    from scipy import special  # importing SciPy takes longer than the rest of the interpreter

    return np.asarray(special.erf(x))


def _maximum(x: Array, y: Array) -> Array:
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y))


def _minimum(x: Array, y: Array) -> Array:
    return np.where((x == 0) & (y == 0), -(-x - y), np.minimum(x, y))


def _atan2(y: Array, x: Array) -> Array:
    """Return the angle of x + iy, for complex x and y the principal value of its continuation."""
    if not np.iscomplexobj(y):
        return np.asarray(np.arctan2(y, x))
    return np.asarray(-1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)), y.dtype)


_FLOAT: dict[Opcode, Function] = {
    Opcode.ABS: np.abs,
    Opcode.ACOS: np.arccos,
    Opcode.ACOSH: np.arccosh,
    Opcode.ASIN: np.arcsin,
    Opcode.ASINH: np.arcsinh,
    Opcode.ATANH: np.arctanh,
    Opcode.CBRT: np.cbrt,
    Opcode.CEIL: np.ceil,
    Opcode.COSINE: np.cos,
    Opcode.COSH: np.cosh,
    Opcode.ERF: _erf,
    Opcode.EXPONENTIAL: np.exp,
    Opcode.EXPONENTIAL_MINUS_ONE: np.expm1,
    Opcode.FLOOR: np.floor,
    Opcode.LOG: np.log,
    Opcode.LOG_PLUS_ONE: _log_plus_one,
    Opcode.LOGISTIC: _logistic,
    Opcode.NEGATE: np.negative,
    Opcode.ROUND_NEAREST_AFZ: _round_away,
    Opcode.ROUND_NEAREST_EVEN: np.rint,
    Opcode.RSQRT: _rsqrt,
    Opcode.SIGN: _sign,
    Opcode.SINE: np.sin,
    Opcode.SINH: np.sinh,
    Opcode.SQRT: np.sqrt,
    Opcode.TAN: np.tan,
    Opcode.TANH: np.tanh,
    Opcode.ADD: np.add,
    Opcode.SUBTRACT: np.subtract,
    Opcode.MULTIPLY: np.multiply,
    Opcode.DIVIDE: np.divide,
    Opcode.REMAINDER: np.fmod,
    Opcode.POWER: np.power,
    Opcode.MAXIMUM: _maximum,
    Opcode.MINIMUM: _minimum,
    Opcode.ATAN2: _atan2,
}

_PRED: dict[Opcode, Function] = {
    Opcode.NOT: np.logical_not,
    Opcode.ADD: np.logical_or,
    Opcode.MULTIPLY: np.logical_and,
    Opcode.MAXIMUM: np.logical_or,
    Opcode.MINIMUM: np.logical_and,
    Opcode.AND: np.logical_and,
    Opcode.OR: np.logical_or,
    Opcode.XOR: np.logical_xor,
    Opcode.ABS: np.positive,
}


def function_for(opcode: Opcode, t: T) -> Function:
    """Return the numpy function of an elementwise opcode for operands of type `t`, in their compute type."""
    if t.is_float or t.is_complex:
        found = _FLOAT.get(opcode)
    elif t is T.PRED:
        found = _PRED.get(opcode)
    else:
        found = integers.FUNCTIONS.get(opcode)
    if found is None:
        raise InterpreterError(f"{opcode.text} is not defined on {t.text}")
    return found


@array_evaluator(*(_FLOAT.keys() | _PRED.keys() | integers.FUNCTIONS.keys()))
def _elementwise(instruction: HloInstruction, *operands: Array) -> Array:
    t = instruction.operands[0].shape.element_type
    if instruction.opcode is Opcode.ABS and t.is_complex:
        return np.abs(operands[0])
    if t.is_integer and t.bits < 8 and instruction.opcode in integers.BIT_FUNCTIONS:
        return integers.on_small_type(instruction.opcode, t, *operands)
    return in_compute_type(function_for(instruction.opcode, t), t, *operands)


@specialiser(*(_FLOAT.keys() | _PRED.keys() | integers.FUNCTIONS.keys()))
def _elementwise_of(instruction: HloInstruction) -> Function | None:
    """Return the numpy function itself if numpy computes in the element type."""
    t = instruction.operands[0].shape.element_type
    if not is_direct(t) or (instruction.opcode is Opcode.ABS and t.is_complex):
        return None
    return function_for(instruction.opcode, t)


@array_evaluator(Opcode.IS_FINITE)
def _is_finite(instruction: HloInstruction, x: Array) -> Array:
    return np.isfinite(widen(x, instruction.operands[0].shape.element_type))


@array_evaluator(Opcode.REAL)
def _real(instruction: HloInstruction, x: Array) -> Array:
    return np.real(x)


@array_evaluator(Opcode.IMAG)
def _imag(instruction: HloInstruction, x: Array) -> Array:
    return np.imag(x) if np.iscomplexobj(x) else np.zeros_like(x)


@array_evaluator(Opcode.COMPLEX)
def _complex(instruction: HloInstruction, re: Array, im: Array) -> Array:
    re, im = np.broadcast_arrays(re, im)
    out = np.empty(re.shape, np.complex64 if re.dtype == np.float32 else np.complex128)
    out.real, out.imag = re, im
    return out


_COMPARISONS: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@array_evaluator(Opcode.COMPARE)
def _compare(instruction: HloInstruction, x: Array, y: Array) -> Array:
    t = instruction.operands[0].shape.element_type
    compare = _COMPARISONS[instruction.attr("direction")]
    if instruction.attr("type") == "TOTALORDER" and t.is_float:
        return compare(total_order_key(widen(x, t)), total_order_key(widen(y, t)))
    if t.is_narrow_float:
        return compare(x.astype(np.float32), y.astype(np.float32))
    if t.is_integer and t.bits < 8:
        return compare(x.astype(np.int8), y.astype(np.int8))
    return compare(x, y)


@specialiser(Opcode.COMPARE)
def _compare_of(instruction: HloInstruction) -> Function | None:
    t = instruction.operands[0].shape.element_type
    if instruction.attr("type") == "TOTALORDER" or not is_direct(t):
        return None
    return _COMPARISONS[instruction.attr("direction")]


def _choose(pred: Array, on_true: Array, on_false: Array) -> Array:
    if pred.ndim == 0:
        return on_true if pred else on_false
    return np.where(pred, on_true, on_false)


@array_evaluator(Opcode.SELECT)
def _select(instruction: HloInstruction, pred: Array, on_true: Array, on_false: Array) -> Array:
    return _choose(pred, on_true, on_false)


@specialiser(Opcode.SELECT)
def _select_of(instruction: HloInstruction) -> Function:
    return _choose


@array_evaluator(Opcode.CLAMP)
def _clamp(instruction: HloInstruction, low: Array, x: Array, high: Array) -> Array:
    t = instruction.operands[1].shape.element_type
    return in_compute_type(lambda a, b, c: np.minimum(np.maximum(b, a), c), t, low, x, high)
