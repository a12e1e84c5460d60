"""Schedules: the parameters by which a nest is bound to a device, which change how it runs but not what it computes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from compiler.codegen.nest.order_method import OrderMethod
from compiler.codegen.schedules.template_schedules import (
    AttentionSchedule,
    GpuSchedule,
    ProductSchedule,
    TileAttentionSchedule,
    TileSchedule,
)
from compiler.errors import PlanError
from compiler.support.processor import AVX512, VectorUnit
from compiler.support.untrusted import as_integer, short_repr

LOCAL_BYTES = 256 * 1024
"""Maximum total size of the local arrays of one kernel.

They are on the stack of a thread, which has 8 MiB on Linux and 512 KiB on macOS by default. Besides, local arrays that
do not fit into the second-level cache would not make a kernel faster.
"""
ELEMENT_BYTES = 4
"""Bytes of most elements."""
UNROLLED_VECTORS = 8
"""Vectors of a loop up to which the C compiler unrolls it completely, if its body is short."""
LANES = 16
"""Number of 32-bit elements of a vector; a tile of columns that ends with a part of one takes more time."""
REGISTERS = 28 * LANES
"""Number of elements in all vector registers but four, of a processor with AVX-512."""
COMPILER_FLAGS: tuple[tuple[str, ...], ...] = (
    (),
    ("-O2",),
    ("-fno-tree-vectorize",),
    ("-fno-tree-slp-vectorize",),
    ("-funroll-loops",),
    ("-ftree-pre", "-ftree-sink", "-fthread-jumps"),
    ("-fno-ivopts",),
    ("-fno-schedule-insns2",),
)
"""The flags that a kernel in C may be compiled with besides those of all kernels. None of them changes results."""
FIELD_RANGES: Mapping[str, range] = {
    # Tiles of 1024 by 1024 elements exceed every cache.
    "tile": range(1025),
    # One 4-byte accumulator per column, or one carried value per lane, then fills the local arrays.
    "columns": range(1, LOCAL_BYTES // 4 + 1),
    # A CUDA block has at most 32 warps of 32 threads. Kernels whose threads work together have whole warps.
    "block": range(0, 1025, 8),
    "lanes": range(1, LOCAL_BYTES // 4 + 1),
    "threads": range(2),
    "grain": range(1_000, 10_000_001, 1_000),
    "vector": range(0, 513, 256),
    "unroll": range(1, 17),
    "accumulators": range(1, 17),
    "splits": range(257),
    "cache": range(3),
    "rare": range(0, 4097, 64),
    "edges": range(2),
    "chains": range(1, 33),
    "axis": range(3),
    "across": range(1025),
    "walk": range(2),
    "flags": range(len(COMPILER_FLAGS)),
    "stream": range(2),
    "narrow": range(2),
    "stages": range(5),
    "short": range(5),
    "hoist": range(2),
    "product.accumulators": range(4, 29, 4),
    "product.row_block": range(8, 513, 8),
    "product.column_block": range(16, 1025, 16),
    "product.shared_rows": range(16, 4097, 16),
    "product.tasks": range(1, 257),
    "product.task_products": range(1 << 12, (1 << 24) + 1, 1 << 12),
    "tiles.rows": range(0, 257, 16),
    "tiles.columns": range(0, 257, 32),
    "tiles.depth": range(0, 65, 8),
    "tiles.row_parts": range(17),
    "tiles.column_parts": range(33),
    "tiles.stages": range(5),
    "tiles.depth_parts": range(9),
    "tile_attention.queries": range(0, 129, 16),
    "tile_attention.keys": range(0, 129, 16),
    "tile_attention.rounded": range(2),
    "attention.accumulators": range(4, 29, 4),
    "attention.queries": range(16, 257, 16),
    "attention.keys": range(8, 257, 8),
    # The vectors of a comparison of a block have 16 elements.
    "order.block": range(16, 1025, 16),
    "order.insertion": range(257),
    "order.room": range(1, 65),
    "order.run": range(4, 257, 4),
    "order.merge": range(0, 1 << 16, 64),
    # The counts of all digits of a key are on the stack.
    "order.digit": range(4, 13),
    "gpu.team": range(1025),
    "gpu.width": range(17),
    "gpu.items": range(9),
    "gpu.tile": range(0, 65, 16),
    "gpu.waves": range(33),
    "gpu.resident": range(9),
    "gpu.ahead": range(0, 129, 8),
    "gpu.atomics": range(2),
}
"""The values that may be chosen for the fields of a `Schedule` and of its parts; a kernel may support fewer."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tunable parameters of a kernel; the defaults suit most kernels.

    A field of a part has a name such as "product.row_block" in plans and choices.

    Attributes:
        tile: edge of the tiles of a loop that reads and writes along different dimensions; 0 for no tiling.
        columns: number of adjacent columns in a tile of a column reduction.
        block: CUDA threads per block; 0 leaves it to the size of the loops.
        lanes: number of positions in a tile of a loop kernel. Those of a tile of fewer than a vector are far apart, and
            on a GPU one thread runs it, so that adjacent threads run adjacent positions.
        threads: 1 if loops that take long enough run on several CPU threads, 0 if the kernel runs on one.
        grain: minimum work of a task that one thread takes at a time, in statements.
        vector: bits of a SIMD vector on a CPU; 0 for scalar code.
        unroll: number of vectors that one iteration of a vector loop computes; 1 leaves it to the C compiler.
        accumulators: vectors in which a reduction accumulates at the same time, to hide the latency of its combiner.
        splits: parts into which a reduction is divided, to be reduced at the same time; 0 divides it by its work.
        cache: values of a row that several loops over it need and that are kept in a local array: 0 for none, 1 for
            those that are expensive to compute, 2 also for those that are loaded.
        rare: number of positions for which expensive values that only selects need are computed together, for the
            positions alone that select them; 0 computes them for every position, which is faster if a third of the
            positions selects them. Loop kernels have blocks by default, because simulators reset few environments.
        edges: 1 if the edges of windows and pads are split out of the loops of a CPU, 0 if each element tests for them.
        chains: rows of a cumulative reduction that advance together, to hide the latency of its combiner.
        axis: dimension of the carried arrays along which a loop kernel is divided: 0 for the longer of the first and
            the last, 1 for the first, 2 for the last.
        across: the other edge of a tile, along which reads are contiguous; 0 for a square tile, or for a larger one if
            the arrays are large.
        walk: order of tiles: 0 for neighbors along the dimension in which writes are contiguous first, 1 for those
            along the dimension in which reads are.
        flags: position in COMPILER_FLAGS of the flags that the kernel is compiled with.
        stream: 1 if vector loops store their results past the caches, which saves reading the lines they overwrite but
            leaves nothing in the cache for the next kernel.
        narrow: 1 if a kernel whose vector loops are short has vectors of half the width where that leaves fewer
            elements over, and if loops with long functions end with halves and quarters of a vector.
        stages: maximum number of expensive operations in a row that one vector loop computes; longer chains pass
            through several loops over a block, whose iterations the processor can overlap. 0 does not divide chains.
        short: loops of at most this many iterations are unrolled inside longer ones, which then run in vectors.
        hoist: 1 if values that all iterations of an outer loop share are computed once, before that loop.
        product: the part for matrix products on a CPU.
        tiles: the part for matrix products on a GPU.
        tile_attention: the part for attention on a GPU.
        attention: the part for attention.
        order: the part for sorts and selections by key.
        gpu: the part for loops on a GPU.
        unit: the vector registers of the processor; not a choice.
    """

    tile: int = 32
    columns: int = 256
    block: int = 256
    lanes: int = 256
    threads: int = 1
    grain: int = 20_000
    vector: int = 512
    unroll: int = 1
    accumulators: int = 4
    splits: int = 0
    cache: int = 1
    rare: int = 0
    edges: int = 1
    chains: int = 8
    axis: int = 0
    across: int = 0
    walk: int = 0
    flags: int = 0
    stream: int = 0
    narrow: int = 1
    stages: int = 1
    short: int = 4
    hoist: int = 1
    product: ProductSchedule = field(default_factory=ProductSchedule)
    tiles: TileSchedule = field(default_factory=TileSchedule)
    tile_attention: TileAttentionSchedule = field(default_factory=TileAttentionSchedule)
    attention: AttentionSchedule = field(default_factory=AttentionSchedule)
    order: OrderMethod = field(default_factory=OrderMethod)
    gpu: GpuSchedule = field(default_factory=GpuSchedule)
    unit: VectorUnit = AVX512

    def value(self, name: str) -> int:
        """Return a field by its name in FIELD_RANGES."""
        found: int = attrgetter(name)(self)
        return found

    def with_values(self, values: Mapping[str, int]) -> Schedule:
        """Return the schedule with some fields changed, by their names in FIELD_RANGES."""
        changed: dict[str, Any] = {}
        for name, value in values.items():
            part, _, name_in_part = name.rpartition(".")
            if part:
                changed[part] = replace(changed.get(part, getattr(self, part)), **{name_in_part: value})
            else:
                changed[name] = value
        made = object.__new__(Schedule)
        for name, slot in _SLOTS:  # much faster than `replace`
            slot.__set__(made, changed[name] if name in changed else slot.__get__(self))
        return made

    def column_tile(self, width: int, accumulators: int = 1, others: int = 0) -> int:
        """Return the number of columns in a tile.

        Args:
            width: number of columns in total.
            accumulators: values per column that the loop over the rows updates.
            others: values per column that it reads. All of them should stay in registers, in whole vectors.
        """
        usual = _divisor_near(self.columns, width)
        for values in (accumulators + others, accumulators):
            most = self.columns // values // LANES * LANES
            if values * usual <= REGISTERS or most < LANES or width < 2 * most:
                return usual
            tile = min(range(most, max(LANES, most * 3 // 4) - 1, -LANES), key=lambda t: width % t)
            if values == accumulators or width % tile == 0:
                return tile
        return usual

    def lane_tile(self, width: int) -> int:
        """Return the number of positions in a tile of a loop kernel, given `width` positions in total.

        There are only whole tiles of fewer than LANES positions. Larger ones whose vectors the C compiler unrolls leave
        a remainder rather than parts of vectors; others leave none where possible.
        """
        if self.lanes < LANES:
            return max(n for n in range(1, self.lanes + 1) if width % n == 0)
        is_unrolled = self.lanes * ELEMENT_BYTES <= UNROLLED_VECTORS * self.unit.size
        return min(width, self.lanes) if is_unrolled else _divisor_near(self.lanes, width)

    def to_json(self) -> dict[str, int]:
        """Return the fields that differ from the defaults."""
        default = Schedule()
        return {name: self.value(name) for name in FIELD_RANGES if self.value(name) != default.value(name)}

    @staticmethod
    def from_json(data: Mapping[str, object], default: Schedule | None = None) -> Schedule:
        """Return a default schedule with some fields changed; raise PlanError for an unknown field or value."""
        return (default or Schedule()).with_values(parse_choice(data))


_SLOTS = tuple((f.name, vars(Schedule)[f.name]) for f in fields(Schedule))
"""The fields of a schedule, each with the descriptor that reads and sets it."""


def parse_choice(data: Mapping[str, object]) -> dict[str, int]:
    """Return choices for the fields of a `Schedule` as integers; raise PlanError for an unknown field or value."""
    if not isinstance(data, Mapping):
        raise PlanError(f"the choices of a kernel must map names to integers, not {short_repr(data)}")
    found: dict[str, int] = {}
    for name, value in data.items():
        if name not in FIELD_RANGES:
            near = difflib.get_close_matches(str(name)[:60], FIELD_RANGES, n=3) or list(FIELD_RANGES)[:6]
            raise PlanError(f"a kernel has no choice {short_repr(name)}; there are {', '.join(near)}, ...")
        number, allowed = as_integer(value), FIELD_RANGES[name]
        if number is None or number not in allowed:
            of = f"a multiple of {allowed.step}" if allowed.step > 1 else "an integer"
            raise PlanError(
                f"a kernel's {name} must be {of} from {allowed[0]} to {allowed[-1]}, not {short_repr(value)}"
            )
        found[name] = number
    return found


def _divisor_near(preferred: int, width: int) -> int:
    """Return a divisor of `width` close to the preferred tile size, so that no remainder is left, or else that size."""
    if width <= preferred:
        return width
    for tile in range(preferred, max(15, preferred // 4), -1):
        if width % tile == 0:
            return tile
    return preferred
