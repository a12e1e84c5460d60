"""The time of a call as commands print it: a median with its interval, and whether the machine was busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.runtime.executable import Executable
from env.statistics import Interval, median_interval
from experiments.console import duration, timing
from experiments.noise import LoadWatch, why_noisy

__all__ = ["CallTime", "time_calls"]

LIMIT = 0.5
"""Seconds that the timed calls of a program take together; at least `LEAST` calls are timed."""
LEAST, MOST = 3, 100
SLOW = 5.0
"""A program whose first call takes longer, in seconds, is not called again."""


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
    watch = LoadWatch()
    one = executable.benchmark(arrays, 1)[0]
    calls = max(LEAST, min(MOST, int(LIMIT / max(one, 1e-9))))
    seconds = median_interval(executable.benchmark(arrays, calls))
    return CallTime(seconds, calls, watch.why_noisy(seconds))
