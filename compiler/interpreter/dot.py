"""Evaluator of dot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.interpreter.conversion import convert
from compiler.interpreter.precision import compute_dtype
from compiler.interpreter.registry import Array, array_evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


def product_type(operands: Sequence[T], result: T) -> np.dtype[Any]:
    """Return the numpy dtype of factors and sums: that of the result, but at least float32, exact for integers."""
    if any(t.is_complex for t in operands) or result.is_complex:
        return result.dtype
    if result.is_float:
        return np.dtype(np.float64) if T.F64 in (*operands, result) else np.dtype(np.float32)
    if result is T.PRED:
        return np.dtype(np.int64)
    return compute_dtype(result)


def sum_type(operands: Sequence[T], result: T) -> T:
    """Return the element type of the sums: that of the result, or that of operands of which it holds a part.

    Floats may become integers; complex numbers may become real ones, which are their real parts.
    """
    if not result.is_complex and any(t.is_complex for t in operands):
        return T.C128 if {T.C128, T.F64} & {*operands, result} else T.C64
    floats = [t for t in operands if t.is_float]
    if not floats or result.is_float or result.is_complex:
        return result
    return max(floats, key=lambda t: t.bits)


def contract(
    a: Array, b: Array, contracting: tuple[Sequence[int], Sequence[int]], batch: tuple[Sequence[int], Sequence[int]]
) -> Array:
    """Return the product; dimensions are the batch, the free ones of `a`, then those of `b`."""
    free_a = [d for d in range(a.ndim) if d not in contracting[0] and d not in batch[0]]
    free_b = [d for d in range(b.ndim) if d not in contracting[1] and d not in batch[1]]
    shape_batch = [a.shape[d] for d in batch[0]]
    shape_a, shape_b = [a.shape[d] for d in free_a], [b.shape[d] for d in free_b]
    inner = math.prod(a.shape[d] for d in contracting[0])
    left = a.transpose([*batch[0], *free_a, *contracting[0]]).reshape(math.prod(shape_batch), math.prod(shape_a), inner)
    right = b.transpose([*batch[1], *contracting[1], *free_b]).reshape(
        math.prod(shape_batch), inner, math.prod(shape_b)
    )
    product: Array = np.matmul(left, right)
    return product.reshape([*shape_batch, *shape_a, *shape_b])


def multiply(a: Array, b: Array, types: tuple[T, T], result: T, **dims: Any) -> Array:
    """Contract in the product type of the result, and round or wrap once."""
    between = sum_type(types, result)
    if between is not result:
        return convert(multiply(a, b, types, between, **dims), between, result)
    wide = product_type(types, result)
    small = wide.kind in "iu" and all(t.bits <= 16 for t in types)
    if small and max(a.size, b.size) < 1 << 20:
        # Exact in float64, for which BLAS has a product; numpy's integer matmul is slow.
        wide = np.dtype(np.float64)
    out = contract(a.astype(wide), b.astype(wide), **dims)
    return narrow_product(out.astype(np.int64) if small else out, result)


def narrow_product(out: Array, result: T) -> Array:
    """Convert sums of products to the result type, with one rounding or wrap."""
    if result is T.PRED:
        return np.not_equal(out, 0)
    if result.is_integer:
        return convert(out.astype(np.int64) if out.dtype.kind == "f" else out, type_of(out), result)
    return out.astype(result.dtype)


def type_of(x: Array) -> T:
    """Return the 64-bit integer type of the same signedness."""
    return T.U64 if x.dtype.kind == "u" else T.S64


@array_evaluator(Opcode.DOT)
def _dot(instruction: HloInstruction, a: Array, b: Array) -> Array:
    attr = instruction.attr
    types = (instruction.operands[0].shape.element_type, instruction.operands[1].shape.element_type)
    return multiply(
        a,
        b,
        types,
        instruction.shape.element_type,
        contracting=(attr("lhs_contracting_dims", ()), attr("rhs_contracting_dims", ())),
        batch=(attr("lhs_batch_dims", ()), attr("rhs_batch_dims", ())),
    )
