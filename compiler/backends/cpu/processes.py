"""Subprocesses with a time limit, which end together with their child processes."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_bounded"]


def run_bounded(command: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command and return its status and output, in English regardless of the user's locale.

    The command and its child processes form a process group of their own, which is killed at the time limit or when an
    exception ends the wait. The limit also applies to their processor time, in case this process is killed itself.

    Args:
        command: program and arguments.
        folder: absolute path of the working folder, also for temporary files. It should contain no other files, because
            a compiler searches it for headers and libraries if CPATH or LIBRARY_PATH has an empty entry.
        seconds: time limit.

    Raises:
        subprocess.TimeoutExpired: the command took longer than `seconds`.
        OSError: the command cannot be started.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
        env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}, cwd=folder, process_group=0,
    ) as process:  # fmt: skip
        _limit_processor_time(process.pid, seconds)
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _limit_processor_time(pid: int, seconds: float) -> None:
    if not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError, ValueError):  # the process has ended, or has a lower limit
        resource.prlimit(pid, resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
