"""The time of a call as commands print it: a median with its interval, and whether the machine was busy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.runtime.executable import Executable
from env.statistics import Interval, median_interval
from experiments.console import duration, timing

__all__ = ["CallTime", "time_calls", "why_noisy"]

LIMIT = 0.5
"""Seconds that the timed calls of a program take together; at least `LEAST` calls are timed."""
LEAST, MOST = 3, 100
SLOW = 5.0
"""A program whose first call takes longer, in seconds, is not called again."""
WIDE = 0.1
"""An interval wider than this share of its median is that of a noisy machine."""


@dataclass(frozen=True)
class CallTime:
    """The time of a call.

    Attributes:
        seconds: the median with its interval; the bounds are unknown if only the first call was timed.
        calls: number of calls that were timed.
        noise: why the time is not to be relied on, or None.
    """

    seconds: Interval
    calls: int
    noise: str | None

    def __str__(self) -> str:
        if not self.seconds.is_known:
            text = f"{duration(self.seconds.value)} for the first call"
        else:
            text = f"{timing(self.seconds)} per call, median of {self.calls} calls"
        return text if self.noise is None else f"{text}; noisy: {self.noise}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"seconds": self.seconds.to_json(), "calls": self.calls, "noise": self.noise}


def time_calls(executable: Executable, arrays: Sequence[Any], first: float) -> CallTime:
    """Time calls of a program that was called once before, which took `first` seconds."""
    if first > SLOW:
        return CallTime(Interval(first, float("-inf"), float("inf")), 1, why_noisy())
    one = executable.benchmark(arrays, 1)[0]
    calls = max(LEAST, min(MOST, int(LIMIT / max(one, 1e-9))))
    seconds = median_interval(executable.benchmark(arrays, calls))
    return CallTime(seconds, calls, why_noisy(seconds))


def why_noisy(seconds: Interval | None = None) -> str | None:
    """Return why times of this machine are not to be relied on now, or None.

    Args:
        seconds: a median that was measured; an interval of more than a tenth of it says that the machine is noisy.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores:
        return f"the machine has a load of {load:.1f} on {cores} cores"
    if seconds is not None and seconds.high - seconds.low > WIDE * seconds.value:
        return f"calls differ by {(seconds.high - seconds.low) / seconds.value:.0%}"
    return None
