"""The parameters of products, of attention and of GPUs, which are parts of a `Schedule`."""

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


@dataclass(frozen=True, slots=True)
class GpuSchedule:
    """The tunable parameters of loops on a GPU; 0 leaves a choice to the rules of `schedules.cuda_shapes`.

    Attributes:
        team: number of threads that reduce one row or column together, rounded down to a power of two.
        width: number of adjacent elements that a thread reads or writes in one access of at most 16 bytes, rounded down
            to a power of two.
        items: number of accesses to each array by one thread of a loop without reductions.
        tile: edge of the tiles in shared memory of a loop that reads and writes along different dimensions; 0 for none.
        waves: maximum number of blocks per multiprocessor, which then run several iterations each; 0 for one iteration
            per block.
        resident: number of blocks that a multiprocessor should hold at a time, for which the compiler limits registers.
        ahead: number of steps of a loop kernel for which one additional warp computes the state that all positions
            share, while the other warps run the steps before; 0 if each thread computes this state itself and loads
            its inputs in the steps that need them.
        atomics: 1 if a scatter adds floats atomically, in an order and with a rounding that differ from run to run. No
            rule or search chooses it, because a plan gives the same results each time.
    """

    team: int = 0
    width: int = 0
    items: int = 0
    tile: int = 32
    waves: int = 0
    resident: int = 0
    ahead: int = 16
    atomics: int = 0


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """The tunable parameters of a matrix product on a GPU; 0 leaves the choice to a rule.

    Attributes:
        rows, columns: size of the tile of the result that a block computes.
        depth: contracted elements that are in shared memory at a time.
        row_parts, column_parts: parts of a tile, one per warp for tensor cores, otherwise one per thread.
        stages: number of tiles of the operands in shared memory, for tensor cores.
        depth_parts: groups of threads among which the steps of a sum are divided, without tensor cores.
    """

    rows: int = 0
    columns: int = 0
    depth: int = 0
    row_parts: int = 0
    column_parts: int = 0
    stages: int = 0
    depth_parts: int = 0


@dataclass(frozen=True, slots=True)
class TileAttentionSchedule:
    """The tunable parameters of attention on a GPU; 0 leaves the choice to a rule.

    Attributes:
        queries: queries of a block.
        keys: keys whose scores are computed at a time.
        rounded: 1 if weights are multiplied as halves where the program converts them to halves, which takes two thirds
            of the products; 0 if they keep the precision of f32.
    """

    queries: int = 0
    keys: int = 0
    rounded: int = 0
