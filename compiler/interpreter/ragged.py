"""Evaluators of ragged and scaled dots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpreter.dot import contract, narrow_product, product_type
from compiler.interpreter.registry import Array, array_evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

Pair = tuple[tuple[int, ...], tuple[int, ...]]


def _dims(instruction: HloInstruction) -> tuple[Pair, Pair]:
    """Return the contracting and the batch dimensions of both sides."""
    attr = instruction.attr
    contracting = (attr("lhs_contracting_dims", ()), attr("rhs_contracting_dims", ()))
    return contracting, (attr("lhs_batch_dims", ()), attr("rhs_batch_dims", ()))


@array_evaluator(Opcode.RAGGED_DOT)
def _ragged_dot(instruction: HloInstruction, a: Array, b: Array, sizes: Array) -> Array:
    """Multiply groups of rows of `a`, of the given sizes, by one matrix of `b` each; rows beyond all groups give 0.

    If the ragged dimension is contracting, each group has its own product, along a new first dimension. If it is a
    batch dimension, the groups have no effect.
    """
    contracting, batch = _dims(instruction)
    (ragged,) = instruction.attr("lhs_ragged_dims")
    types = tuple(o.shape.element_type for o in instruction.operands[:2])
    result = instruction.shape.element_type
    wide = product_type(types, result)
    a, b = a.astype(wide), b.astype(wide)
    if ragged in batch[0]:
        return narrow_product(contract(a, b, contracting, batch), result)
    if sizes.ndim > 1 + len(batch[0]) or (sizes.ndim > 1 and sizes.shape[:-1] != tuple(a.shape[d] for d in batch[0])):
        raise UnsupportedError(f"%{instruction.name}: group sizes of shape {sizes.shape} are not supported")
    if sizes.ndim > 1:
        out = _by_batch(instruction, a, b, sizes, ragged)
    elif ragged in contracting[0]:
        out = _contracted(a, b, sizes, ragged, contracting, batch)
    else:
        (group,) = instruction.attr("rhs_group_dims")
        out = _grouped_rows(a, b, sizes, (ragged, group), contracting, batch)
    return narrow_product(out, result)


def _spans(sizes: Array, limit: int) -> list[slice]:
    ends = np.cumsum(sizes.astype(np.int64))
    return [slice(min(int(e - n), limit), min(int(e), limit)) for e, n in zip(ends, sizes, strict=True)]


def _grouped_rows(a: Array, b: Array, sizes: Array, dims: tuple[int, int], contracting: Pair, batch: Pair) -> Array:
    ragged, group = dims
    free = [d for d in range(a.ndim) if d not in contracting[0] and d not in batch[0]]
    at = len(batch[0]) + free.index(ragged)
    moved = tuple(d - (d > group) for d in contracting[1]), tuple(d - (d > group) for d in batch[1])
    parts = []
    for g, span in enumerate(_spans(sizes, a.shape[ragged])):
        rows = a[(slice(None),) * ragged + (span,)]
        parts.append(contract(rows, np.take(b, g, group), (contracting[0], moved[0]), (batch[0], moved[1])))
    whole = np.concatenate(parts, at)
    missing = a.shape[ragged] - whole.shape[at]
    return np.pad(whole, [(0, missing if d == at else 0) for d in range(whole.ndim)])


def _contracted(a: Array, b: Array, sizes: Array, ragged: int, contracting: Pair, batch: Pair) -> Array:
    other = contracting[1][contracting[0].index(ragged)]
    parts = []
    for span in _spans(sizes, a.shape[ragged]):
        left = a[(slice(None),) * ragged + (span,)]
        right = b[(slice(None),) * other + (span,)]
        parts.append(contract(left, right, contracting, batch))
    return np.stack(parts)


def _by_batch(instruction: HloInstruction, a: Array, b: Array, sizes: Array, ragged: int) -> Array:
    """Compute a ragged dot whose group sizes differ between batch elements."""
    contracting, batch = _dims(instruction)
    n = len(batch[0])
    a, inner_a = _batch_first(a, batch[0])
    b, inner_b = _batch_first(b, batch[1])
    inner = tuple(inner_a[d] for d in contracting[0]), tuple(inner_b[d] for d in contracting[1])
    rows = ragged in contracting[0]
    outs = []
    for at in np.ndindex(a.shape[:n]):
        if rows:
            outs.append(_contracted(a[at], b[at], sizes[at], inner_a[ragged], inner, ((), ())))
        else:
            (group,) = instruction.attr("rhs_group_dims")
            outs.append(_grouped_rows(a[at], b[at], sizes[at], (inner_a[ragged], inner_b[group]), inner, ((), ())))
    whole = np.stack(outs).reshape(*a.shape[:n], *outs[0].shape)
    return np.moveaxis(whole, n, 0) if rows else whole


def _batch_first(x: Array, batch: Sequence[int]) -> tuple[Array, dict[int, int]]:
    """Move the batch dimensions to the front; return also the new position of each other dimension after them."""
    rest = [d for d in range(x.ndim) if d not in batch]
    return x.transpose([*batch, *rest]), {d: k for k, d in enumerate(rest)}


@array_evaluator(Opcode.SCALED_DOT)
def _scaled_dot(instruction: HloInstruction, a: Array, b: Array, *scales: Array) -> Array:
    """Multiply the operands by their scales, each repeated over its block, then contract in float32."""
    contracting, batch = _dims(instruction)
    result = instruction.shape.element_type
    wide = product_type([o.shape.element_type for o in instruction.operands[:2]], result)
    left, right = (
        x.astype(wide) * _spread_blocks(scales[k].astype(wide), x.shape) if k < len(scales) else x.astype(wide)
        for k, x in enumerate((a, b))
    )
    return narrow_product(contract(left, right, contracting, batch), result)


def _spread_blocks(scale: Array, dims: tuple[int, ...]) -> Array:
    if scale.ndim == 0:
        return scale
    for d, n in enumerate(dims):
        if scale.shape[d] != n:
            scale = np.repeat(scale, n // scale.shape[d], d)
    return scale
