"""Samples of the time per call, for contestants that are timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WARM_SECONDS", "timed", "warm_sample"]

WARM_SECONDS = 0.01
"""How long a contestant runs untimed before its sample: its threads wake, and those of the contestant before it stop
spinning, which takes GNU OpenMP some milliseconds."""


def timed(call: Callable[[], object], repeats: int) -> float:
    """Return the mean seconds per call."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def warm_sample(call: Callable[[], object], repeats: int) -> float:
    """Return the mean seconds per call, after untimed calls for `WARM_SECONDS`, at least one."""
    end = time.perf_counter() + WARM_SECONDS
    call()
    while time.perf_counter() < end:
        call()
    return timed(call, repeats)
