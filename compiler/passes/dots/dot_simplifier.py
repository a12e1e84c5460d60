"""Dot simplification: dots by zero, by the identity or a diagonal matrix; factors and signs are moved out.

As in XLA, a zero operand makes the result zero even if the other operand contains NaN or infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, is_uniform_dot, make_dot
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    has_room,
    is_numeric,
    is_op,
    is_splat,
    scalar_function,
    single_use,
    splat_value,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet
from compiler.passes.reductions.reduce_simplifier import starts_neutral

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DotSimplifier(RewritePass):
    """Simplify dots of zeros, identity and diagonal matrices, scalars in batches, and negated or scaled operands."""

    name: ClassVar[str] = "dot-simplifier"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DOT)
def _zero(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not is_plain_dot(i):
        return None
    empty = any(o.shape.num_elements == 0 for o in i.operands)
    if empty or any(is_splat(o, 0) for o in i.operands):
        return b.splat(0, i.shape)
    return None


@RULES.on(Opcode.DOT)
def _scaling(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a dot with an operand that has batch dimensions alone -> multiplication by its broadcast."""
    dims = DotDims.of(i)
    if not is_uniform_dot(i) or not dims.lhs_batch or dims.lhs_contracting or not is_numeric(i.shape):
        return None
    batch, (lhs, rhs) = len(dims.lhs_batch), i.operands
    left, right = dims.lhs_free(lhs.shape.rank), dims.rhs_free(rhs.shape.rank)
    if left and right:
        return None
    factors = []
    for o, batched, free in ((lhs, dims.lhs_batch, left), (rhs, dims.rhs_batch, right)):
        where = {d: n for n, d in enumerate(batched)} | {d: batch + n for n, d in enumerate(free)}
        factors.append(b.broadcast(o, i.shape.dimensions, [where[d] for d in range(o.shape.rank)]))
    return b.add(Opcode.MULTIPLY, *factors)


@RULES.on(Opcode.DOT)
def _identity_or_diagonal(i: HloInstruction, b: Builder) -> HloInstruction | None:
    dims = DotDims.of(i)
    if not is_uniform_dot(i) or dims.lhs_batch or len(dims.lhs_contracting) != 1:
        return None
    for k in (0, 1):
        diagonal = diagonal_of(i.operands[k], b)
        if diagonal is None:
            continue
        other = i.operands[1 - k]
        contracted = (dims.rhs_contracting if k == 0 else dims.lhs_contracting)[0]
        free = [d for d in range(other.shape.rank) if d != contracted]
        order = [contracted, *free] if k == 0 else [*free, contracted]
        moved = b.transpose(other, order)
        if is_splat(diagonal, 1):
            return moved
        at = 0 if k == 0 else other.shape.rank - 1
        return b.add(Opcode.MULTIPLY, moved, b.broadcast(diagonal, moved.shape.dimensions, (at,)))
    return None


def diagonal_of(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return the diagonal (a vector) of a matrix that is recognizably diagonal and square, or None."""
    if i.shape.rank != 2 or i.shape.dimensions[0] != i.shape.dimensions[1]:
        return None
    vector = i.shape.with_dimensions(i.shape.dimensions[:1])
    if _is_eye(i):
        return b.splat(1, vector)
    if is_op(i, Opcode.MULTIPLY):
        for mask, values in (i.operands, (i.operands[1], i.operands[0])):
            if _is_eye(mask):
                return _vector(values, b)
    if is_op(i, Opcode.SELECT) and _is_eye_mask(i.operands[0]) and is_splat(i.operands[2], 0):
        return _vector(i.operands[1], b)
    return None


def _vector(values: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return the diagonal of a matrix with repeated rows, columns or elements."""
    if not is_op(values, Opcode.BROADCAST):
        return None
    source = values.operands[0]
    return source if source.shape.rank == 1 else b.broadcast(source, values.shape.dimensions[:1], ())


def _is_eye(i: HloInstruction) -> bool:
    if is_op(i, Opcode.CONVERT):
        return _is_eye_mask(i.operands[0])
    if is_op(i, Opcode.SELECT):
        return _is_eye_mask(i.operands[0]) and is_splat(i.operands[1], 1) and is_splat(i.operands[2], 0)
    if i.literal is None or i.literal.array is None or i.shape.num_elements > 1 << 16:
        return False
    return bool(np.array_equal(i.literal.array, np.eye(i.shape.dimensions[0], dtype=i.shape.dtype)))


def _is_eye_mask(i: HloInstruction) -> bool:
    """Match compare(iota along 0, iota along 1, EQ), also via broadcasts of a 1-d iota, or an equal constant."""
    if i.shape.rank != 2 or i.shape.dimensions[0] != i.shape.dimensions[1]:
        return False
    if i.literal is not None and i.literal.array is not None:
        return bool(np.array_equal(i.literal.array, np.eye(i.shape.dimensions[0], dtype=np.bool_)))
    if not is_op(i, Opcode.COMPARE) or i.attributes["direction"] != "EQ":
        return False
    return {_iota_dimension(o) for o in i.operands} == {0, 1}


def _iota_dimension(i: HloInstruction) -> int | None:
    if is_op(i, Opcode.ADD) and is_splat(i.operands[1], 0):
        i = i.operands[0]
    if is_op(i, Opcode.BROADCAST) and is_op(i.operands[0], Opcode.IOTA) and i.operands[0].shape.rank == 1:
        return i.dimensions[0]
    return int(i.attributes["iota_dimension"]) if is_op(i, Opcode.IOTA) else None


@RULES.on(Opcode.DOT)
def _factor_outside(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite dot(-a, b) -> -dot(a, b) and dot(a*c, b) -> dot(a, b)*c, if the result is no larger than the operand."""
    if not is_uniform_dot(i) or not has_room(i.shape):
        return None
    for k, o in enumerate(i.operands):
        if not single_use(o) or i.operands[0] is i.operands[1] or o.shape.num_elements < i.shape.num_elements:
            continue
        operands = list(i.operands)
        if is_op(o, Opcode.NEGATE):
            operands[k] = o.operands[0]
            return b.add(Opcode.NEGATE, make_dot(b, i, operands[0], operands[1], DotDims.of(i)))
        value = splat_value(o.operands[1]) if is_op(o, Opcode.MULTIPLY) else None
        if value is not None:
            operands[k] = o.operands[0]
            product = make_dot(b, i, operands[0], operands[1], DotDims.of(i))
            return b.add(Opcode.MULTIPLY, product, b.splat(value, i.shape))
    return None


@RULES.on(Opcode.DOT)
def _both_negated(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands[:2]
    if not is_uniform_dot(i) or not (is_op(x, Opcode.NEGATE) and is_op(y, Opcode.NEGATE)):
        return None
    return make_dot(b, i, x.operands[0], y.operands[0], DotDims.of(i))


@RULES.on(Opcode.REDUCE)
def _sum_of_dot(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Sum the operands before the product: sum_i (A B)_ij = (sum_i A_ik) B_kj, for sums over free dimensions."""
    if len(i.operands) != 2 or scalar_function(i.attributes["to_apply"]) is not Opcode.ADD or not starts_neutral(i):
        return None
    x = i.operands[0]
    if not is_uniform_dot(x) or not single_use(x):
        return None
    dims = DotDims.of(x)
    lhs, rhs = x.operands
    batch, left = len(dims.lhs_batch), dims.lhs_free(lhs.shape.rank)
    free = [(0, d) for d in left] + [(1, d) for d in dims.rhs_free(rhs.shape.rank)]
    if not i.dimensions or min(i.dimensions) < batch:
        return None
    gone = [[d for side, d in (free[r - batch] for r in i.dimensions) if side == k] for k in (0, 1)]
    operands = [
        b.reduce(o, i.operands[1], dropped, i.attributes["to_apply"]) if dropped else o
        for o, dropped in zip(x.operands, gone, strict=True)
    ]
    new = DotDims(
        _without(dims.lhs_contracting, gone[0]),
        _without(dims.rhs_contracting, gone[1]),
        _without(dims.lhs_batch, gone[0]),
        _without(dims.rhs_batch, gone[1]),
    )
    return make_dot(b, x, operands[0], operands[1], new)


def _without(dims: tuple[int, ...], gone: list[int]) -> tuple[int, ...]:
    """Renumber dimensions after the removal of `gone`."""
    return tuple(d - sum(g < d for g in gone) for d in dims)
