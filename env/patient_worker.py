"""A worker that is asked again, in a fresh process, when what went wrong is the machine's doing and no plan's."""

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
    """Nothing can be measured, for a reason that is no plan's: the program, or the machine."""


class _RetryError(Exception):
    """Something that may not happen again in a fresh process.

    Attributes:
        memory: whether it looks like a lack of memory.
    """

    def __init__(self, message: str, memory: bool = False) -> None:
        super().__init__(message)
        self.memory = memory


class PatientWorker:
    """Asks a worker process, as often as need be.

    Args:
        process: the process to ask.
        timeout: seconds that a request has.
    """

    def __init__(self, process: WorkerProcess, timeout: float) -> None:
        self.process, self.timeout = process, timeout
        self._worn = False

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's reply; to be called by what `retried` runs.

        Raises:
            WorkerCrashedError, WorkerTimeoutError: it died, or did not answer.
            WorkerStartError: there is no worker.
        """
        try:
            reply = self.process.ask(request, self.timeout)
        except WorkerLostError as error:
            raise _RetryError(f"the worker was {error}", memory=error.killed) from None
        if reply.get("error") in ("machine", "memory", "unknown handle"):
            raise _RetryError(reply["message"], memory=reply["error"] == "memory")
        self._worn = self._worn or bool(reply.get("worn"))
        return reply

    def retried(self, measure: Callable[[], T]) -> T:
        """What `measure` returns, which is called again when one of its requests was lost.

        Raises:
            WorkerCrashedError, WorkerTimeoutError: as `measure` does; the former also when memory ran out each time.
            MeasurementError: the machine gets in the way each time.
            WorkerStartError: there is no worker.
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
