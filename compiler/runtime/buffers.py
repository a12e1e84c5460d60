"""Buffers: which memory each value stands in, and where in the arena that is."""

from __future__ import annotations

import bisect
import enum
import heapq
from dataclasses import dataclass, field

from compiler.ir.shape import Shape

ALIGNMENT = 64


class BufferKind(enum.Enum):
    """Who owns the memory."""

    PARAMETER = "parameter"  # the caller's, read only
    OUTPUT = "output"  # the caller's, written
    CONSTANT = "constant"  # the executable's, read only
    TEMPORARY = "temporary"  # in the arena


@dataclass(eq=False)
class Buffer:
    """Memory of one array value; `merge` lets one buffer stand for another.

    Attributes:
        index: argument, result or constant number; for temporaries the offset in the arena, once assigned.
    """

    shape: Shape
    kind: BufferKind = BufferKind.TEMPORARY
    index: int = -1
    forward: Buffer | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return max(1, self.shape.byte_size)

    def resolve(self) -> Buffer:
        """The buffer that really holds the value."""
        b = self
        while b.forward is not None:
            b = b.forward
        return b

    def merge(self, into: Buffer) -> None:
        """Let `into` hold this value from now on."""
        target = into.resolve()
        if target is not self.resolve():
            self.resolve().forward = target


@dataclass
class Interval:
    """Steps of the program during which a buffer holds something needed."""

    start: int
    end: int


def assign_offsets(intervals: dict[Buffer, Interval]) -> int:
    """Give each temporary its place in the arena; returns the arena's size.

    Best fit over a free list, walking the program once: buffers whose intervals meet never overlap.
    """
    order = sorted(intervals, key=lambda b: (intervals[b].start, -b.size))
    ending: list[tuple[int, int, int]] = []  # (end, offset, size)
    free: list[tuple[int, int]] = []  # (offset, size), by offset
    top = 0
    for b in order:
        interval = intervals[b]
        while ending and ending[0][0] < interval.start:
            _, offset, size = heapq.heappop(ending)
            _release(free, offset, size)
        size = -(-b.size // ALIGNMENT) * ALIGNMENT
        fit = min((f for f in free if f[1] >= size), key=lambda f: f[1], default=None)
        if fit is None:
            last = free[-1] if free and sum(free[-1]) == top else None
            offset = last[0] if last else top
            if last:
                free.pop()
            top = offset + size
        else:
            free.remove(fit)
            offset = fit[0]
            if fit[1] > size:
                _release(free, offset + size, fit[1] - size)
        b.index = offset
        heapq.heappush(ending, (interval.end, offset, size))
    return top


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    """Put a block back, joined with its neighbours."""
    at = bisect.bisect(free, (offset, size))
    if at < len(free) and offset + size == free[at][0]:
        size += free.pop(at)[1]
    if at > 0 and sum(free[at - 1]) == offset:
        offset, size = free[at - 1][0], size + free.pop(at - 1)[1]
        at -= 1
    free.insert(at, (offset, size))
