"""Schedules: the parameters by which a nest is bound to a device, which change how it runs but not what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.errors import PlanError
from compiler.support.untrusted import as_integer, short_repr

LOCAL_BYTES = 256 * 1024
"""Maximum total size of the local arrays of one kernel.

They are on the stack of a thread, which has 8 MiB on Linux and 512 KiB on macOS by default. Besides, local arrays that
do not fit into the second-level cache would not make a kernel faster.
"""
FIELD_RANGES: Mapping[str, range] = {
    # Tiles of 1024 by 1024 elements exceed every cache.
    "tile": range(1025),
    # One 4-byte accumulator per column, or one carried value per lane, then fills the local arrays.
    "columns": range(1, LOCAL_BYTES // 4 + 1),
    # Whole warps of 32 threads; a CUDA block has at most 32 warps.
    "block": range(32, 1025, 32),
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
}
"""The values that may be chosen for the fields of a `Schedule`; a kernel may support fewer."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tunable parameters of a kernel; the defaults suit most kernels.

    Attributes:
        tile: edge of the square tiles of a loop that reads and writes along different dimensions; 0 for no tiling.
        columns: number of adjacent columns in a tile of a column reduction.
        block: CUDA threads per block.
        lanes: number of positions in a tile of a loop kernel.
        threads: 1 if loops with enough work run on several CPU threads, 0 if the kernel runs on one.
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

    def column_tile(self, width: int) -> int:
        """Return the number of columns in a tile, given `width` columns in total."""
        return _divisor_near(self.columns, width)

    def lane_tile(self, width: int) -> int:
        """Return the number of positions in a tile of a loop kernel, given `width` positions in total."""
        return _divisor_near(self.lanes, width)

    def to_json(self) -> dict[str, int]:
        """Return the fields that differ from the defaults."""
        default = Schedule()
        return {k: getattr(self, k) for k in self.__dataclass_fields__ if getattr(self, k) != getattr(default, k)}

    @staticmethod
    def from_json(data: Mapping[str, object], default: Schedule | None = None) -> Schedule:
        """Return a default schedule with some fields changed; raise PlanError for an unknown field or value."""
        return replace(default or Schedule(), **parse_choice(data))


def parse_choice(data: Mapping[str, object]) -> dict[str, int]:
    """Return choices for the fields of a `Schedule` as integers; raise PlanError for an unknown field or value."""
    if not isinstance(data, Mapping):
        raise PlanError(f"the choices of a kernel must map names to integers, not {short_repr(data)}")
    found: dict[str, int] = {}
    for name, value in data.items():
        if name not in FIELD_RANGES:
            raise PlanError(f"a kernel has no choice {short_repr(name)}; choices: {', '.join(FIELD_RANGES)}")
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
