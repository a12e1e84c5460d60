"""Register tiles of a product: how many rows and vectors of sums one pass along the depth computes."""

from __future__ import annotations

import math

__all__ = ["best_tile", "tile_cycles"]

MAX_TILE_ROWS, MAX_TILE_VECTORS = 14, 12
LATENCY = 4
"""Cycles from a multiplication to the next that adds to the same vector: a step takes at least as long."""


def tile_cycles(rows: int, vectors: int) -> float:
    """Return the estimated cycles of one step along the depth of a register tile.

    A cycle has two products and two loads. What follows that is measured: vectors of the rhs cost more than elements of
    the lhs, more than eight rows cost registers, and each tile has some overhead.
    """
    return max(rows * vectors / 2, (rows + vectors) / 2, LATENCY) + vectors / 4 + max(0, rows - 8) / 4 + 0.3


def best_tile(rows: int, vectors: int, accumulators: int) -> tuple[int, int]:
    """Return the rows and vectors of the register tile that divides a block at the lowest estimated cost."""
    best, least = (1, 1), math.inf
    for v in range(1, min(vectors, MAX_TILE_VECTORS) + 1):
        for r in range(1, min(rows, MAX_TILE_ROWS, accumulators // v) + 1):
            cost = sum(
                count_r * count_v * tile_cycles(height, width)
                for height, count_r in ((r, rows // r), (rows % r, int(rows % r > 0)))
                for width, count_v in ((v, vectors // v), (vectors % v, int(vectors % v > 0)))
                if count_r and count_v
            )
            if cost < least:
                best, least = (r, v), cost
    return best
