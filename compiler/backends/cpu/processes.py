"""Runs a compiler so that nothing of it outlives us: time limits and interrupts end what it has started, too."""

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
    """Run a command to its end; its output as text, in English whatever the user's language is.

    The command and all it starts form a process group of their own, which is killed when time is up or an exception
    ends the wait. The limit is also set on their processor time, in case we are killed ourselves.

    Args:
        command: program and arguments.
        folder: where it runs and keeps its temporary files, an absolute path; a compiler would find files of others in
            the current folder, where CPATH or LIBRARY_PATH has an empty entry.
        seconds: the limit.

    Raises:
        subprocess.TimeoutExpired: it took longer than `seconds`.
        OSError: it cannot be started.
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
    with contextlib.suppress(OSError, ValueError):  # it has ended already, or a lower limit holds
        resource.prlimit(pid, resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
