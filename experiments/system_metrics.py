"""Metrics of the machine and of this process, under the names by which MLflow shows system metrics."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

__all__ = ["SystemMetrics"]

_MEGABYTE = 1e6


class SystemMetrics:
    """Reads /proc; what a system does not have is left out.

    Args:
        folder: the folder whose disk is reported.
        proc: where the process file system is.
    """

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder, self._proc = folder, proc
        self._before = self._now()

    def read(self) -> dict[str, float]:
        """Return the metrics now; shares of time are of the time since the last call.

        - system/cpu_utilization_percentage: of all cores.
        - system/process_cpu_percentage: of this process and its ended children; 100 is one core.
        - system/process_memory_megabytes: resident memory of this process.
        - system/system_memory_usage_megabytes, system/system_memory_usage_percentage
        - system/disk_available_megabytes: on the disk of the folder.
        """
        found: dict[str, float] = {}
        now, before = self._now(), self._before
        self._before = now
        if now.total > before.total:
            found["cpu_utilization_percentage"] = 100 * (1 - (now.idle - before.idle) / (now.total - before.total))
        if now.wall > before.wall:
            found["process_cpu_percentage"] = 100 * (now.process - before.process) / (now.wall - before.wall)
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            pages = int((self._proc / "self" / "statm").read_text().split()[1])
            found["process_memory_megabytes"] = pages * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE
            lines = (self._proc / "meminfo").read_text().splitlines()
            kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
            used = kilobytes["MemTotal"] - kilobytes["MemAvailable"]
            found["system_memory_usage_megabytes"] = used * 1024 / _MEGABYTE
            found["system_memory_usage_percentage"] = 100 * used / kilobytes["MemTotal"]
        with contextlib.suppress(OSError):
            found["disk_available_megabytes"] = shutil.disk_usage(self._folder).free / _MEGABYTE
        return {f"system/{name}": value for name, value in found.items()}

    def _now(self) -> _Times:
        total = idle = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            ticks = [int(n) for n in (self._proc / "stat").read_text().splitlines()[0].split()[1:9]]
            total, idle = float(sum(ticks)), float(ticks[3] + ticks[4])
        spent = os.times()
        process = spent.user + spent.system + spent.children_user + spent.children_system
        return _Times(total, idle, process, time.monotonic())


class _Times:
    """Ticks of all cores and seconds of this process, by when they were read."""

    def __init__(self, total: float, idle: float, process: float, wall: float) -> None:
        self.total, self.idle, self.process, self.wall = total, idle, process, wall
