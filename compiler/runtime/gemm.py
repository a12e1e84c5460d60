"""Dots as matrix products: the dimension order that BLAS expects, and the transposes that establish it."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

BLAS_TYPES = {T.F32: "sgemm", T.F64: "dgemm"}
"""The BLAS routine for each element type that has one."""
PLAIN_TYPES = frozenset((t, t) for t in BLAS_TYPES)
"""The element types of operands and result of the products that every BLAS has."""


@dataclass(frozen=True, slots=True)
class GemmForm:
    """A dot as `batch` products of m x k by k x n matrices.

    Attributes:
        batch, m, n, k: sizes of the products.
        lhs_transposed: whether the left operand is stored as k x m.
        rhs_transposed: whether the right operand is stored as n x k.
        permutations: for each operand the transpose that must precede the product, or None if it needs none.
    """

    batch: int
    m: int
    n: int
    k: int
    lhs_transposed: bool
    rhs_transposed: bool
    permutations: tuple[tuple[int, ...] | None, tuple[int, ...] | None]


def canonical_form(dot: HloInstruction, types: Container[tuple[T, T]] = PLAIN_TYPES) -> GemmForm | None:
    """Return a dot as matrix products, or None if it is empty or BLAS has no routine for its types.

    Args:
        dot: the dot.
        types: the element types of operands and result that BLAS has.
    """
    lhs, rhs = dot.operands[0].shape, dot.operands[1].shape
    if lhs.element_type is not rhs.element_type or len(dot.operands) != 2:
        return None
    if (lhs.element_type, dot.shape.element_type) not in types:
        return None
    if 0 in dot.shape.dimensions or 0 in lhs.dimensions:
        return None
    lb, lc = dot.attr("lhs_batch_dims", ()), dot.attr("lhs_contracting_dims", ())
    rb, rc = dot.attr("rhs_batch_dims", ()), dot.attr("rhs_contracting_dims", ())
    lf = [d for d in range(lhs.rank) if d not in lb and d not in lc]
    rf = [d for d in range(rhs.rank) if d not in rb and d not in rc]
    lhs_order, lhs_transposed = _order(lhs, lb, lf, lc)
    rhs_order, rhs_transposed = _order(rhs, rb, rc, rf)
    return GemmForm(
        batch=_product(lhs, lb),
        m=_product(lhs, lf),
        n=_product(rhs, rf),
        k=_product(lhs, lc),
        lhs_transposed=lhs_transposed,
        rhs_transposed=rhs_transposed,
        permutations=(lhs_order, rhs_order),
    )


def _product(shape: Shape, dims: Sequence[int]) -> int:
    return math.prod(shape.dimensions[d] for d in dims)


def _order(
    shape: Shape, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> tuple[tuple[int, ...] | None, bool]:
    """Return (permutation to batch, rows, columns or None if not needed, whether it is stored as columns x rows)."""
    nontrivial = [d for d in range(shape.rank) if shape.dimensions[d] != 1]

    def is_stored_as(order: Sequence[int]) -> bool:
        return [d for d in order if d in nontrivial] == nontrivial

    if is_stored_as([*batch, *rows, *columns]):
        return None, False
    if is_stored_as([*batch, *columns, *rows]):
        return None, True
    return (*batch, *rows, *columns), False


def transpose_of(shape: Shape, permutation: Sequence[int]) -> HloInstruction:
    """Return a transpose in a computation of its own, from which a kernel can be made."""
    alone = HloComputation("transpose")
    p = alone.add_parameter(0, shape.without_layout())
    alone.root = alone.add(Opcode.TRANSPOSE, [p], dimensions=tuple(permutation))
    return alone.root
