"""Subprocesses with a time limit, which end together with their child processes."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "run_all_bounded", "run_bounded"]


@dataclass(frozen=True)
class Command:
    """A command to run.

    Attributes:
        words: program and arguments.
        folder: absolute path of the working folder, also for temporary files. It should contain no other files, because
            a compiler searches it for headers and libraries if CPATH or LIBRARY_PATH has an empty entry.
    """

    words: Sequence[str]
    folder: Path


def run_bounded(words: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run one command as `run_all_bounded` does and return its status and output."""
    return next(run_all_bounded([Command(words, folder)], seconds, 1))


def run_all_bounded(
    commands: Sequence[Command], seconds: float, parallel: int
) -> Generator[subprocess.CompletedProcess[str]]:
    """Run commands, several at a time, and yield their status and output in order.

    The output is in English regardless of the user's locale. A command and its child processes form a process group of
    their own. All groups are killed at the time limit, or when an exception or the caller ends the iteration. The limit
    also applies to their processor time, in case this process is killed itself.

    Args:
        commands: the commands.
        seconds: time limit of each command.
        parallel: number of commands that run at the same time.

    Raises:
        subprocess.TimeoutExpired: a command took longer than `seconds`.
        OSError: a command cannot be started.
    """
    waiting = deque(commands)
    running: deque[tuple[subprocess.Popen[str], float]] = deque()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append((_start(waiting.popleft(), seconds), time.monotonic() + seconds))
            process, end = running[0]
            out, err = process.communicate(timeout=max(0.0, end - time.monotonic()))
            running.popleft()
            yield subprocess.CompletedProcess(process.args, process.returncode, out, err)
    finally:
        for process, _ in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process, _ in running:
            with process:  # closes the pipes and waits for the end
                pass


def _start(command: Command, seconds: float) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command.words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
        env={**os.environ, "TMPDIR": str(command.folder), "LC_ALL": "C"}, cwd=command.folder, process_group=0,
    )  # fmt: skip
    _limit_processor_time(process.pid, seconds)
    return process


def _limit_processor_time(pid: int, seconds: float) -> None:
    if not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError, ValueError):  # the process has ended, or has a lower limit
        resource.prlimit(pid, resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
