"""The numpy type in which each element type is computed, and conversions to it and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from compiler.interpreter.registry import Array
from compiler.ir.types import PrimitiveType

F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)


@cache
def compute_dtype(t: PrimitiveType) -> np.dtype[Any]:
    """Return float32 for floats below 32 bits, int8 or uint8 for integers below 8, else the type's own dtype."""
    if t.is_narrow_float:
        return F32
    if t.is_integer and t.bits < 8:
        return np.dtype(np.int8 if t.is_signed else np.uint8)
    return t.dtype


@cache
def is_direct(t: PrimitiveType) -> bool:
    """Check whether numpy computes in the element type itself."""
    return compute_dtype(t) == t.dtype and t.bits >= 8


def widen(x: Array, t: PrimitiveType) -> Array:
    """Convert values of type `t` to its compute type."""
    return x if is_direct(t) else x.astype(compute_dtype(t))


def narrow(x: Array, t: PrimitiveType) -> Array:
    """Convert computed values to `t`: floats are rounded to nearest even, integers wrap."""
    x = np.asarray(x)
    if t.is_integer and t.bits < 8:
        return wrap_small(x, t)
    return x if x.dtype == t.dtype else x.astype(t.dtype)


def wrap_small(x: Array, t: PrimitiveType) -> Array:
    """Convert integers to a type below 8 bits, modulo 2**bits."""
    shift = 8 - t.bits
    low = x.astype(np.uint8)
    high = np.asarray(low << shift).astype(np.uint8)
    kept: Array = high.view(np.int8) if t.is_signed else high
    return np.asarray(kept >> shift).astype(t.dtype)


def in_compute_type(f: Callable[..., Any], t: PrimitiveType, *operands: Array) -> Array:
    """Apply `f` to operands of type `t` in its compute type, and convert the result back once."""
    if is_direct(t):
        return np.asarray(f(*operands))
    return narrow(f(*(widen(x, t) for x in operands)), t)


def total_order_key(x: Array) -> Array:
    """Return signed integers with the total order of the floats `x`: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    # Negative floats compare in reverse as integers, so all bits but their sign are flipped.
    bits: Array = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    below_zero: Array = bits >> (8 * x.dtype.itemsize - 1)
    key: Array = bits ^ (below_zero & np.iinfo(bits.dtype).max)
    return key
