"""Evaluators of type changes: convert, bitcast-convert, bitcast, reduce-precision, stochastic-convert."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpreter.precision import is_direct, narrow, widen, wrap_small
from compiler.interpreter.registry import Array, array_evaluator, specialiser
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T


def convert(x: Array, source: T, target: T) -> Array:
    """Convert values of one type to another.

    Floats are truncated and saturate when converted to integers, and NaN becomes 0; integers wrap; non-zero is true.
    """
    if source is target:
        return x
    if source.is_complex and not target.is_complex:
        source = T.F32 if source is T.C64 else T.F64
        x = np.real(x)
        if source is target:
            return x
    if target is T.PRED:
        return np.asarray(widen(x, source) != 0)
    if target.is_integer and source.is_float:
        return _float_to_integer(x, target)
    if target.is_integer and target.bits < 8:
        return wrap_small(x.astype(np.int8) if source.bits < 8 else x, target)
    if source.bits < 8 and source.is_integer:
        x = x.astype(np.int8 if source.is_signed else np.uint8)
    if target.bits < 16 and target.is_float:
        return _to_small_float(x, source, target)
    return x.astype(target.dtype)


def _to_small_float(x: Array, source: T, target: T) -> Array:
    """Convert via float32 where ml_dtypes has no direct cast; NaN becomes -0 in a type without NaN."""
    if source is T.F64:
        x = _to_odd(x)
    elif T.F8E8M0FNU in (source, target) and source.is_float:
        x = x.astype(np.float32)
    found: Array = x.astype(target.dtype)
    if source.is_float and target in _WITHOUT_NAN:
        wide = x.astype(np.float64)
        return np.where(np.isnan(wide), np.float64(-0.0).astype(target.dtype), found)
    return found


def _to_odd(x: Array) -> Array:
    """Round float64 to odd in float32 (inexact results get a last bit of 1), so that rounding again is exact."""
    near = x.astype(np.float32)
    inexact = np.isfinite(near) & (near.astype(np.float64) != x)
    inner = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    odd = np.asarray(inner.view(np.uint32) | np.uint32(1)).view(np.float32)
    return np.where(inexact, odd, near)


_WITHOUT_NAN = (T.F4E2M1FN, T.F6E2M3FN, T.F6E3M2FN)


def _float_to_integer(x: Array, target: T) -> Array:
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    low = -(1 << (target.bits - 1)) if target.is_signed else 0
    high = (1 << (target.bits - (1 if target.is_signed else 0))) - 1
    below, above = wide <= wide.dtype.type(low), wide >= wide.dtype.type(high)
    inside = np.where(below | above | np.isnan(wide), wide.dtype.type(0), wide)
    whole = np.int64 if target.is_signed else np.uint64
    cut = np.where(below, whole(low), np.where(above, whole(high), inside.astype(whole)))
    return narrow(cut, target)


@array_evaluator(Opcode.CONVERT)
def _convert(instruction: HloInstruction, x: Array) -> Array:
    return convert(x, instruction.operands[0].shape.element_type, instruction.shape.element_type)


def _to_bits(x: Array, t: T) -> Array:
    """Return the bits of each element along a new last dimension, least significant first."""
    plain = np.ascontiguousarray(x.reshape((*x.shape, 1)))
    octets = plain.view(np.uint8).reshape((*x.shape, -1))
    bits = np.unpackbits(octets, axis=-1, bitorder="little")
    return bits[..., : t.bits]


def _from_bits(bits: Array, t: T) -> Array:
    octets = np.packbits(bits, axis=-1, bitorder="little")
    if t.is_signed and t.bits < 8:
        filled = (octets << (8 - t.bits)).astype(np.uint8).view(np.int8) >> (8 - t.bits)
        return filled.astype(np.int8)[..., 0].astype(t.dtype)
    return np.ascontiguousarray(octets).view(t.dtype)[..., 0]


def reinterpret(x: Array, source: T, target: Shape) -> Array:
    """Return the bits of `x` as another type; a wider type consumes the last dimension, a narrower one adds one."""
    t = target.element_type
    if source is t:
        return x.reshape(target.dimensions)
    if not x.size:
        return np.zeros(target.dimensions, t.dtype)
    if source.bits >= 8 and t.bits >= 8:
        flat = np.ascontiguousarray(x).reshape(-1)
        return flat.view(t.dtype).reshape(target.dimensions)
    bits = _to_bits(x, source).reshape((*target.dimensions, t.bits))
    return _from_bits(bits, t).reshape(target.dimensions)


@specialiser(Opcode.CONVERT)
def _convert_of(instruction: HloInstruction) -> Callable[[Array], Array] | None:
    """Return a plain cast if numpy's has the right semantics."""
    source, target = instruction.operands[0].shape.element_type, instruction.shape.element_type
    if not (is_direct(source) and is_direct(target)) or target is T.PRED:
        return None
    if (target.is_integer and source.is_float) or (source.is_complex and not target.is_complex):
        return None
    return methodcaller("astype", target.dtype)


@array_evaluator(Opcode.BITCAST_CONVERT)
def _bitcast_convert(instruction: HloInstruction, x: Array) -> Array:
    source, target = instruction.operands[0].shape, instruction.shape
    if source.element_type.bits == target.element_type.bits and x.shape != source.dimensions:
        target = target.with_dimensions(x.shape)  # a scalar computation lifted to arrays
    return reinterpret(x, source.element_type, target)


@array_evaluator(Opcode.BITCAST)
def _bitcast(instruction: HloInstruction, x: Array) -> Array:
    """Read the elements in the memory order of the operand, and arrange them in that of the result."""
    source, target = instruction.operands[0].shape, instruction.shape
    if not target.dimensions and source.element_type is target.element_type:
        return x if not source.dimensions else x.reshape(())
    return from_memory(reinterpret(in_memory(x, source), source.element_type, flat(target)), target)


def flat(shape: Shape) -> Shape:
    """Return the shape with all elements in one dimension."""
    return shape.with_dimensions((shape.num_elements,))


def in_memory(x: Array, shape: Shape) -> Array:
    """Return the elements of `x` in the memory order of the shape's layout, as one dimension."""
    if shape.layout is None:
        return x.reshape(-1)
    return x.transpose(shape.layout.minor_to_major[::-1]).reshape(-1)


def from_memory(x: Array, shape: Shape) -> Array:
    """Invert `in_memory`."""
    if shape.layout is None:
        return x.reshape(shape.dimensions)
    order = shape.layout.minor_to_major[::-1]
    return x.reshape([shape.dimensions[d] for d in order]).transpose(np.argsort(order))


_MANTISSA = {2: 10, 4: 23, 8: 52}


@array_evaluator(Opcode.REDUCE_PRECISION)
def _reduce_precision(instruction: HloInstruction, x: Array) -> Array:
    t = instruction.shape.element_type
    if t in (T.F32, T.F64):
        return reduce_precision(x, instruction.attr("exponent_bits"), instruction.attr("mantissa_bits"))
    wide = reduce_precision(x.astype(np.float32), instruction.attr("exponent_bits"), instruction.attr("mantissa_bits"))
    return wide.astype(t.dtype)


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round float32 or float64 to a smaller format: ties to even, overflow to infinity, denormals to zero."""
    size = x.dtype.itemsize
    mantissa, width = _MANTISSA[size], 8 * size
    unsigned = np.dtype(f"u{size}").type
    bits = np.ascontiguousarray(x).reshape(x.shape).view(unsigned)
    drop = mantissa - mantissa_bits
    if drop > 0:
        last = (bits >> unsigned(drop)) & unsigned(1)
        bias = last + unsigned((1 << (drop - 1)) - 1)
        bits = (bits + bias) & unsigned(((1 << width) - 1) ^ ((1 << drop) - 1))
    exponent_width = width - 1 - mantissa
    if exponent_bits < exponent_width:
        field = unsigned(((1 << exponent_width) - 1) << mantissa)
        bias_here, bias_there = (1 << (exponent_width - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        exponent = bits & field
        sign = bits & unsigned(1 << (width - 1))
        over = exponent > unsigned((bias_here + bias_there) << mantissa)
        under = exponent <= unsigned((bias_here - bias_there) << mantissa)
        bits = np.where(over, sign | field, np.where(under, sign, bits))
    return np.where(np.isnan(x), x, np.asarray(bits).view(x.dtype))


@array_evaluator(Opcode.STOCHASTIC_CONVERT)
def _stochastic_convert(instruction: HloInstruction, x: Array, random: Array) -> Array:
    """Round towards zero, or away from it if the random bits are below the truncated fraction.

    As in XLA's evaluator, the fraction is in units of 2**-bits, where bits is the width of the random operand.
    """
    source, target = instruction.operands[0].shape.element_type, instruction.shape.element_type
    if not target.is_integer:
        raise UnsupportedError(f"stochastic-convert to {target.text}: only integers are defined")
    wide = x.astype(np.float64)
    size = np.abs(wide)
    whole = np.trunc(size)
    fraction = size - whole
    limit = np.floor(np.ldexp(fraction, 8 * random.dtype.itemsize))
    draw = random.view(np.dtype(f"u{random.dtype.itemsize}"))
    stepped = np.copysign(whole + (draw < limit), wide)
    stepped = np.where(np.isfinite(wide), stepped, wide)
    return convert(stepped, T.F64 if source.is_float else source, target)
