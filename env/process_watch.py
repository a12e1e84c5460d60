"""Watch how long a child process has had to answer, and whether a signal has stopped it, through Linux's /proc.

Without /proc, all time counts and no process counts as stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep

__all__ = [
    "SLICE",
    "STOPPED_SECONDS",
    "ProcessWatch",
    "children_running",
    "is_stopped",
    "kill_session",
    "lost_are_killed",
]

SLICE = 0.25
"""Seconds between two ticks."""
STOPPED_SECONDS = 1.5
"""After which a stopped process counts as lost; short pauses are over by then."""
END_SECONDS = 5.0  # a process has ended so long after SIGKILL, unless it waits for a disk
LEAST_SHARE = 1 / 16
"""Share of a slice that always counts, even without any processor time, so that a hang ends on a busy machine too."""


class ProcessWatch:
    """Counts the time that a child process has had, and how long it has been stopped.

    Time does not count while this process itself was stopped or suspended, nor while the child was ready to run and
    waited for a processor.

    Args:
        pid: of the child.
        descendants: whether processes that the child has started, such as a C compiler, are watched as well.

    Attributes:
        counted: seconds that count.
        stopped: seconds since a process that is watched was first seen to be stopped; 0 if none is.
    """

    def __init__(self, pid: int, descendants: bool = True) -> None:
        self.counted = self.stopped = 0.0
        self._pid, self._descendants = pid, descendants
        self._last = monotonic()
        self._delays = self._run_delays(self._watched())

    def tick(self) -> None:
        """Update the counts; to be called about every SLICE seconds."""
        now = monotonic()
        # A longer gap means that this process was stopped itself.
        elapsed = min(now - self._last, 2 * SLICE)
        self._last = now
        pids = self._watched()
        delays = self._run_delays(pids)
        waited = sum(d - self._delays.get(pid, 0.0) for pid, d in delays.items())
        self._delays = delays
        self.counted += max(elapsed - waited, elapsed * LEAST_SHARE)
        self.stopped = self.stopped + elapsed if any(map(is_stopped, pids)) else 0.0

    def _watched(self) -> list[int]:
        return _tree(self._pid) if self._descendants else [self._pid]

    @staticmethod
    def _run_delays(pids: list[int]) -> dict[int, float]:
        """Return the seconds that each process has spent waiting for a processor since its start."""
        return {pid: _run_delay(pid) for pid in pids}


@contextlib.contextmanager
def lost_are_killed(children: Callable[[], Mapping[int | None, float]]) -> Iterator[None]:
    """Kill children that are stopped or take too long, while the block waits for them without a time limit of its own.

    Args:
        children: returns, in any thread, the process ids of those that have been started (None or 0 before that) and
            the seconds that each may take. Those that a signal has stopped for STOPPED_SECONDS are killed, too.
    """
    over = threading.Event()

    def kill() -> None:
        watches: dict[int, ProcessWatch] = {}
        while not over.wait(SLICE):
            for pid, seconds in children().items():
                if not pid:
                    continue
                watch = watches.setdefault(pid, ProcessWatch(pid, descendants=False))
                watch.tick()
                if watch.stopped >= STOPPED_SECONDS or watch.counted >= seconds:
                    _kill(pid)

    watching = threading.Thread(target=kill, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _kill(pid: int) -> None:
    """Kill a child and wait until it has ended, so that its parent does not find it still running."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    end = monotonic() + END_SECONDS
    while _state(pid) not in ("", "Z", "X") and monotonic() < end:
        sleep(SLICE / 10)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process."""
    return _state(pid) == "T"


def children_running(part: str) -> list[int]:
    """Return the children of this process whose command line contains a string."""
    return [pid for pid in _children(os.getpid()) if part in _read(f"/proc/{pid}/cmdline")]


def kill_session(leader: int) -> None:
    """Send SIGKILL to a child that leads a session, and to every process in that session.

    Processes that the child has started may be in other process groups, and may have lost their parent.

    Args:
        leader: process id of the child, which must not be reaped yet, so that no other process has its id.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(10):  # one of them may start another in the meantime
        left = [p for p in _all_pids() if p != leader and _session(p) == leader]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - plain names are wanted
    except OSError:
        return []


def _session(pid: int) -> int | None:
    """Return the session of a process; None if the process is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[3]) if len(fields) > 3 and fields[0] not in ("Z", "X") else None


def _tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for one in found:
        found += _children(one)
    return found


def _children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - plain names are wanted
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def _state(pid: int) -> str:
    """Return the state letter of `ps`: R, S, D, Z, T if stopped by a signal, t by a debugger; empty if gone."""
    # The name before it is in parentheses and may contain any character.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def _run_delay(pid: int) -> float:
    fields = _read(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) * 1e-9 if len(fields) > 1 else 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
