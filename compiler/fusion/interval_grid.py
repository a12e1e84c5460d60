"""Intervals of ranks in a grid of several resolutions, so that those that overlap a given one are found fast."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

_STEP = 2
"""log2 of the ratio of widths between resolutions."""


class IntervalGrid(Generic[T]):
    """Things with an interval of integers each.

    A thing is listed in the one or two cells that its interval touches at the finest resolution where there are no
    more. Finding what overlaps an interval takes time proportional to its length and to what is found, about.

    Args:
        finest: log2 of the width of the smallest cells.
    """

    def __init__(self, finest: int = 4) -> None:
        self._finest = finest
        self._cells: dict[int, dict[int, dict[T, None]]] = {}
        self._where: dict[T, tuple[int, int, int]] = {}
        self._spans: dict[T, tuple[int, int]] = {}

    def put(self, thing: T, low: int, high: int) -> None:
        """Set the interval of a thing."""
        shift = self._finest
        while (high >> shift) - (low >> shift) > 1:
            shift += _STEP
        where = (shift, low >> shift, high >> shift)
        self._spans[thing] = low, high
        if self._where.get(thing) == where:
            return
        self._remove(thing)
        self._where[thing] = where
        cells = self._cells.setdefault(shift, {})
        for n in range(where[1], where[2] + 1):
            cells.setdefault(n, {})[thing] = None

    def remove(self, thing: T) -> None:
        """Forget a thing, if it is there."""
        self._spans.pop(thing, None)
        self._remove(thing)

    def _remove(self, thing: T) -> None:
        found = self._where.pop(thing, None)
        if found is None:
            return
        cells = self._cells[found[0]]
        for n in range(found[1], found[2] + 1):
            del cells[n][thing]
            if not cells[n]:
                del cells[n]

    def __contains__(self, thing: object) -> bool:
        return thing in self._spans

    def span(self, thing: T) -> tuple[int, int]:
        """Return the interval of a thing."""
        return self._spans[thing]

    def near(self, low: int, high: int) -> list[T]:
        """Return the things whose intervals overlap this one, and perhaps others close by."""
        found: dict[T, None] = {}
        for shift, cells in self._cells.items():
            first, last = low >> shift, high >> shift
            if last - first < len(cells):
                numbers = [n for n in range(first, last + 1) if n in cells]
            else:
                numbers = [n for n in cells if first <= n <= last]
            for n in numbers:
                found.update(cells[n])
        return list(found)
