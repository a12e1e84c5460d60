"""NVRTC in processes of their own, which end when they are idle: see `nvrtc_worker`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compiler.backends.cuda import nvrtc_worker
from compiler.errors import BackendError, CodegenError

__all__ = ["ProcessNvrtc"]

_SCRIPT = str(Path(nvrtc_worker.__file__).resolve())


class ProcessNvrtc:
    """NVRTC's shared library, loaded by processes of which each compiles one source at a time; for several threads.

    Args:
        path: of the library, or its name if the loader finds it.
    """

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._owner = os.getpid()

    def version(self) -> str:
        """Return the version, such as "13.0"."""
        return str(self._facts["version"])

    def architectures(self) -> tuple[int, ...]:
        """Return the numbers of the architectures that it compiles for."""
        return tuple(map(int, self._facts["architectures"]))

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        """Return the cubin of a source, None if it is rejected, and NVRTC's log.

        Raises:
            BackendError: the library cannot be loaded, or fails otherwise.
            CodegenError: the library crashes.
        """
        reply, image = self._ask({"source": source, "options": list(options)})
        return None if reply["rejected"] else image, str(reply["log"])

    @functools.cached_property
    def _facts(self) -> dict[str, Any]:
        return self._ask({})[0]

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        text = json.dumps(request).encode() + b"\n"
        while (worker := self._take()) is not None:
            answer = _exchange(worker, text)
            if answer is not None:
                return self._given(worker, answer)
        worker = self._start()  # those that were idle have ended
        answer = _exchange(worker, text)
        if answer is None:
            raise CodegenError(f"NVRTC ended with code {worker.wait()} while it compiled a kernel")
        return self._given(worker, answer)

    def _given(
        self, worker: subprocess.Popen[bytes], answer: tuple[dict[str, Any], bytes]
    ) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            self._idle.append(worker)
        if "error" in answer[0]:
            raise BackendError(str(answer[0]["error"]))
        return answer

    def _take(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._owner != os.getpid():  # a fork must not read the answers that its parent waits for
                self._idle, self._owner = [], os.getpid()
            return self._idle.pop() if self._idle else None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", _SCRIPT, self._path]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True)
        except OSError as error:
            raise BackendError(f"NVRTC runs in a process of its own, which cannot be started: {error}") from error


def _exchange(worker: subprocess.Popen[bytes], text: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return the answer of a worker to a request; None if it has ended."""
    assert worker.stdin is not None and worker.stdout is not None  # noqa: S101 - they are pipes
    try:
        worker.stdin.write(text)
        worker.stdin.flush()
        line = worker.stdout.readline()
        reply: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        image = worker.stdout.read(reply.get("size", 0))
    except (BrokenPipeError, ConnectionError):
        reply, image = {}, b""
    if reply and len(image) == reply["size"]:
        return reply, image
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return None
