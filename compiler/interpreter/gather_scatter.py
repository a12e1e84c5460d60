"""Evaluators of gather and scatter, with batching dimensions and out-of-bounds rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Array, Value, array_evaluator, arrays, evaluator, own
from compiler.interpreter.scalars import ArrayFunction, binary_opcode, lift, returns_parameter
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def _index_columns(indices: Array, vector_dim: int) -> list[Array]:
    """Return the components of the index vectors: for each one an int64 array of the batch shape."""
    # Larger unsigned indices would become negative.
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**62))
    wide = indices.astype(np.int64)
    if vector_dim == indices.ndim:
        return [wide]
    return list(np.moveaxis(wide, vector_dim, 0))


def _spread(x: Array, dims: Sequence[int], rank: int) -> Array:
    """Reshape `x` to rank `rank`, with its dimensions at positions `dims` and size 1 elsewhere."""
    shape = [1] * rank
    for size, d in zip(x.shape, dims, strict=True):
        shape[d] = size
    return x.reshape(shape)


@array_evaluator(Opcode.GATHER)
def _gather(instruction: HloInstruction, x: Array, indices: Array) -> Array:
    """Gather slices whose start indices are clamped, so that the slices are in bounds."""
    attr = instruction.attr
    sizes, start_map, rank = attr("slice_sizes"), attr("start_index_map"), instruction.shape.rank
    offset_dims: tuple[int, ...] = tuple(sorted(attr("offset_dims")))
    batching = attr("operand_batching_dims", ())
    absent = {*attr("collapsed_slice_dims"), *batching}
    batch_dims = [d for d in range(rank) if d not in offset_dims]
    columns = dict(zip(start_map, _index_columns(indices, attr("index_vector_dim")), strict=True))
    index_dims = [d for d in range(indices.ndim) if d != attr("index_vector_dim")]
    paired = dict(zip(batching, attr("start_indices_batching_dims", ()), strict=True))
    offsets = iter(offset_dims)
    # One broadcastable index array per operand dimension, then a single numpy fancy-indexing call.
    at: list[Array] = []
    for d, size in enumerate(sizes):
        where = np.zeros([1] * rank, np.int64)
        if d in columns:
            where = where + _spread(np.clip(columns[d], 0, x.shape[d] - size), batch_dims, rank)
        if d in paired:
            out_dim = batch_dims[index_dims.index(paired[d])]
            where = where + _spread(np.arange(x.shape[d]), [out_dim], rank)
        if d not in absent:
            where = where + _spread(np.arange(size), [next(offsets)], rank)
        at.append(where)
    if not at:
        return np.broadcast_to(x, instruction.shape.dimensions)
    if 0 in instruction.shape.dimensions:
        return np.empty(instruction.shape.dimensions, x.dtype)
    return np.broadcast_to(x[tuple(at)], instruction.shape.dimensions)


@evaluator(Opcode.SCATTER)
def _scatter(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    n = (len(values) - 1) // 2
    indices, *updates = arrays(values[n:])
    operands = [own(values, k) for k in range(n)]
    targets, kept = _targets(instruction, operands[0].shape, indices, updates[0].shape)
    window = instruction.attr("update_window_dims")
    # Apply the updates window by window, in the order of the indices.
    order = [d for d in range(updates[0].ndim) if d not in window] + sorted(window)
    targets, kept = (x.transpose(order).reshape(-1) for x in (targets, kept))
    flat = [x.reshape(-1) for x in operands]
    chosen = [u.transpose(order).reshape(-1)[kept] for u in updates]
    combine_at(machine, instruction.attr("to_apply"), flat, targets[kept], chosen)
    results = [f.reshape(x.shape) for f, x in zip(flat, operands, strict=True)]
    return results[0] if n == 1 else tuple(results)


def _targets(
    instruction: HloInstruction, dims: tuple[int, ...], indices: Array, update_dims: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return for each update element its flat target position, and whether its whole window is in bounds."""
    attr, rank = instruction.attr, len(update_dims)
    window = tuple(sorted(attr("update_window_dims")))
    batching = attr("input_batching_dims", ())
    absent = {*attr("inserted_window_dims"), *batching}
    batch_dims = [d for d in range(rank) if d not in window]
    columns = dict(
        zip(attr("scatter_dims_to_operand_dims"), _index_columns(indices, attr("index_vector_dim")), strict=True)
    )
    index_dims = [d for d in range(indices.ndim) if d != attr("index_vector_dim")]
    paired = dict(zip(batching, attr("scatter_indices_batching_dims", ()), strict=True))
    offsets = iter(window)
    target = np.zeros([1] * rank, np.int64)
    inside = np.ones([1] * rank, np.bool_)
    for d, size in enumerate(dims):
        where, span = np.zeros([1] * rank, np.int64), 1
        own = None if d in absent else next(offsets)
        if own is not None:
            span = update_dims[own]
            where = where + _spread(np.arange(span), [own], rank)
        if d in columns:
            start = _spread(columns[d], batch_dims, rank)
            inside = inside & (start >= 0) & (start <= size - span)
            where = where + np.where((start >= 0) & (start <= size - span), start, 0)
        if d in paired:
            where = where + _spread(np.arange(size), [batch_dims[index_dims.index(paired[d])]], rank)
        target = target * size + where
    return np.broadcast_to(target, update_dims), np.broadcast_to(inside, update_dims)


_AT = {
    Opcode.ADD: np.add,
    Opcode.MULTIPLY: np.multiply,
    Opcode.MAXIMUM: np.maximum,
    Opcode.MINIMUM: np.minimum,
    Opcode.AND: np.bitwise_and,
    Opcode.OR: np.bitwise_or,
    Opcode.XOR: np.bitwise_xor,
}


def combine_at(
    machine: Machine, computation: HloComputation, flat: list[Array], targets: Array, updates: list[Array]
) -> None:
    """Combine updates into `flat` in order."""
    if len(flat) == 1:
        x, u = flat[0], updates[0]
        if returns_parameter(computation) == 1:
            x[targets] = u
            return
        ufunc = _AT.get(binary_opcode(computation) or Opcode.CALL)
        if ufunc is not None and x.dtype.kind in "iufc" and x.dtype.itemsize >= 4:
            ufunc.at(x, targets, u)
            return
    _apply_in_rounds(lift(machine, computation), flat, targets, updates)


def _apply_in_rounds(f: ArrayFunction, flat: list[Array], targets: Array, updates: list[Array]) -> None:
    """Apply the k-th update of every target in round k, so that no target occurs twice in a round."""
    # A stable sort groups equal targets; an update's position in its group is its round.
    order = np.argsort(targets, kind="stable")
    ordered = targets[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.bool_)
    start = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))
    nth = np.arange(len(ordered)) - start
    by_round = np.argsort(nth, kind="stable")
    bounds = np.searchsorted(nth[by_round], np.arange(int(nth.max(initial=-1)) + 2))
    for low, high in pairwise(bounds):
        chosen = order[by_round[low:high]]
        where = targets[chosen]
        results = f([*(x[where] for x in flat), *(u[chosen] for u in updates)])
        for x, r in zip(flat, results, strict=True):
            x[where] = r
