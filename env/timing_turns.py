"""Turns at timing: processes on one machine time one at a time per core, and compile meanwhile.

A turn is a lock on a file per core (`flock`), which the system releases when its holder ends, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["TimingTurns"]

LOOK_SECONDS = 0.002


class TimingTurns:
    """Cores that measurements take turns at.

    Args:
        cores: number of cores that a measurement runs on; None: all cores of this process, in one turn.
        folder: folder of the lock files; None: one per user in the folder for temporary files.
    """

    def __init__(self, cores: int | None = None, folder: Path | None = None) -> None:
        mine = sorted(os.sched_getaffinity(0))
        size = len(mine) if cores is None else max(1, min(cores, len(mine)))
        self.groups = [tuple(mine[i : i + size]) for i in range(0, len(mine) - size + 1, size)]
        self._folder = folder or Path(tempfile.gettempdir()) / f"hlogym-turns-{os.getuid()}"

    @contextlib.contextmanager
    def turn(self) -> Iterator[tuple[int, ...]]:
        """Wait for a free group of cores, and hold it; yields the cores."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            yield self._take(stack)

    def _take(self, stack: contextlib.ExitStack) -> tuple[int, ...]:
        if len(self.groups) == 1:
            self._lock(stack, self.groups[0], wait=True)
            return self.groups[0]
        for group in itertools.cycle(self.groups):
            if self._lock(stack, group, wait=False):
                return group
            if group is self.groups[-1]:
                time.sleep(LOOK_SECONDS)
        raise AssertionError("unreachable")

    def _lock(self, stack: contextlib.ExitStack, group: tuple[int, ...], wait: bool) -> bool:
        """Lock the cores of a group, in ascending order, so that no two processes wait for each other."""
        with contextlib.ExitStack() as taken:
            for core in group:
                file = taken.enter_context((self._folder / f"core-{core}").open("a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    return False
            stack.push(taken.pop_all())
            return True
