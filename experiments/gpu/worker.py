"""The process in which tasks use the GPU; JSON lines in, JSON lines out."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from compiler.errors import BackendError, DeviceLostError, HlogymError
from env.worker import die_with_parent, private_stdout
from experiments.gpu.device import Device, open_device

__all__ = ["TASKS", "answer", "main"]

Task = Callable[[Device, Mapping[str, Any]], dict[str, Any]]

TASKS: Mapping[str, str] = {
    "describe": "experiments.gpu.environment",
    "check": "experiments.gpu.correctness",
    "locate": "experiments.gpu.correctness",
    "build_peer": "experiments.gpu.races",
    "race": "experiments.gpu.races",
    "product": "experiments.gpu.races",
    "cartpole": "experiments.gpu.cartpole",
    "build_choices": "experiments.gpu.choices",
    "time_choices": "experiments.gpu.choices",
    "time_kernels": "experiments.gpu.kernel_times",
    "kernel_work": "experiments.gpu.model_fit",
}
"""The modules of tasks. A task is a function of the device and the request, and returns the reply."""


def answer(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a request.

    That to a task that raised is `{"error": text, "where": place, "lost": whether the device is}`.
    """
    task = request["op"]
    try:
        function: Task = getattr(importlib.import_module(TASKS[task]), task)
        reply = function(device, request)
        device.wait()
    except Exception as error:  # kernels, CuPy and peers may raise anything; the others still run
        text = str(error) if isinstance(error, HlogymError) else f"{type(error).__name__}: {error}"
        lost = isinstance(error, DeviceLostError) or device.is_lost()
        return {"error": text[:4000], "where": _place(error), "lost": lost}
    return reply


def _place(error: Exception) -> str:
    """Return the innermost line of hlogym that an error passed, without folders."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/compiler/" in f.filename or "/experiments/" in f.filename] or frames
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else ""


def main() -> None:
    """Serve until stdin ends."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = private_stdout()
    with ExitStack() as stack:
        found: Device | BackendError
        try:
            found = stack.enter_context(open_device("--stand-in" in sys.argv))
        except BackendError as error:
            found = error
        for line in sys.stdin.buffer:
            reply = _reply(found, json.loads(line))
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def _reply(device: Device | BackendError, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a request; without a device, the reason."""
    if isinstance(device, BackendError):
        return {"error": str(device)}
    return {} if request["op"] == "ping" else answer(device, request)
