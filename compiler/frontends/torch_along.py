"""Products of one dimension with a constant matrix: averages over parts of it, resampling, and their gradients.

Few rows of such a matrix contribute to each column, and they are neighbours. The product is then a sum of a few shifted
and scaled copies, which are slices if the first rows of the columns are evenly spaced, and gathers if not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.torch_builder import T, TorchBuilder
from compiler.frontends.torch_indexing import take_at
from compiler.frontends.torch_movement import piece, zeros_around
from compiler.ir import HloInstruction, Opcode

__all__ = ["along"]

MOST_TAPS = 8
"""Rows per column from which a matrix product is faster."""

H = HloInstruction


def along(b: TorchBuilder, x: H, dim: int, matrix: NDArray[np.float64]) -> H:
    """Return `x` with one dimension multiplied by a constant matrix [before, after].

    Elements that a zero of the matrix excludes do not contribute, even if they are infinite or NaN, unless more than
    `MOST_TAPS` neighbouring rows contribute to a column.
    """
    band = _Band.of(matrix)
    if band is None or x.shape.num_elements == 0:
        return _product(b, x, dim, matrix)
    t = x.shape.element_type
    wide = b.convert(x, T.F32) if t.bits < T.F32.bits else x
    parts = (_weighted(b, band.copy(b, wide, dim, k), dim, band.weights(matrix, k)) for k in range(band.taps))
    return b.convert(functools.reduce(lambda a, c: b.add(Opcode.ADD, a, c), parts), t)


def _product(b: TorchBuilder, x: H, dim: int, matrix: NDArray[np.float64]) -> H:
    weights = b.constant(matrix, x.shape.element_type)
    product = b.add(Opcode.DOT, x, weights, lhs_contracting_dims=(dim,), rhs_contracting_dims=(0,))
    last = product.shape.rank - 1
    return b.transpose(product, [*range(dim), last, *range(dim, last)])


@dataclass(frozen=True)
class _Band:
    """Where the rows that contribute to each column are.

    Attributes:
        first: the first row of each column, which may lie outside of the matrix.
        taps: how many rows there are from there on.
        step: the distance between the first rows of neighbouring columns, if it is the same everywhere; else 0.
    """

    first: NDArray[Any]
    taps: int
    step: int

    @staticmethod
    def of(matrix: NDArray[np.float64]) -> _Band | None:
        """Return the band of a matrix; None if it is wide."""
        used = matrix != 0
        if not used.size:
            return None
        low = np.argmax(used, 0)
        high = np.where(used.any(0), matrix.shape[0] - 1 - np.argmax(used[::-1], 0), low)
        taps = int((high - low).max()) + 1
        columns = np.arange(matrix.shape[1])
        step = round((low[-1] - low[0]) / (columns.size - 1)) if columns.size > 1 else 1
        if step >= 1:
            even = columns * step + int((low - columns * step).min())
            reach = int((high - even).max()) + 1
            if reach <= min(2 * taps, MOST_TAPS):
                return _Band(even, reach, step)
        return _Band(low, taps, 0) if taps <= MOST_TAPS else None

    def weights(self, matrix: NDArray[np.float64], k: int) -> NDArray[np.float64]:
        """Return the weight of the k-th row of each column."""
        rows = self.first + k
        inside = (rows >= 0) & (rows < matrix.shape[0])
        return np.where(inside, matrix[np.where(inside, rows, 0), np.arange(rows.size)], 0.0)

    def copy(self, b: TorchBuilder, x: H, dim: int, k: int) -> H:
        """Return the k-th row of each column; any row where it lies outside of the matrix."""
        n = x.shape.dimensions[dim]
        rows = self.first + k
        if not self.step:
            return take_at(b, x, np.clip(rows, 0, n - 1), dim)
        low, high = max(0, -int(rows[0])), max(0, int(rows[-1]) - (n - 1))
        if low or high:
            x = zeros_around(b, x, dim, low, high)
        return piece(b, x, dim, int(rows[0]) + low, int(rows[-1]) + low + 1, self.step)


def _weighted(b: TorchBuilder, x: H, dim: int, weights: NDArray[np.float64]) -> H:
    """Multiply by weights along a dimension; elements of weight zero become zero."""
    t = x.shape.element_type
    used = weights != 0
    if not used.any():
        return b.full(0, x.shape)
    line = [-1 if d == dim else 1 for d in range(x.shape.rank)]
    if np.ptp(weights[used]):
        x = b.binary(Opcode.MULTIPLY, x, b.constant(weights.reshape(line), t), t)
    elif weights[used][0] != 1:
        x = b.binary(Opcode.MULTIPLY, x, float(weights[used][0]), t)
    return x if used.all() else b.select(b.constant(used.reshape(line), T.PRED), x, 0, t)
