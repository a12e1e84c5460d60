"""Real-time priority for measurements on a machine that other processes use as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["real_time"]


@contextmanager
def real_time(priority: int = 20) -> Iterator[None]:
    """Run the threads of this process, and those that they start, before all processes of ordinary priority.

    Args:
        priority: of the Linux policy SCHED_FIFO, 1 to 99.

    Raises:
        PermissionError: the process may not have that priority.
    """
    before = {thread: (os.sched_getscheduler(thread), os.sched_getparam(thread)) for thread in _threads()}
    _set_scheduler(dict.fromkeys(before, (os.SCHED_FIFO, os.sched_param(priority))))
    try:
        yield
    finally:
        _set_scheduler({thread: before.get(thread, before[os.getpid()]) for thread in _threads()})


def _threads() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]


def _set_scheduler(wanted: dict[int, tuple[int, os.sched_param]]) -> None:
    for thread, (policy, parameters) in wanted.items():
        with suppress(ProcessLookupError):  # a thread may have ended
            os.sched_setscheduler(thread, policy, parameters)
