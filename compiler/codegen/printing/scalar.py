"""Expressions of scalar ops and constants, which are valid in both C and CUDA C++.

An expression is a template over operand names (`{0}`, `{1}`...), chosen by opcode and type. f16 and bf16 are computed
in float. Values of the types in HELD_TYPES are integers, which conversions read and make. A new elementwise op is one
line here. The semantics are those of `compiler.interpreter`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from compiler.codegen.nest.scalar_ops import HELD_TYPES, ScalarOp
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

COMPUTE_TYPES: dict[T, str] = {
    T.PRED: "bool", T.S8: "int8_t", T.S16: "int16_t", T.S32: "int32_t", T.S64: "int64_t",
    T.U8: "uint8_t", T.U16: "uint16_t", T.U32: "uint32_t", T.U64: "uint64_t",
    T.F16: "float", T.BF16: "float", T.F32: "float", T.F64: "double",
}  # fmt: skip
COMPUTE_TYPES |= {t: COMPUTE_TYPES[held] for t, held in HELD_TYPES.items()}
"""C type in which values of an element type are computed."""

SMALL_INTEGERS = frozenset({T.S4, T.U4, T.S2, T.U2})
"""Integers of which each is in the lower bits of a byte."""

STORAGE_TYPES: dict[T, str] = {
    **COMPUTE_TYPES, T.PRED: "uint8_t", T.F16: "half_t", T.BF16: "bfloat16_t",
    **dict.fromkeys(SMALL_INTEGERS, "uint8_t"), T.C64: "complex64_t",
}  # fmt: skip
"""C type of an array element in memory."""


def wrapped(value: str, t: T) -> str:
    """Return the number that the lower bits of an integer are in a type of SMALL_INTEGERS."""
    if t.is_unsigned:
        return f"(uint8_t)(({value}) & {2**t.bits - 1})"
    sign = 2 ** (t.bits - 1)
    return f"(int8_t)(((({value}) & {2 * sign - 1}) ^ {sign}) - {sign})"


def _unsigned(t: T) -> str:
    return f"uint{max(32, t.bits)}_t"


def _wrapping(op: str, t: T) -> str:
    """Return two's complement arithmetic, in an unsigned type because signed overflow is undefined in C."""
    return f"({COMPUTE_TYPES[t]})(({_unsigned(t)}){{0}} {op} ({_unsigned(t)}){{1}})"


def _suffix(t: T) -> str:
    return "" if t is T.F64 else "f"


def _math(name: str) -> Callable[[T], str]:
    return lambda t: f"{name}{_suffix(t)}({{0}})"


def _lit(t: T, text: str) -> str:
    return text if t is T.F64 else text + "f"


def _int_min(t: T) -> str:
    if t in SMALL_INTEGERS:
        return str(-(2 ** (t.bits - 1)))
    return f"(({COMPUTE_TYPES[t]})((({_unsigned(t)})1) << {t.bits - 1}))"


def _arithmetic(op: str) -> Callable[[T], str]:
    def build(t: T) -> str:
        if t.is_float:
            return f"{{0}} {op} {{1}}"
        if t is T.PRED:
            return {"+": "({0} | {1})", "*": "({0} & {1})"}.get(op, "({0} ^ {1})")
        return _wrapping(op, t)

    return build


def _divide(t: T) -> str:
    if t.is_float:
        return "{0} / {1}"
    c = COMPUTE_TYPES[t]
    if t.is_signed:
        return f"({{1}} == 0 ? ({c})-1 : {{1}} == -1 ? ({c})(0 - ({_unsigned(t)}){{0}}) : ({c})({{0}} / {{1}}))"
    return f"({{1}} == 0 ? ({c})~({c})0 : ({c})({{0}} / {{1}}))"


def _remainder(t: T) -> str:
    if t.is_float:
        return f"fmod{_suffix(t)}({{0}}, {{1}})"
    c = COMPUTE_TYPES[t]
    if t.is_signed and t.bits < 32:
        # C computes in 32 bits, in which gcc compares a remainder then; what is left of a narrow quotient is narrow.
        multiple = _wrapping("*", t).format(f"({c})({{0}} / {{1}})", "{1}")
        return f"({{1}} == 0 ? {{0}} : {{1}} == -1 ? ({c})0 : {_wrapping('-', t).format('{0}', multiple)})"
    if t.is_signed:
        return f"({{1}} == 0 ? {{0}} : {{1}} == -1 ? ({c})0 : ({c})({{0}} % {{1}}))"
    return f"({{1}} == 0 ? {{0}} : ({c})({{0}} % {{1}}))"


def _extreme(name: str, better: str) -> Callable[[T], str]:
    """Return the extreme `name` of two values, of which {1} must be `better` than {0}; the first where they are equal.

    For floating-point numbers, which propagate NaN, the preambles have functions.
    """

    def build(t: T) -> str:
        if t.is_float:
            return f"{name}_{'f64' if t is T.F64 else 'f32'}({{0}}, {{1}})"
        return f"({{1}} {better} {{0}} ? {{1}} : {{0}})"

    return build


_maximum, _minimum = _extreme("maximum", ">"), _extreme("minimum", "<")


def _clamp(t: T) -> str:
    """Return min(max(x, low), high), also for low > high; propagate NaN.

    Where the bounds are constants, gcc makes two instructions of it, because the extremes test their second operand.
    """
    return _minimum(t).format(_maximum(t).format("{1}", "{0}"), "{2}")


def _bitwise(op: str) -> Callable[[T], str]:
    return lambda t: f"({COMPUTE_TYPES[t]})({{0}} {op} {{1}})"


def _not(t: T) -> str:
    return "!{0}" if t is T.PRED else f"({COMPUTE_TYPES[t]})~{{0}}"


def _negate(t: T) -> str:
    return "-{0}" if t.is_float else f"({COMPUTE_TYPES[t]})(0 - ({_unsigned(t)}){{0}})"


def _abs(t: T) -> str:
    if t.is_float:
        return f"fabs{_suffix(t)}({{0}})"
    return "{0}" if not t.is_signed else f"({{0}} < 0 ? ({COMPUTE_TYPES[t]})(0 - ({_unsigned(t)}){{0}}) : {{0}})"


def _sign(t: T) -> str:
    if t.is_float:
        one = _lit(t, "1.0")
        return f"({{0}} > 0 ? {one} : {{0}} < 0 ? -{one} : {{0}})"
    return f"({COMPUTE_TYPES[t]})(({{0}} > 0) - ({{0}} < 0))" if t.is_signed else f"({COMPUTE_TYPES[t]})({{0}} != 0)"


def _shift(op: str, arithmetic: bool = False) -> Callable[[T], str]:
    def build(t: T) -> str:
        c, u = COMPUTE_TYPES[t], f"uint{t.bits}_t"
        amount = f"({u}){{1}}"
        if arithmetic:
            signed = f"int{t.bits}_t"
            return f"({c})(({signed}){{0}} >> ({amount} >= {t.bits} ? {t.bits - 1} : {amount}))"
        wide = _unsigned(t)
        return f"({c})({amount} >= {t.bits} ? 0 : (({wide})({u}){{0}} {op} ({amount} & {t.bits - 1})))"

    return build


def _power(t: T) -> str:
    return f"pow{_suffix(t)}({{0}}, {{1}})"


def _count_leading_zeros(t: T) -> str:
    if t.bits > 32:
        return f"({COMPUTE_TYPES[t]})({{0}} == 0 ? 64 : CLZ64((uint64_t){{0}}))"
    u = f"uint{t.bits}_t"
    return f"({COMPUTE_TYPES[t]})({{0}} == 0 ? {t.bits} : CLZ32((uint32_t)({u}){{0}}) - {32 - t.bits})"


def _popcount(t: T) -> str:
    if t.bits > 32:
        return f"({COMPUTE_TYPES[t]})POPCOUNT64((uint64_t){{0}})"
    return f"({COMPUTE_TYPES[t]})POPCOUNT32((uint32_t)(uint{t.bits}_t){{0}})"


def _mulhi(t: T) -> str:
    wide = "int64_t" if t.is_signed else "uint64_t"
    return f"({COMPUTE_TYPES[t]})((({wide}){{0}} * ({wide}){{1}}) >> {t.bits})"


_FLOAT_MATH = {
    Opcode.ACOS: "acos", Opcode.ACOSH: "acosh", Opcode.ASIN: "asin", Opcode.ASINH: "asinh", Opcode.ATANH: "atanh",
    Opcode.CBRT: "cbrt", Opcode.CEIL: "ceil", Opcode.COSINE: "cos", Opcode.COSH: "cosh", Opcode.ERF: "erf",
    Opcode.EXPONENTIAL: "exp", Opcode.EXPONENTIAL_MINUS_ONE: "expm1", Opcode.FLOOR: "floor", Opcode.LOG: "log",
    Opcode.LOG_PLUS_ONE: "log1p", Opcode.ROUND_NEAREST_AFZ: "round", Opcode.ROUND_NEAREST_EVEN: "rint",
    Opcode.SINE: "sin", Opcode.SINH: "sinh", Opcode.SQRT: "sqrt", Opcode.TAN: "tan",
}  # fmt: skip

_TEMPLATES: dict[Opcode, Callable[[T], str]] = {
    **{op: _math(name) for op, name in _FLOAT_MATH.items()},
    Opcode.TANH: lambda t: "tanh({0})" if t is T.F64 else "tanh_f32({0})",
    Opcode.ABS: _abs,
    Opcode.NEGATE: _negate,
    Opcode.NOT: _not,
    Opcode.SIGN: _sign,
    Opcode.IS_FINITE: lambda t: "(({0} - {0}) == 0)",
    Opcode.LOGISTIC: lambda t: f"{_lit(t, '1.0')} / ({_lit(t, '1.0')} + exp{_suffix(t)}(-{{0}}))",
    Opcode.RSQRT: lambda t: f"{_lit(t, '1.0')} / sqrt{_suffix(t)}({{0}})",
    Opcode.REAL: lambda t: "BITS_TO_F32((uint32_t){0})" if t is T.C64 else "{0}",
    Opcode.IMAG: lambda t: "BITS_TO_F32((uint32_t)({0} >> 32))",
    Opcode.COMPLEX: lambda t: "((uint64_t)F32_TO_BITS({1}) << 32 | F32_TO_BITS({0}))",
    Opcode.COUNT_LEADING_ZEROS: _count_leading_zeros,
    Opcode.POPULATION_COUNT: _popcount,
    Opcode.COPY: lambda t: "{0}",
    Opcode.ADD: _arithmetic("+"),
    Opcode.SUBTRACT: _arithmetic("-"),
    Opcode.MULTIPLY: _arithmetic("*"),
    Opcode.DIVIDE: _divide,
    Opcode.REMAINDER: _remainder,
    Opcode.POWER: _power,
    Opcode.ATAN2: lambda t: f"atan2{_suffix(t)}({{0}}, {{1}})",
    Opcode.MAXIMUM: _maximum,
    Opcode.MINIMUM: _minimum,
    Opcode.AND: _bitwise("&"),
    Opcode.OR: _bitwise("|"),
    Opcode.XOR: _bitwise("^"),
    Opcode.MULHI: _mulhi,
    Opcode.SHIFT_LEFT: _shift("<<"),
    Opcode.SHIFT_RIGHT_LOGICAL: _shift(">>"),
    Opcode.SHIFT_RIGHT_ARITHMETIC: _shift(">>", arithmetic=True),
}

_WRAPPING = frozenset(
    {
        Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.DIVIDE, Opcode.NOT, Opcode.NEGATE, Opcode.ABS,
    }
)  # fmt: skip
"""Ops on integers whose results may need more bits than their operands."""
_DIRECTIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def _is_small_float(t: T) -> bool:
    return t.is_float and t in HELD_TYPES


def _convert(a: T, b: T) -> str:
    if a is b:
        return "{0}"
    if _is_small_float(a):
        return _convert(T.F32, b).format(f"{a.name}_TO_F32({{0}})")
    if _is_small_float(b):
        return f"F32_TO_{b.name}({'F64_TO_ODD_F32({0})' if a is T.F64 else '(float){0}'})"
    if b in SMALL_INTEGERS and not a.is_float:
        return wrapped("{0}", b)
    return _computed_conversion(a, b)


def converts_small_floats(op: ScalarOp) -> bool:
    """Check whether the expression of an op calls functions of small_floats.h."""
    return op.opcode is Opcode.CONVERT and (_is_small_float(op.type) or _is_small_float(op.result))


def _computed_conversion(a: T, b: T) -> str:
    to = COMPUTE_TYPES[b]
    if b is T.PRED:
        return "({0} != 0)"
    if a.is_float and b.is_integer:
        low = float(-(2 ** (b.bits - 1))) if b.is_signed else 0.0
        high = float(2 ** (b.bits - 1)) if b.is_signed else float(2**b.bits)
        top = str(2 ** (b.bits - 1) - 1) if b.is_signed else str(2**b.bits - 1) + "u"
        top += "LL" if b.bits > 32 else ""
        bottom = _int_min(b) if b.is_signed else "0"
        least, most = _lit(a, repr(low)), _lit(a, repr(high))
        return (
            f"({{0}} != {{0}} ? ({to})0 : {{0}} >= {most} ? ({to}){top} : "
            f"{{0}} <= {least} ? ({to}){bottom} : ({to}){{0}})"
        )
    if a is T.F64 and b is T.F16:
        return "ROUND_F64_TO_F16({0})"  # a conversion through float would round twice
    if a is T.PRED:
        return f"({{0}} ? ({to})1 : ({to})0)"  # gcc widens the lanes of a cast step by step, but blends a choice
    if b.is_half and b is not a and not (a.is_integer and a.bits <= 8):  # these numbers need no more bits
        return f"ROUND_{b.name}((float){{0}})"
    return f"({to}){{0}}"


def _convert_in_range(b: T) -> str:
    """Return the conversion of a float that is NaN or in the range of the integers."""
    to = COMPUTE_TYPES[b]
    return f"({{0}} != {{0}} ? ({to})0 : ({to}){{0}})"


def _bitcast_convert(a: T, b: T) -> str:
    if a is b:
        return "{0}"
    if b in SMALL_INTEGERS:
        return wrapped("{0}", b)
    if a in SMALL_INTEGERS:
        return f"({COMPUTE_TYPES[b]})({{0}} & {2**a.bits - 1})"
    if a.bits == b.bits == 8 or (a.is_integer and b.is_integer):
        return f"({COMPUTE_TYPES[b]}){{0}}"
    names = {T.F32: "F32", T.F64: "F64", T.F16: "F16", T.BF16: "BF16"}
    if b.is_float and a.is_integer:
        return f"BITS_TO_{names[b]}({{0}})"
    return f"({COMPUTE_TYPES[b]}){names[a]}_TO_BITS({{0}})"


def expression_of(op: ScalarOp) -> str:
    """Return the expression template of a scalar op."""
    expression = _expression(op)
    if op.result in SMALL_INTEGERS and op.type is op.result and op.opcode in _WRAPPING:
        return wrapped(expression, op.result)
    return expression


def _expression(op: ScalarOp) -> str:
    t = op.type
    if op.opcode is Opcode.COMPARE:
        direction = _DIRECTIONS[op.direction]
        if op.total_order:
            key = "TOTAL_ORDER_F64" if t is T.F64 else "TOTAL_ORDER_F32"
            return f"({key}({{0}}) {direction} {key}({{1}}))"
        return f"({{0}} {direction} {{1}})"
    if op.near:
        return f"near_{'sin' if op.opcode is Opcode.SINE else 'cos'}_f32({{0}})"
    if op.multiplied:
        return "reciprocal_root_f32({0})" if op.opcode is Opcode.RSQRT else "uniform_quotient_f32({0}, {1})"
    if op.opcode is Opcode.SELECT:
        return "({0} ? {1} : {2})"
    if op.opcode is Opcode.CLAMP:
        return _clamp(t)
    if op.opcode is Opcode.CONVERT:
        return _convert_in_range(op.result) if op.in_range else _convert(t, op.result)
    if op.opcode is Opcode.BITCAST_CONVERT:
        return _bitcast_convert(t, op.result)
    return _TEMPLATES[op.opcode](t)


def constant_text(value: Any, t: T) -> str:
    """Return a scalar as an exact C constant; floats are printed in hexadecimal, of held types the integers."""
    t = HELD_TYPES.get(t, t)
    if t.is_float:
        v = float(value)
        if math.isnan(v):
            return f"({COMPUTE_TYPES[t]})NAN"
        if math.isinf(v):
            return f"({COMPUTE_TYPES[t]}){'-' if v < 0 else ''}INFINITY"
        return f"{v.hex()}{_suffix(t)}"
    if t is T.PRED:
        return "1" if value else "0"
    n = int(value)
    if t.bits <= 32:
        return f"(({COMPUTE_TYPES[t]}){n}{'u' if t.is_unsigned else 'LL'})"
    if n == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{n}{'ULL' if t.is_unsigned else 'LL'}"
