"""Timing of variants in turns, with pauses in which threads that still spin go to sleep."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["timed_in_turns"]

CALLS = 3
"""Timed calls of a variant per round, after one that is not."""
PAUSE_SECONDS = 0.003


def timed_in_turns(variants: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Return for each variant the milliseconds of its fastest call in each round."""
    times: list[list[float]] = [[] for _ in variants]
    for _ in range(rounds):
        for variant, found in zip(variants, times, strict=True):
            time.sleep(PAUSE_SECONDS)
            variant()
            best = float("inf")
            for _ in range(CALLS):
                start = time.perf_counter()
                variant()
                best = min(best, time.perf_counter() - start)
            found.append(1e3 * best)
    return times
