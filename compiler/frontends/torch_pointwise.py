"""Lowerings of elementwise ATen ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, broadcast_dims, in_single_precision
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction

_UNARY = {
    "exp": Opcode.EXPONENTIAL, "expm1": Opcode.EXPONENTIAL_MINUS_ONE, "log": Opcode.LOG,
    "log1p": Opcode.LOG_PLUS_ONE, "sqrt": Opcode.SQRT, "rsqrt": Opcode.RSQRT, "sin": Opcode.SINE,
    "cos": Opcode.COSINE, "tan": Opcode.TAN, "tanh": Opcode.TANH, "sinh": Opcode.SINH, "cosh": Opcode.COSH,
    "asin": Opcode.ASIN, "acos": Opcode.ACOS, "asinh": Opcode.ASINH, "acosh": Opcode.ACOSH, "atanh": Opcode.ATANH,
    "sigmoid": Opcode.LOGISTIC, "erf": Opcode.ERF, "neg": Opcode.NEGATE,
    "_neg_view": Opcode.NEGATE,
}  # fmt: skip
_BINARY = {
    "mul": Opcode.MULTIPLY, "maximum": Opcode.MAXIMUM, "minimum": Opcode.MINIMUM, "atan2": Opcode.ATAN2,
    "bitwise_and": Opcode.AND, "bitwise_or": Opcode.OR, "bitwise_xor": Opcode.XOR, "pow": Opcode.POWER,
    "bitwise_left_shift": Opcode.SHIFT_LEFT, "__lshift__": Opcode.SHIFT_LEFT, "fmod": Opcode.REMAINDER,
}  # fmt: skip
_COMPARE = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_LOGICAL = {"logical_and": Opcode.AND, "logical_or": Opcode.OR, "logical_xor": Opcode.XOR}


def _unary(opcode: Opcode) -> Any:
    return lambda b, x: b.add(opcode, b.convert(x, b.out.element_type))


def _rounded(opcode: Opcode) -> Any:
    return lambda b, x: x if x.shape.element_type.is_integer else b.add(opcode, x)


def _is_signed(x: H) -> bool:
    t = x.shape.element_type
    return t.is_signed or t.is_float or t.is_complex


@LOWERINGS.op("abs")
def _abs(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.ABS, x) if _is_signed(x) else x


@LOWERINGS.op("sign")
def _sign(b: TorchBuilder, x: H) -> H:
    """Return the sign, which is 0 for NaN in PyTorch."""
    t = b.out.element_type
    if t.is_float:
        positive, negative = (b.convert(b.compare(x, 0, order), t) for order in ("GT", "LT"))
        return b.binary(Opcode.SUBTRACT, positive, negative, t)
    return b.add(Opcode.SIGN, x) if _is_signed(x) else b.convert(b.convert(x, T.PRED), t)


def _binary(opcode: Opcode) -> Any:
    return lambda b, x, y: b.binary(opcode, x, y)


def _by_numbers(lowering: Callable[..., H]) -> Callable[..., H]:
    """Return a lowering that computes half-precision results in float32 if an operand is a number or has no dimensions.

    PyTorch's kernels for multiplication and division do not round such an operand to the half type of the other one.
    """
    wide = in_single_precision(lowering)

    def chosen(b: TorchBuilder, x: Any, y: Any, **options: Any) -> H:
        numbers = any(not isinstance(v, H) or not v.shape.rank for v in (x, y))
        return (wide if numbers else lowering)(b, x, y, **options)

    return chosen


def _compare(direction: str) -> Any:
    return lambda b, x, y: b.compare(x, y, direction)


def _logical(opcode: Opcode) -> Any:
    return lambda b, x, y: b.binary(opcode, x, y, T.PRED)


LOWERINGS.update({name: _unary(opcode) for name, opcode in _UNARY.items()})
LOWERINGS.update(floor=_rounded(Opcode.FLOOR), ceil=_rounded(Opcode.CEIL))
LOWERINGS.update({name: _binary(opcode) for name, opcode in _BINARY.items()})
LOWERINGS["mul"] = _by_numbers(LOWERINGS["mul"])
LOWERINGS.update({name: _compare(direction) for name, direction in _COMPARE.items()})
LOWERINGS.update({name: _logical(opcode) for name, opcode in _LOGICAL.items()})


@LOWERINGS.op("bitwise_right_shift", "__rshift__")
def _shift_right(b: TorchBuilder, x: Any, y: Any) -> H:
    signed = b.out.element_type.is_signed
    return b.binary(Opcode.SHIFT_RIGHT_ARITHMETIC if signed else Opcode.SHIFT_RIGHT_LOGICAL, x, y)


@LOWERINGS.op("clone", "alias", "detach", "lift_fresh", "contiguous")
def _same(b: TorchBuilder, x: H, **_: Any) -> H:
    return x


@LOWERINGS.op("_to_copy", "to")
def _to_copy(b: TorchBuilder, x: H, *_: Any, **__: Any) -> H:
    return b.convert(x, b.out.element_type)


@LOWERINGS.op("add")
def _add(b: TorchBuilder, x: Any, y: Any, alpha: Any = 1) -> H:
    return _scaled_sum(b, Opcode.OR if b.out.element_type is T.PRED else Opcode.ADD, x, y, alpha)


@LOWERINGS.op("sub")
def _sub(b: TorchBuilder, x: Any, y: Any, alpha: Any = 1) -> H:
    return _scaled_sum(b, Opcode.SUBTRACT, x, y, alpha)


@LOWERINGS.op("rsub")
def _rsub(b: TorchBuilder, x: Any, y: Any, alpha: Any = 1) -> H:
    return _scaled_sum(b, Opcode.SUBTRACT, y, x, alpha)


def _scaled(b: TorchBuilder, x: Any, factor: Any) -> Any:
    return x if factor == 1 else b.binary(Opcode.MULTIPLY, x, factor) if isinstance(x, H) else x * factor


def _scaled_sum(b: TorchBuilder, opcode: Opcode, x: Any, y: Any, alpha: Any) -> H:
    """Add or subtract `alpha` times `y`; PyTorch rounds `alpha` to the type of the result, but not the product."""
    if alpha == 1:
        return b.binary(opcode, x, y)
    t = b.out.element_type
    if not t.is_half:
        return b.binary(opcode, x, _scaled(b, y, alpha))
    x, y, alpha = (b.operand(v, t, broadcast_dims(v)) for v in (x, y, alpha))
    return b.convert(b.binary(opcode, x, b.binary(Opcode.MULTIPLY, y, alpha, T.F32), T.F32), t)


def trunc(b: TorchBuilder, x: H) -> H:
    """Round towards zero."""
    if x.shape.element_type.is_integer:
        return x
    positive = b.add(Opcode.COMPARE, x, b.full(0, x.shape), direction="GE")
    return b.add(Opcode.SELECT, positive, b.add(Opcode.FLOOR, x), b.add(Opcode.CEIL, x))


LOWERINGS["trunc"] = trunc


@LOWERINGS.op("div")
@_by_numbers
def _div(b: TorchBuilder, x: Any, y: Any, rounding_mode: str | None = None) -> H:
    if rounding_mode == "floor" and b.out.element_type.is_integer:
        return divide_rounding_down(b, x, y)
    if rounding_mode == "floor":
        return _floor_quotient(b, x, y)
    quotient = b.binary(Opcode.DIVIDE, x, y)
    return trunc(b, quotient) if rounding_mode == "trunc" else quotient


@in_single_precision
def _floor_quotient(b: TorchBuilder, x: Any, y: Any) -> H:
    """Divide like Python: via the remainder, because the rounded quotient may reach the next integer."""
    t = b.type
    dims = b.out.dimensions
    x, y = b.operand(x, t, dims), b.operand(y, t, dims)
    rest, zero = b.add(Opcode.REMAINDER, x, y), b.full(0, x.shape)
    inexact = b.add(Opcode.COMPARE, rest, zero, direction="NE")
    below = b.add(Opcode.COMPARE, rest, zero, direction="LT")
    opposite = b.add(Opcode.XOR, below, b.add(Opcode.COMPARE, y, zero, direction="LT"))
    whole = b.add(Opcode.DIVIDE, b.add(Opcode.SUBTRACT, x, rest), y)
    whole = b.select(b.add(Opcode.AND, inexact, opposite), b.binary(Opcode.SUBTRACT, whole, 1, t), whole, t)
    floor = b.add(Opcode.FLOOR, whole)
    up = b.compare(b.add(Opcode.SUBTRACT, whole, floor), 0.5, "GT")
    floor = b.select(up, b.binary(Opcode.ADD, floor, 1, t), floor, t)
    quotient = b.add(Opcode.DIVIDE, x, y)
    signed_zero = b.binary(Opcode.MULTIPLY, quotient, 0, t)
    result = b.select(b.compare(whole, 0, "EQ"), signed_zero, floor, t)
    return b.select(b.add(Opcode.COMPARE, y, zero, direction="EQ"), quotient, result, t)


def divide_rounding_down(b: TorchBuilder, x: Any, y: Any) -> H:
    """Return the quotient of integers rounded down; that of HLO is rounded towards zero."""
    quotient, rest = b.binary(Opcode.DIVIDE, x, y), b.binary(Opcode.REMAINDER, x, y)
    divisor = b.operand(y, rest.shape.element_type, rest.shape.dimensions)
    zero = b.full(0, rest.shape)
    opposite = b.add(
        Opcode.XOR,
        b.add(Opcode.COMPARE, rest, zero, direction="LT"),
        b.add(Opcode.COMPARE, divisor, zero, direction="LT"),
    )
    inexact = b.add(Opcode.COMPARE, rest, zero, direction="NE")
    less = b.add(Opcode.SUBTRACT, quotient, b.full(1, quotient.shape))
    return b.add(Opcode.SELECT, b.add(Opcode.AND, opposite, inexact), less, quotient)


@LOWERINGS.op("floor_divide")
def _floor_div(b: TorchBuilder, x: Any, y: Any) -> H:
    return _div(b, x, y, rounding_mode="floor")


@LOWERINGS.op("remainder")
@in_single_precision
def _remainder(b: TorchBuilder, x: Any, y: Any) -> H:
    """Return the remainder with the sign of the divisor; that of HLO has the sign of the dividend."""
    rest = b.binary(Opcode.REMAINDER, x, y)
    divisor = b.operand(y, rest.shape.element_type, rest.shape.dimensions)
    zero = b.full(0, rest.shape)
    opposite = b.add(
        Opcode.XOR,
        b.add(Opcode.COMPARE, rest, zero, direction="LT"),
        b.add(Opcode.COMPARE, divisor, zero, direction="LT"),
    )
    wrong = b.add(Opcode.AND, opposite, b.add(Opcode.COMPARE, rest, zero, direction="NE"))
    return b.add(Opcode.SELECT, wrong, b.add(Opcode.ADD, rest, divisor), rest)


def _logarithm(base: float) -> Any:
    """Return a lowering in double precision, so that powers of the base have integer logarithms."""

    def lowering(b: TorchBuilder, x: H) -> H:
        wide = T.C128 if b.out.element_type.is_complex else T.F64
        log = b.add(Opcode.LOG, b.convert(x, wide))
        return b.convert(b.binary(Opcode.DIVIDE, log, math.log(base), wide), b.out.element_type)

    return lowering


LOWERINGS.update(log2=_logarithm(2), log10=_logarithm(10))


@LOWERINGS.op("exp2")
def _exp2(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.POWER, 2.0, x)


@LOWERINGS.op("atan")
def _atan(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.ATAN2, x, 1)


@LOWERINGS.op("hypot")
@in_single_precision
def _hypot(b: TorchBuilder, x: H, y: H) -> H:
    """Scale by the larger operand, so that no square overflows; an infinity counts more than NaN, as in C."""
    t = b.out.element_type
    x, y = (b.add(Opcode.ABS, b.operand(v, t, b.out.dimensions)) for v in (x, y))
    large, small = b.binary(Opcode.MAXIMUM, x, y, t), b.binary(Opcode.MINIMUM, x, y, t)
    ratio = b.binary(Opcode.DIVIDE, small, b.select(b.compare(large, 0, "EQ"), 1, large, t), t)
    root = b.add(Opcode.SQRT, b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, ratio, ratio, t), 1, t))
    infinite = b.binary(Opcode.OR, b.compare(x, math.inf, "EQ"), b.compare(y, math.inf, "EQ"), T.PRED)
    return b.select(infinite, math.inf, b.binary(Opcode.MULTIPLY, large, root, t), t)


_SAME_WIDTH = {T.F16: T.S16, T.BF16: T.S16, T.F32: T.S32, T.F64: T.S64}


@LOWERINGS.op("signbit")
def _sign_bit(b: TorchBuilder, x: H) -> H:
    """Test the sign bit, also of zeros and NaN."""
    t = x.shape.element_type
    if t.is_float:
        x = b.add(Opcode.BITCAST_CONVERT, x, shape=x.shape.with_type(_SAME_WIDTH[t]))
    return b.compare(x, 0, "LT")


@LOWERINGS.op("copysign")
def _copy_sign(b: TorchBuilder, x: H, y: Any) -> H:
    t, dims = b.out.element_type, b.out.dimensions
    size = b.add(Opcode.ABS, b.operand(x, t, dims))
    return b.select(_sign_bit(b, b.operand(y, t, dims)), b.add(Opcode.NEGATE, size), size, t)


@LOWERINGS.op("reciprocal")
def _reciprocal(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.DIVIDE, 1, x)


@LOWERINGS.op("square")
def _square(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.MULTIPLY, x, x)


@LOWERINGS.op("logical_not")
def _logical_not(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.NOT, b.convert(x, T.PRED))


@LOWERINGS.op("bitwise_not")
def _bitwise_not(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.NOT, x)


@LOWERINGS.op("isnan")
def _isnan(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.COMPARE, x, x, direction="NE")


@LOWERINGS.op("isinf")
def _isinf(b: TorchBuilder, x: H) -> H:
    t = x.shape.element_type
    if not t.is_float and not t.is_complex:
        return b.full(False, b.out)
    return b.compare(b.add(Opcode.ABS, x), math.inf, "EQ")


@LOWERINGS.op("isfinite")
def _isfinite(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.IS_FINITE, x) if x.shape.element_type.is_float else b.full(True, b.out)


@LOWERINGS.op("where")
def _where(b: TorchBuilder, p: H, x: Any, y: Any) -> H:
    return b.select(p, x, y)


@LOWERINGS.op("masked_fill")
def _masked_fill(b: TorchBuilder, x: H, mask: H, value: Any) -> H:
    return b.select(mask, value, x)


@LOWERINGS.op("clamp", "hardtanh")
def _clamp(b: TorchBuilder, x: H, low: Any = None, high: Any = None, **bounds: Any) -> H:
    low, high = bounds.get("min", low), bounds.get("max", high)
    if b.what.startswith("aten.hardtanh"):
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    if low is not None:
        x = b.binary(Opcode.MAXIMUM, x, low)
    return x if high is None else b.binary(Opcode.MINIMUM, x, high)


@LOWERINGS.op("fmax", "fmin")
def _extreme_of_numbers(b: TorchBuilder, x: Any, y: Any) -> H:
    """Return the larger or smaller operand, and the number if the other one is NaN."""
    t, dims = b.out.element_type, b.out.dimensions
    x, y = b.operand(x, t, dims), b.operand(y, t, dims)
    found = b.add(Opcode.MAXIMUM if b.what.startswith("aten.fmax") else Opcode.MINIMUM, x, y)
    if not t.is_float:
        return found
    found = b.select(b.compare(x, x, "NE"), y, found, t)
    return b.select(b.compare(y, y, "NE"), x, found, t)


@LOWERINGS.op("addcmul")
@in_single_precision
def _addcmul(b: TorchBuilder, x: H, y: H, z: H, value: Any = 1) -> H:
    return b.binary(Opcode.ADD, x, _scaled(b, b.binary(Opcode.MULTIPLY, y, z), value))


@LOWERINGS.op("addcdiv")
@in_single_precision
def _addcdiv(b: TorchBuilder, x: H, y: H, z: H, value: Any = 1) -> H:
    return b.binary(Opcode.ADD, x, _scaled(b, b.binary(Opcode.DIVIDE, y, z), value))


@LOWERINGS.op("lerp")
@in_single_precision
def _lerp(b: TorchBuilder, x: H, y: H, weight: Any) -> H:
    return b.binary(Opcode.ADD, x, b.binary(Opcode.MULTIPLY, b.binary(Opcode.SUBTRACT, y, x), weight))


# ---- activations


@LOWERINGS.op("relu")
def _relu(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.MAXIMUM, x, 0)


@LOWERINGS.op("relu6")
def _relu6(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.MINIMUM, b.binary(Opcode.MAXIMUM, x, 0), 6)


@LOWERINGS.op("silu")
@in_single_precision
def _silu(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.MULTIPLY, x, b.add(Opcode.LOGISTIC, x))


@LOWERINGS.op("gelu")
@in_single_precision
def _gelu(b: TorchBuilder, x: H, approximate: str = "none") -> H:
    if approximate == "tanh":
        cube = b.binary(Opcode.MULTIPLY, b.binary(Opcode.MULTIPLY, x, x), x)
        inner = b.binary(Opcode.ADD, x, b.binary(Opcode.MULTIPLY, cube, 0.044715))
        inside = b.add(Opcode.TANH, b.binary(Opcode.MULTIPLY, inner, math.sqrt(2 / math.pi)))
    else:
        inside = b.add(Opcode.ERF, b.binary(Opcode.MULTIPLY, x, math.sqrt(0.5)))
    return b.binary(Opcode.MULTIPLY, b.binary(Opcode.MULTIPLY, x, 0.5), b.binary(Opcode.ADD, inside, 1))


@LOWERINGS.op("leaky_relu")
@in_single_precision
def _leaky_relu(b: TorchBuilder, x: H, slope: float = 0.01) -> H:
    return b.select(b.compare(x, 0, "GT"), x, b.binary(Opcode.MULTIPLY, x, slope))


@LOWERINGS.op("elu")
@in_single_precision
def _elu(b: TorchBuilder, x: H, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> H:
    below = b.add(Opcode.EXPONENTIAL_MINUS_ONE, b.binary(Opcode.MULTIPLY, x, input_scale))
    above = b.binary(Opcode.MULTIPLY, x, scale)
    return b.select(b.compare(x, 0, "GT"), above, b.binary(Opcode.MULTIPLY, below, alpha * scale))


@LOWERINGS.op("softplus")
@in_single_precision
def _softplus(b: TorchBuilder, x: H, beta: float = 1.0, threshold: float = 20.0) -> H:
    scaled = b.binary(Opcode.MULTIPLY, x, beta)
    soft = b.binary(Opcode.DIVIDE, b.add(Opcode.LOG_PLUS_ONE, b.add(Opcode.EXPONENTIAL, scaled)), beta)
    return b.select(b.compare(scaled, threshold, "GT"), x, soft)


def _hard_part(b: TorchBuilder, x: H) -> H:
    shifted = b.binary(Opcode.MINIMUM, b.binary(Opcode.MAXIMUM, b.binary(Opcode.ADD, x, 3), 0), 6)
    return b.binary(Opcode.DIVIDE, shifted, 6)


@LOWERINGS.op("hardsigmoid")
@in_single_precision
def _hardsigmoid(b: TorchBuilder, x: H) -> H:
    return _hard_part(b, x)


@LOWERINGS.op("hardswish")
@in_single_precision
def _hardswish(b: TorchBuilder, x: H) -> H:
    return b.binary(Opcode.MULTIPLY, x, _hard_part(b, x))


@LOWERINGS.op("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size")
def _assertion(b: TorchBuilder, *_: Any, **__: Any) -> None:
    """Drop a check of what the export has fixed."""
