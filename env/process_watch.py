"""How long a child process has had to answer, and whether somebody has stopped it, as Linux tells in /proc.

Where there is no /proc, all time counts and nothing is seen as stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from time import monotonic

__all__ = ["SLICE", "ProcessWatch", "kill_session"]

SLICE = 0.25
"""Seconds between two looks."""
LEAST_SHARE = 1 / 16
"""Of a slice in which the process got no processor at all, so that a hang ends on a busy machine too."""


class ProcessWatch:
    """Counts the time a process has had while somebody waits for it, and how long it has been stopped.

    Time does not count while this process itself was stopped or suspended, nor while the child was ready to run and
    waited for a processor. What the child has started (a C compiler) is looked at as well.

    Attributes:
        counted: seconds that count.
        stopped: seconds since the child, or something that it has started, was first seen to be stopped; 0 if none is.
    """

    def __init__(self, pid: int) -> None:
        self.counted = self.stopped = 0.0
        self._pid = pid
        self._last = monotonic()
        self._delays = self._run_delays(_tree(pid))

    def tick(self) -> None:
        """Look; to be called every SLICE seconds or so."""
        now = monotonic()
        # A longer gap means that this process could not look, because it was stopped itself.
        elapsed = min(now - self._last, 2 * SLICE)
        self._last = now
        pids = _tree(self._pid)
        delays = self._run_delays(pids)
        waited = sum(d - self._delays.get(pid, 0.0) for pid, d in delays.items())
        self._delays = delays
        self.counted += max(elapsed - waited, elapsed * LEAST_SHARE)
        self.stopped = self.stopped + elapsed if any(_state(pid) == "T" for pid in pids) else 0.0

    @staticmethod
    def _run_delays(pids: list[int]) -> dict[int, float]:
        """Seconds that each has spent waiting for a processor in its life."""
        return {pid: _run_delay(pid) for pid in pids}


def kill_session(leader: int) -> None:
    """SIGKILL a child that leads a session of its own, and all that is in its session.

    What it has started may be in process groups of its own, and may have lost its parent.

    Args:
        leader: not reaped yet, so that its number is nobody else's.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(10):  # one of them may start another while they are looked for
        left = [p for p in _everybody() if p != leader and _session(p) == leader]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _everybody() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - plain names are wanted
    except OSError:
        return []


def _session(pid: int) -> int | None:
    """Of a process that is alive; None when it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[3]) if len(fields) > 3 and fields[0] not in ("Z", "X") else None


def _tree(pid: int) -> list[int]:
    """A process and what it has started, directly or not."""
    found = [pid]
    for one in found:
        text = _read(f"/proc/{one}/task/{one}/children")
        found += [int(child) for child in text.split()]
    return found


def _state(pid: int) -> str:
    """The letter of `ps`: R, S, D, T when stopped by a signal, t when a debugger holds it, Z; empty when gone."""
    # The name before it stands in parentheses and may hold any character.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def _run_delay(pid: int) -> float:
    fields = _read(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) * 1e-9 if len(fields) > 1 else 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
