"""Buffers: the memory of values, and the assignment of arena offsets."""

from __future__ import annotations

import bisect
import enum
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from compiler.ir.shape import Shape

ALIGNMENT = 64
"""Alignment of the arena and of the offsets in it, in bytes: a cache line and the widest SIMD register."""
MOST_BY_SIZE = 4000
"""Number of buffers up to which offsets are assigned by size too, which takes quadratic time."""
PAGE = 4096
"""Bytes that an address is modulo when a processor asks whether a load may overlap an earlier store."""
PLACE = 256
"""Distance between such places in bytes; nearer ones slow loads down as equal ones do."""
USUAL_PLACE = 64
"""Where in their pages the large arrays of other libraries begin, about, in bytes."""
NEIGHBOURS = 16
"""Number of buffers before one, in the order of their live ranges, from whose places its own differs."""


class BufferKind(enum.Enum):
    """The owner of a buffer's memory."""

    PARAMETER = "parameter"  # owned by the caller, read-only
    OUTPUT = "output"  # owned by the caller, written; at first it holds the argument that is donated to it, if any
    CONSTANT = "constant"  # owned by the executable, read-only
    TEMPORARY = "temporary"  # in the arena


@dataclass(eq=False)
class Buffer:
    """The memory of one array value; `merge` makes it an alias of another buffer.

    Attributes:
        shape: shape of the value.
        kind: owner of the memory.
        index: number of the argument, result or constant; for a temporary its offset in the arena, once assigned.
        forward: the buffer that this one is an alias of, if any.
    """

    shape: Shape
    kind: BufferKind = BufferKind.TEMPORARY
    index: int = -1
    forward: Buffer | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return max(1, self.shape.byte_size)

    def resolve(self) -> Buffer:
        """Return the buffer that holds the value after all merges."""
        b = self
        while b.forward is not None:
            b = b.forward
        return b

    def merge(self, into: Buffer) -> None:
        """Make this buffer an alias of `into`."""
        target = into.resolve()
        if target is not self.resolve():
            self.resolve().forward = target


@dataclass
class Interval:
    """The live range of a buffer: its first and last step in the program."""

    start: int
    end: int


def assign_offsets(intervals: dict[Buffer, Interval]) -> int:
    """Assign an arena offset to each temporary, in place, and return the size of the arena in bytes.

    Buffers whose live ranges intersect do not overlap. The smaller of two assignments is taken: large buffers first,
    each in the smallest gap between those before it, or a linear scan over the live ranges. Within the slack that both
    leave, buffers that are used together are then moved to different places of their pages.
    """
    scanned, size = _scan(intervals)
    if len(intervals) <= MOST_BY_SIZE:
        placed, smaller = _place_by_size(intervals)
        if smaller < size:
            scanned, size = placed, smaller
    for b, offset in _staggered(scanned, intervals).items():
        b.index = offset
    return size


def _slack(size: int) -> int:
    """Return by how many bytes a buffer may be moved: a page, or a quarter of its size; 0 if it is less than a page."""
    return 0 if size < PAGE else min(PAGE, size // 4 // PLACE * PLACE)


def _staggered(offsets: dict[Buffer, int], intervals: dict[Buffer, Interval]) -> dict[Buffer, int]:
    """Return offsets within the slack such that buffers alive at the same time begin at different places of a page.

    A load whose address equals that of a store before it in the lower 12 bits waits for the store. Kernels read and
    write several arrays at the same index, so arrays that are whole pages apart, as those of powers of two become,
    slow each other down: by a third where two are read and two are written.
    """
    moved = dict(offsets)
    large = sorted((b for b in offsets if _slack(b.size)), key=lambda b: (intervals[b].start, intervals[b].end))
    for n, b in enumerate(large):
        beside = [o for o in large[max(0, n - NEIGHBOURS) : n] if intervals[o].end >= intervals[b].start]
        taken = np.array([USUAL_PLACE, *(moved[o] for o in beside)])
        places = offsets[b] + np.arange(0, _slack(b.size) + 1, PLACE)
        apart = (places[:, None] - taken) % PAGE
        crowding = np.maximum(0, 1 - np.minimum(apart, PAGE - apart) / PLACE).sum(axis=1)
        moved[b] = int(places[crowding.argmin()])
    return moved


def _place_by_size(intervals: dict[Buffer, Interval]) -> tuple[dict[Buffer, int], int]:
    """Return offsets and their end: each buffer, large ones first, in the smallest gap between those alive with it.

    Greedy by size, as in Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference* (2020).
    """
    order = sorted(intervals, key=lambda b: (-b.size, intervals[b].start, intervals[b].end))
    start, end = (np.array([getattr(intervals[b], name) for b in order], np.int64) for name in ("start", "end"))
    low, high = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    for n, b in enumerate(order):
        size = _reserved(b.size)
        beside = np.flatnonzero((start[:n] <= end[n]) & (start[n] <= end[:n]))
        low[n] = _gap(sorted(zip(low[beside].tolist(), high[beside].tolist(), strict=True)), size)
        high[n] = low[n] + size
    return dict(zip(order, low.tolist(), strict=True)), int(high.max(initial=0))


def _gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap of some size between spans in ascending order, or the end of them all."""
    best, width, top = -1, -1, 0
    for low, high in taken:
        if low - top >= size and (best < 0 or low - top < width):
            best, width = top, low - top
        top = max(top, high)
    return best if best >= 0 else top


def _reserved(size: int) -> int:
    """Return the bytes that a buffer is given in the arena: a multiple of ALIGNMENT, with its slack."""
    return -(-size // ALIGNMENT) * ALIGNMENT + _slack(size)


def _scan(intervals: dict[Buffer, Interval]) -> tuple[dict[Buffer, int], int]:
    """Return offsets and their end by a linear scan over the live ranges with a best-fit choice among free blocks."""
    offsets: dict[Buffer, int] = {}
    live: list[tuple[int, int, int]] = []  # a heap of (end, offset, size)
    free: list[tuple[int, int]] = []  # (offset, size), sorted by offset
    top = 0
    for b in sorted(intervals, key=lambda b: (intervals[b].start, -b.size)):
        interval = intervals[b]
        while live and live[0][0] < interval.start:
            _, offset, size = heapq.heappop(live)
            _add_free_block(free, offset, size)
        size = _reserved(b.size)
        fit = min((f for f in free if f[1] >= size), key=lambda f: f[1], default=None)
        if fit is None:
            # Grow the arena, starting in a free block at its end if there is one.
            last = free[-1] if free and sum(free[-1]) == top else None
            offset = last[0] if last else top
            if last:
                free.pop()
            top = offset + size
        else:
            free.remove(fit)
            offset = fit[0]
            if fit[1] > size:
                _add_free_block(free, offset + size, fit[1] - size)
        offsets[b] = offset
        heapq.heappush(live, (interval.end, offset, size))
    return offsets, top


def _add_free_block(free: list[tuple[int, int]], offset: int, size: int) -> None:
    """Insert a block into the list of free blocks and merge it with adjacent ones."""
    at = bisect.bisect(free, (offset, size))
    if at < len(free) and offset + size == free[at][0]:
        size += free.pop(at)[1]
    if at > 0 and sum(free[at - 1]) == offset:
        offset, size = free[at - 1][0], size + free.pop(at - 1)[1]
        at -= 1
    free.insert(at, (offset, size))
