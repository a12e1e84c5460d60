"""How many threads run a program: what the user asks for, and what the machine permits."""

from __future__ import annotations

import math
import os
from pathlib import Path

from compiler.errors import BackendError

__all__ = ["available_cores", "default_threads", "program_threads"]

THREAD_VARIABLES = ("HLOGYM_NUM_THREADS", "OMP_NUM_THREADS")


def available_cores() -> int:
    """Return the number of cores that the affinity and the control group of this process permit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def default_threads() -> int:
    """Return the default number of threads: HLOGYM_NUM_THREADS, OMP_NUM_THREADS, or one per available core.

    Raises:
        BackendError: HLOGYM_NUM_THREADS is not a positive integer.
    """
    for name in THREAD_VARIABLES:
        text = os.environ.get(name, "").partition(",")[0].strip()
        if text.isdecimal() and text.strip("0"):
            return int(text.lstrip("0")[:9])  # the pool limits the number further
        if text and name == THREAD_VARIABLES[0]:
            raise BackendError(f"{name} must be a positive integer, not {text!r}")
    return available_cores()


def program_threads() -> int:
    """Return how many threads a program gets that limits them no further.

    Raises:
        BackendError: as in `default_threads`.
    """
    return min(default_threads(), available_cores())
