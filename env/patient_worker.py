"""Repeat requests in a fresh worker process if they fail because of the machine and not because of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from compiler.errors import HlogymError
from env.worker_process import WorkerCrashedError, WorkerLostError, WorkerProcess

__all__ = ["MeasurementError", "PatientWorker"]

RETRY_PAUSES = (0.1, 0.5, 2.0)  # seconds before each further try
T = TypeVar("T")


class MeasurementError(HlogymError, RuntimeError):
    """Nothing can be measured, because of the program or the machine; no plan is at fault."""


class _RetryError(Exception):
    """A failure that may not happen again in a fresh process.

    Attributes:
        memory: whether memory seems to have run out.
    """

    def __init__(self, message: str, memory: bool = False) -> None:
        super().__init__(message)
        self.memory = memory


class PatientWorker:
    """Sends requests to a worker process, again if it is lost.

    Args:
        process: the worker process.
        timeout: seconds per request.
    """

    def __init__(self, process: WorkerProcess, timeout: float) -> None:
        self.process, self.timeout = process, timeout
        self._worn = False

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the worker's reply; only for functions that `retried` calls.

        Raises:
            WorkerCrashedError, WorkerTimeoutError: the worker died, or did not answer.
            MeasurementError: the backend does not work on this machine.
            WorkerStartError: no worker can be started.
        """
        try:
            reply = self.process.ask(request, self.timeout)
        except WorkerLostError as error:
            raise _RetryError(f"the worker was {error}", memory=error.killed) from None
        if reply.get("error") == "unavailable":
            raise MeasurementError(reply["message"])
        if reply.get("error") in ("machine", "memory", "unknown handle"):
            raise _RetryError(reply["message"], memory=reply["error"] == "memory")
        self._worn = self._worn or bool(reply.get("worn"))
        return reply

    def retried(self, measure: Callable[[], T]) -> T:
        """Call `measure`, again if one of its requests was lost, and return its result.

        Raises:
            WorkerCrashedError, WorkerTimeoutError: as `measure` does; the former also if memory ran out each time.
            MeasurementError: the machine made it fail each time, or lacks what the backend needs.
            WorkerStartError: no worker can be started.
        """
        if self._worn:
            self.process.kill()
            self._worn = False
        met: list[_RetryError] = []
        for pause in (*RETRY_PAUSES, None):
            try:
                return measure()
            except _RetryError as error:
                met.append(error)
                self.process.kill()
            if pause is not None:
                time.sleep(pause)
        raise _given_up(met)


def _given_up(met: Sequence[_RetryError]) -> WorkerCrashedError | MeasurementError:
    last = met[-1]
    if all(e.memory for e in met):
        return WorkerCrashedError(f"{last}, {len(met)} times in a row, as happens when memory runs out")
    return MeasurementError(f"measuring failed {len(met)} times in a row, in fresh workers: {last}")
