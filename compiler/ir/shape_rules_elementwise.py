"""Shape rules of elementwise ops, conversions and ops without operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.errors import ShapeError
from compiler.ir.shape import Shape
from compiler.ir.shape_query import ShapeQuery, ShapeRule, array, declared, dynamic_flags, need, same_but_precision
from compiler.ir.types import PrimitiveType as T

_COMPONENT = {T.C64: T.F32, T.C128: T.F64}


def same(q: ShapeQuery) -> Shape:
    """Return the shape of the operand."""
    return q.operands[0]


def copy(q: ShapeQuery) -> Shape:
    """Return the shape of the operand, or the declared one if only floating-point types differ."""
    s = q.operands[0]
    if q.declared is not None and s.is_array and same_but_precision(s, q.declared):
        return q.declared
    return s


def _unary(accepts: Callable[[T], bool], wanted: str) -> ShapeRule:
    def rule(q: ShapeQuery) -> Shape:
        s = array(q, 0)
        if not accepts(s.element_type):
            raise ShapeError(f"takes {wanted}, got {s}")
        return s

    return rule


unary_float = _unary(lambda t: t.is_float, "floating-point numbers")
unary_smooth = _unary(lambda t: t.is_float or t.is_complex, "floating-point or complex numbers")
unary_integer = _unary(lambda t: t.is_integer, "integers")
unary_bits = _unary(lambda t: t.is_integer or t is T.PRED, "integers or pred")
unary_numeric = _unary(lambda t: t is not T.PRED, "numbers")
unary_signed = _unary(lambda t: t.is_signed or t.is_float or t.is_complex, "signed numbers")


def reduce_precision(q: ShapeQuery) -> Shape:
    """Return the shape of the operand; at least one exponent bit is required, and no mantissa bit."""
    s = array(q, 0)
    exponent, mantissa = q.attr("exponent_bits"), q.attr("mantissa_bits")
    need(s.element_type.is_float, f"takes floating-point numbers, got {s}")
    need(exponent >= 1, f"exponent_bits must be at least 1, is {exponent}")
    need(mantissa >= 0, f"mantissa_bits must not be negative, is {mantissa}")
    return s


def absolute(q: ShapeQuery) -> Shape:
    """Return the shape of the operand; complex numbers have a real magnitude."""
    s = array(q, 0)
    t = s.element_type
    need(t.is_signed or t.is_float or t.is_complex, f"takes signed numbers, got {s}")
    return s.with_type(_COMPONENT.get(t, t))


def real_part(q: ShapeQuery) -> Shape:
    """Return the shape of the operand with the component type of complex numbers."""
    s = array(q, 0)
    need(s.element_type.is_float or s.element_type.is_complex, f"takes floating-point or complex numbers, got {s}")
    return s.with_type(_COMPONENT.get(s.element_type, s.element_type))


def is_finite(q: ShapeQuery) -> Shape:
    """Return the shape of the operand with type pred."""
    s = array(q, 0)
    need(s.element_type.is_float, f"takes floating-point numbers, got {s}")
    return s.with_type(T.PRED)


def convert(q: ShapeQuery) -> Shape:
    """Return the declared shape, which has the dimensions of the operand."""
    s, d = array(q, 0), declared(q)
    need(d.is_array and s.same_dimensions(d), f"result {d} must have the operand's dimensions ({s})")
    need(
        not (s.element_type.is_complex and not d.element_type.is_complex),
        f"cannot convert complex {s} to {d}: take its real or imag part first",
    )
    return d


def stochastic_convert(q: ShapeQuery) -> Shape:
    """Return the declared shape; the operands are floats and random bits of the same width."""
    s, bits, d = array(q, 0), array(q, 1), declared(q)
    need(s.same_dimensions(bits) and s.same_dimensions(d), f"operand {s}, random bits {bits} and result {d} must agree")
    need(s.element_type.is_float, f"takes floating-point numbers, got {s}")
    need(bits.element_type.is_unsigned, f"random bits must be unsigned integers, got {bits}")
    need(
        bits.element_type.bits == s.element_type.bits,
        f"random bits must be as wide as the operand: {bits} and {s}",
    )
    return d


def bitcast_convert(q: ShapeQuery) -> Shape:
    """Return the declared shape, of as many bits; if the widths differ, the last dimension is added or removed."""
    s, d = array(q, 0), declared(q)
    need(d.is_array, f"the result must be an array, is {d}")
    need(
        s.element_type.is_complex == d.element_type.is_complex,
        f"cannot bitcast-convert between complex and other types: {s} and {d}",
    )
    a, b = s.element_type.bits, d.element_type.bits
    if a == b:
        ok = s.dimensions == d.dimensions
    elif a > b:
        ok = d.dimensions[:-1] == s.dimensions and d.rank > 0 and d.dimensions[-1] * b == a
    else:
        ok = s.dimensions[:-1] == d.dimensions and s.rank > 0 and s.dimensions[-1] * a == b
    need(ok, f"cannot bitcast-convert {s} to {d}: the bits of an element must agree")
    return d


def same_shapes(q: ShapeQuery, indices: Sequence[int]) -> Shape:
    """Return the common shape of these operands; a dimension that is dynamic in any of them is dynamic."""
    first = array(q, indices[0])
    flags = None
    for i in indices[1:]:
        other = array(q, i)
        if first.dimensions != other.dimensions or first.element_type is not other.element_type:
            raise ShapeError(f"operands must have one shape, got {first} and {other}")
        if first.dynamic or other.dynamic:
            flags = [a or b for a, b in zip(flags or dynamic_flags(first), dynamic_flags(other), strict=True)]
    return first if flags is None else Shape(first.element_type, first.dimensions, first.layout, tuple(flags))


def binary(q: ShapeQuery) -> Shape:
    """Return the common shape of both operands."""
    return same_shapes(q, (0, 1))


def binary_numeric(q: ShapeQuery) -> Shape:
    """Return the common shape of both operands, which must not be pred."""
    s = same_shapes(q, (0, 1))
    if s.element_type is T.PRED:
        raise ShapeError(f"takes numbers, got {s}")
    return s


def binary_smooth(q: ShapeQuery) -> Shape:
    """Return the common shape of both operands, floating-point or complex numbers."""
    s = same_shapes(q, (0, 1))
    if not (s.element_type.is_float or s.element_type.is_complex):
        raise ShapeError(f"takes floating-point or complex numbers, got {s}")
    return s


def binary_bits(q: ShapeQuery) -> Shape:
    """Return the common shape of both operands, integers or pred."""
    s = same_shapes(q, (0, 1))
    if not (s.element_type.is_integer or s.element_type is T.PRED):
        raise ShapeError(f"takes integers or pred, got {s}")
    return s


def compare(q: ShapeQuery) -> Shape:
    """Return the operands' shape as pred; check the comparison type, and that complex numbers are not ordered."""
    s = same_shapes(q, (0, 1))
    t, how = s.element_type, q.attributes.get("type")
    if how is not None:
        wanted = (
            ("FLOAT", "TOTALORDER")
            if t.is_float
            else ("FLOAT",)
            if t.is_complex
            else ("SIGNED",)
            if t.is_signed
            else ("UNSIGNED",)
        )
        need(how in wanted, f"comparison type must be {' or '.join(wanted)} for {s}, is {how}")
    direction = q.attr("direction")
    need(not t.is_complex or direction in ("EQ", "NE"), f"complex numbers have no order: direction={direction}")
    return Shape(T.PRED, s.dimensions, s.layout, s.dynamic)


def complex_(q: ShapeQuery) -> Shape:
    """Return the operands' shape as complex numbers of that component type."""
    s = same_shapes(q, (0, 1))
    to = {T.F32: T.C64, T.F64: T.C128}.get(s.element_type)
    if to is None:
        raise ShapeError(f"complex takes f32 or f64, got {s}")
    return s.with_type(to)


def clamp(q: ShapeQuery) -> Shape:
    """Return the shape of the clamped operand; bounds have the same shape or are scalars."""
    low, x, high = array(q, 0), array(q, 1), array(q, 2)
    for bound in (low, high):
        need(
            bound.element_type is x.element_type and (bound.is_scalar or bound.same_dimensions(x)),
            f"clamp bound {bound} must be a scalar of the operand's type or have its shape {x}",
        )
    return x


def select(q: ShapeQuery) -> Shape:
    """Return the common shape of both choices; the predicate has the same dimensions or is a scalar."""
    p = array(q, 0)
    x = same_shapes(q, (1, 2))
    need(p.element_type is T.PRED, f"select needs a pred operand first, got {p}")
    need(p.is_scalar or p.same_dimensions(x), f"select predicate {p} must be a scalar or have the shape of {x}")
    if not p.dynamic:
        return x
    flags = tuple(a or b for a, b in zip(dynamic_flags(p), dynamic_flags(x), strict=True))
    return Shape(x.element_type, x.dimensions, x.layout, flags)


def iota(q: ShapeQuery) -> Shape:
    """Return the declared shape, which must contain the iota dimension."""
    d = declared(q)
    dim = q.attr("iota_dimension")
    need(d.is_array and 0 <= dim < d.rank, f"iota_dimension {dim} out of range for {d}")
    need(d.element_type is not T.PRED, f"iota counts in numbers, not in {d}")
    return d


def map_(q: ShapeQuery) -> Shape:
    """Return the shape of the operands with the type that the function returns."""
    f = q.attr("to_apply")
    first = array(q, 0)
    for i in range(1, len(q.operands)):
        need(first.same_dimensions(array(q, i)), f"map operands must have one shape, got {first} and {q.operands[i]}")
    params = f.parameter_shapes
    need(len(params) == len(q.operands), f"{f.name} must take {len(q.operands)} scalars, takes {len(params)}")
    for i, p in enumerate(params):
        want = Shape(q.operands[i].element_type)
        need(p.compatible(want), f"parameter {i} of {f.name} must be {want}, is {p}")
    need(f.result_shape.is_scalar, f"{f.name} must return a scalar, returns {f.result_shape}")
    return first.with_type(f.result_shape.element_type)
