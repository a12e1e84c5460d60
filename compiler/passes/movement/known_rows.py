"""Sums of rows into known places of an array, as gathers instead of a scatter.

A scatter adds one row after the other. The first, the second... row of each place are gathers by known indices, which
are vector code, can be fused, and are slices where the places are evenly spaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import scalar_function

__all__ = ["CompleteRows", "sum_of_gathers"]

_MOST_READ = 2
"""How many rows, for each row that a scatter adds, may be read instead."""
_WIDE = 16
"""Elements next to each other in memory from which a scatter is vector code too."""


@dataclass(frozen=True)
class CompleteRows:
    """A scatter of complete rows, one per index.

    Attributes:
        dim: the dimension of the operand that the indices name.
        batch: the dimension of the updates along which the rows are.
        order: the permutation of the updates to the dimensions of the operand.
    """

    dim: int
    batch: int
    order: tuple[int, ...]

    @staticmethod
    def of(i: HloInstruction) -> CompleteRows | None:
        """Return the rows of a scatter, or None if it writes something else."""
        if len(i.operands) != 3 or i.attr("input_batching_dims", ()):
            return None
        x, _, updates = i.operands
        mapped: tuple[int, ...] = i.attributes["scatter_dims_to_operand_dims"]
        windows: tuple[int, ...] = i.attributes["update_window_dims"]
        batch = [k for k in range(updates.shape.rank) if k not in windows]
        if len(mapped) != 1 or i.attributes["inserted_window_dims"] != mapped or len(batch) != 1:
            return None
        (d,), rest = mapped, iter(windows)
        order = tuple(batch[0] if k == d else next(rest) for k in range(x.shape.rank))
        sizes = [updates.shape.dimensions[k] for k in order]
        whole = all(n == m for k, (n, m) in enumerate(zip(sizes, x.shape.dimensions, strict=True)) if k != d)
        return CompleteRows(d, batch[0], order) if whole else None


def sum_of_gathers(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return what replaces a scatter that adds complete rows at known places to most rows; None for others."""
    rows = CompleteRows.of(i)
    if rows is None or scalar_function(i.attributes["to_apply"]) is not Opcode.ADD:
        return None
    x, indices, updates = i.operands
    if indices.literal is None or indices.literal.array is None or not x.shape.num_elements:
        return None
    places = indices.literal.array.reshape(-1).astype(np.int64)
    n = x.shape.dimensions[rows.dim]
    found = list(_rounds(places, n))
    if len(found) * n > _MOST_READ * places.size:
        return None
    if math.prod(x.shape.dimensions[rows.dim + 1 :]) >= _WIDE and not all(map(_is_even, found)):
        return None
    total = x
    for given in found:
        taken = b.transpose(_taken(updates, rows.batch, np.maximum(given, 0), b), rows.order)
        used = given >= 0
        if not used.all():  # a product with zero would spread infinities
            mask = b.broadcast(b.constant(used), taken.shape.dimensions, (rows.dim,))
            taken = b.add(Opcode.SELECT, mask, taken, b.splat(0, taken.shape))
        total = b.add(Opcode.ADD, total, taken)
    return total


def _rounds(places: NDArray[np.int64], n: int) -> Iterator[NDArray[np.int64]]:
    """Yield which row is the first to go to each of `n` places, the second, and so on; -1 where there is none."""
    left = np.flatnonzero((places >= 0) & (places < n))
    while left.size:
        here, first = np.unique(places[left], return_index=True)
        given = np.full(n, -1)
        given[here] = left[first]
        yield given
        left = np.delete(left, first)


def _is_even(given: NDArray[np.int64]) -> bool:
    """Check whether rows are evenly spaced, so that they are a slice."""
    steps = np.diff(given)
    return bool(given.min() >= 0 and (steps == steps[:1]).all())


def _taken(updates: HloInstruction, dim: int, rows: NDArray[Any], b: Builder) -> HloInstruction:
    """Gather these rows along a dimension."""
    sizes = tuple(1 if d == dim else m for d, m in enumerate(updates.shape.dimensions))
    index = b.constant(rows.astype(PrimitiveType.S32.dtype))
    return b.add(
        Opcode.GATHER, updates, index, offset_dims=tuple(d for d in range(updates.shape.rank) if d != dim),
        collapsed_slice_dims=(dim,), start_index_map=(dim,), index_vector_dim=1, slice_sizes=sizes,
    )  # fmt: skip
