"""The temporary arrays that are alive at the step of a program at which they need most memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.runtime.coalesce import timeline
from compiler.runtime.thunk_order import live_peak
from compiler.runtime.thunks import Thunk, walk
from compiler.support.memory import size_text

__all__ = ["LiveArray", "Peak", "find_peak"]


@dataclass(frozen=True)
class LiveArray:
    """A temporary array that is alive at the peak.

    Attributes:
        shape: shape of the array, as text.
        bytes: its size.
        first: name of the step that first writes it, or reads it where no step does before.
        last: name of the last step that uses it.
    """

    shape: str
    bytes: int
    first: str
    last: str

    def __str__(self) -> str:
        return f"{size_text(self.bytes)} {self.shape} from %{self.first} to %{self.last}"


@dataclass(frozen=True)
class Peak:
    """The step of a program at which its temporary arrays need most memory.

    Attributes:
        step: name of the step; "" if there are no temporary arrays.
        bytes: size of the arrays that are alive at it; their places in the arena may need a little more.
        arrays: these arrays, the largest first.
    """

    step: str
    bytes: int
    arrays: tuple[LiveArray, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the peak as plain data."""
        arrays = [{"shape": a.shape, "bytes": a.bytes, "first": a.first, "last": a.last} for a in self.arrays]
        return {"step": self.step, "bytes": self.bytes, "arrays": arrays}


def find_peak(thunks: list[Thunk]) -> Peak:
    """Return the first step with the largest sum of temporary arrays that are alive.

    Args:
        thunks: the outermost steps of a program in their final order.
    """
    t = timeline(thunks, ())
    intervals = t.intervals()
    if not intervals:
        return Peak("", 0, ())
    names = {t.step[x]: x.name for x in walk(thunks)}
    at, size = live_peak(intervals)

    def name(step: int) -> str:
        # The bounds of a loop are steps without a name: they belong to the last step before them.
        return names[max((n for n in names if n <= step), default=min(names))]

    live = [
        LiveArray(str(b.shape), b.size, name(i.start), name(i.end))
        for b, i in intervals.items()
        if i.start <= at <= i.end
    ]
    return Peak(name(at), size, tuple(sorted(live, key=lambda a: -a.bytes)))
