"""The parameters of products and attention, which are parts of a `Schedule`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """The tunable parameters of a matrix product on a CPU.

    Attributes:
        accumulators: maximum number of vectors of sums in a register tile.
        row_block, column_block: maximum size of a block, whose sums are kept in the first-level cache.
        shared_rows: rows of a task, over which the cost of packing columns is spread.
        tasks: number of blocks below which they are divided further, for threads to share.
        task_products: number of multiplications of a block below which it is not divided.
    """

    accumulators: int = 24
    row_block: int = 64
    column_block: int = 128
    shared_rows: int = 256
    tasks: int = 16
    task_products: int = 1 << 18


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """The tunable parameters of attention on a CPU.

    Attributes:
        accumulators: maximum number of vectors of sums in a register tile.
        queries, keys: maximum size of a block; queries are rounded up to whole vectors.
    """

    accumulators: int = 24
    queries: int = 64
    keys: int = 64
