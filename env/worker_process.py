"""A child process that answers JSON lines, may die or hang, and is restarted when it did."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["WorkerCrashedError", "WorkerProcess", "WorkerTimeoutError"]

_ROOT = Path(__file__).resolve().parent.parent


class WorkerCrashedError(Exception):
    """The worker ended in the middle of a request; the text says how."""


class WorkerTimeoutError(Exception):
    """The worker did not answer in time and was killed."""


class WorkerProcess:
    """Starts when first asked, and again after a crash or a timeout.

    Args:
        command: the program and its arguments; by default `env.worker` in this Python.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "env.worker")) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._pending = b""
        self.restarts = -1

    @property
    def running(self) -> bool:
        """Whether a process is there right now."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the process that is there right now."""
        return self._process.pid if self._process is not None else None

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The worker's reply.

        Raises:
            WorkerCrashedError: it died instead of answering.
            WorkerTimeoutError: no answer within `timeout` seconds; it was killed.
        """
        process = self._running_process()
        assert process.stdin is not None  # noqa: S101 - said by Popen's arguments, not by its type
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise WorkerCrashedError(self._last_words()) from None
        reply: dict[str, Any] = json.loads(self._read_line(process, time.monotonic() + timeout))
        return reply

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.kill()
        # Not closed by a with statement: it lives as long as the process, and `kill` closes it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._pending = b""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # so that a kill reaches the C compiler it may be running
            env=_environment(),
        )
        self.restarts += 1
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None  # noqa: S101 - as above
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.kill()
                    raise WorkerTimeoutError("no answer in time")
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise WorkerCrashedError(self._last_words())
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """How the process ended, and the last line it wrote to stderr; cleans up."""
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return "the worker is gone"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        code = process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        self.kill()
        return f"{how}: {lines[-1]}" if lines else how

    def kill(self) -> None:
        """End the process and its children at once; harmless when there is none."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        if errors is not None:
            errors.close()


def _environment() -> dict[str, str]:
    """Ours, with the repository importable even when it is not installed."""
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)}
