"""Real-time priority for measurements on a machine that other processes use as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["real_time"]


@contextmanager
def real_time(priority: int = 20) -> Iterator[None]:
    """Run the calling thread, and threads that it starts, before all processes of ordinary priority.

    Args:
        priority: of the Linux policy SCHED_FIFO, 1 to 99.

    Raises:
        PermissionError: the process may not have that priority.
    """
    policy, former = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, former)
