"""The peak memory of a call, from the resident memory that Linux counts for the process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

__all__ = ["peak_memory"]

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"


def peak_memory(call: Callable[[], object]) -> float | None:
    """Return how many bytes the process grows by at most during a call, or None if the system does not count it.

    Memory that earlier calls have kept is not counted. The count is off by some hundred kilobytes per thread.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # otherwise the call is served from memory that was freed before
        before = _counter("VmRSS")
        (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
    except (OSError, AttributeError, ValueError):
        return None
    call()
    return max(0.0, _counter("VmHWM") - before)


def _counter(name: str) -> float:
    """Return a counter of this process in bytes."""
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise ValueError(name)
