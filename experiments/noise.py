"""When times of this machine are not to be relied on, and which differences count."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from env.statistics import Interval
from env.summaries import NOISE_FLOOR
from experiments.console import error_console

__all__ = ["LoadWatch", "print_noise", "style_of", "why_noisy"]

BUSY = 0.3
"""Cores that other processes may keep busy, on average, before times count as noisy."""
SHORTEST = 0.1
"""Seconds that have to be watched for an answer; the system counts in hundredths."""
WIDE = 0.1
"""An interval wider than this share of its median is that of a noisy machine."""


class LoadWatch:
    """Watches how much of this process's cores other processes use, from its creation on.

    The load average of the system lags by a minute, and counts the process itself. This is the time that the cores were
    busy, less the processor time of this process and its descendants.
    """

    def __init__(self) -> None:
        self._cores = _cores()
        self._start = time.monotonic()
        self._busy, self._own = _busy_seconds(self._cores), _own_seconds()

    def others(self) -> float | None:
        """Return the cores that other processes have kept busy on average; None if that is not known."""
        time.sleep(max(0.0, self._start + SHORTEST - time.monotonic()))
        wall, busy = time.monotonic() - self._start, _busy_seconds(self._cores)
        if busy is None or self._busy is None:
            return None
        return max(0.0, (busy - self._busy - (_own_seconds() - self._own)) / wall)

    def why_noisy(self, seconds: Interval | None = None) -> str | None:
        """Return why times that were measured meanwhile are not to be relied on, or None; see `why_noisy`."""
        others = self.others()
        if others is not None and others > BUSY:
            return f"other processes kept {others:.1f} of {len(self._cores)} cores busy"
        return why_noisy(seconds, known=others is not None)


def why_noisy(seconds: Interval | None = None, known: bool = False) -> str | None:
    """Return why times of this machine are not to be relied on now, or None.

    Args:
        seconds: a median that was measured; an interval of more than a tenth of it says that the machine is noisy.
        known: whether the processes of the machine were watched already, so that its load average does not count.
    """
    cores = len(_cores())
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") and not known else 0.0
    if load > cores:
        return f"the machine has a load of {load:.1f} on {cores} cores"
    if seconds is not None and seconds.high - seconds.low > WIDE * seconds.value:
        return f"calls differ by {(seconds.high - seconds.low) / seconds.value:.0%}"
    return None


def print_noise(noise: str | None) -> None:
    """Say on stderr that the times of this command are not to be relied on, if there is a reason."""
    if noise is not None:
        error_console.print(f"noisy: {noise}; measure again on a quiet machine", soft_wrap=True)


def style_of(ratio: Interval | None, noise: str | None = None) -> str:
    """Return the color of a speedup: green or red if its whole interval is beyond the noise floor, otherwise none.

    Args:
        ratio: above 1 is better; unknown bounds have no color.
        noise: why the machine is noisy; then nothing has a color.
    """
    if ratio is None or noise is not None or not ratio.is_known:
        return ""
    return "green" if ratio.low > 1 + NOISE_FLOOR else "red" if ratio.high < 1 - NOISE_FLOOR else ""


def _cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _busy_seconds(cores: frozenset[int]) -> float | None:
    """Return the seconds that the cores were not idle since the system started; None where Linux's /proc is missing."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        rows = [line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
        ticks = sum(
            sum(map(int, row[1:9])) - int(row[4]) - int(row[5])  # less idle and waiting for input and output
            for row in rows
            if int(row[0][3:]) in cores
        )
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own_seconds() -> float:
    """Return the processor time of this process and of its descendants, in seconds."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        number = int(entry.parent.name)
        parents[number], spent[number] = int(fields[1]), sum(map(int, fields[11:15]))
    return own + sum(spent[n] for n in _descendants(os.getpid(), parents)) / os.sysconf("SC_CLK_TCK")


def _descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    while new := {n for n, parent in parents.items() if (parent == root or parent in found) and n not in found}:
        found |= new
    return found
