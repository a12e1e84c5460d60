"""The distribution of dimension sizes in random programs.

Code generation depends on certain sizes: reductions of up to 16 elements are unrolled, tiles are 32 wide, column
reductions process 256 columns at a time, rows of up to 32 KiB are kept in local arrays, and loops of 60,000 statements
use threads. The distribution has sizes on both sides of these limits, size 1, primes and, rarely, 0. The number of
elements is bounded so that runs stay short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol


class Random(Protocol):
    """A source of random numbers: `random.Random` or `numpy.random.Generator`."""

    def random(self) -> float: ...


SMALL = (2, 3, 4, 5, 7, 8, 12)
LONG = (16, 17, 19, 31, 32, 33, 47, 61, 64, 65, 97, 100, 127, 128, 130)
HUNDREDS = (251, 255, 256, 257, 300, 509, 512, 640, 1000)
THOUSANDS = (1009, 2048, 3000, 4099, 8191, 8192, 8209, 10007)
MAX_ELEMENTS = 20_000

_WHOLE = ((0.17, (1,)), (0.40, SMALL), (0.27, LONG), (0.11, HUNDREDS), (0.05, THOUSANDS))
_SHORT = ((0.20, (1,)), (0.80, SMALL))
ZERO = 0.006
"""Share of dimensions of size 0; small, because empty arrays spread through a program and leave nothing to compare."""
LIVELY = 0.6
"""Share of shapes sampled from the whole distribution; the others are small, so that shapes often match."""


def pick(r: Random, items: Sequence[int]) -> int:
    """Return a random item."""
    return items[min(int(r.random() * len(items)), len(items) - 1)]


def size(r: Random, limit: int = MAX_ELEMENTS, zero: float = ZERO) -> int:
    """Return a random size of one dimension, at most `limit`."""
    if r.random() < zero:
        return 0
    return min(_drawn(r, _WHOLE), max(1, limit))


def dimensions(r: Random, rank: int, limit: int = MAX_ELEMENTS, zero: float = ZERO) -> tuple[int, ...]:
    """Return random sizes of `rank` dimensions with at most `limit` elements in total."""
    mixture = _WHOLE if r.random() < LIVELY else _SHORT
    dims = [0 if r.random() < zero else _drawn(r, mixture) for _ in range(rank)]
    while math.prod(max(1, n) for n in dims) > limit:
        longest = dims.index(max(dims))
        dims[longest] = max(1, dims[longest] // 2) if r.random() < 0.5 else _drawn(r, _SHORT)
    return tuple(dims)


def with_units(r: Random, dims: Sequence[int], most: int = 4) -> tuple[int, ...]:
    """Return the shape with dimensions of size 1 removed and inserted at random positions."""
    out = [n for n in dims if n != 1 or r.random() < 0.3]
    while len(out) < most and r.random() < 0.55:
        out.insert(int(r.random() * (len(out) + 1)), 1)
    return tuple(out)


def _drawn(r: Random, mixture: Sequence[tuple[float, Sequence[int]]]) -> int:
    at = r.random()
    for share, sizes in mixture:
        at -= share
        if at < 0:
            return pick(r, sizes)
    return pick(r, mixture[-1][1])
