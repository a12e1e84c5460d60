"""Worker processes that take tasks from a list until it or the time ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from env.isolated import python_command
from env.worker_process import WorkerCrashedError, WorkerLostError, WorkerProcess, WorkerStartError, WorkerTimeoutError

__all__ = ["Worker", "run_tasks"]

Request = dict[str, Any]
Reply = dict[str, Any]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of workers that run beside each other."""


class Worker:
    """One process that uses the GPU. A crash, a lost device or a late reply ends it; the next task starts another.

    Args:
        stand_in: whether kernels are emulated.
        environment: environment variables of the process in addition to those of this one.
    """

    def __init__(self, stand_in: bool, environment: Mapping[str, str] | None = None) -> None:
        serve = "from experiments.gpu.worker import main; main()"
        # XLA would take three quarters of the memory of the GPU at its first use.
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **(environment or {})}
        self._process = WorkerProcess(python_command(serve, *(["--stand-in"] if stand_in else [])), shared)

    @property
    def pid(self) -> int | None:
        """Process id, if there is a process now."""
        return self._process.pid

    def ask(self, request: Request, timeout: float) -> Reply:
        """Return the reply to a task; `{"error": text, "lost": True}` if the process ended or was late."""
        try:
            reply = self._process.ask(request, timeout)
        except WorkerTimeoutError:
            return {"error": f"no reply within {timeout:.0f} s", "lost": True, "late": True}
        except (WorkerCrashedError, WorkerLostError, WorkerStartError) as error:
            return {"error": str(error), "lost": True}
        if reply.get("lost"):
            self._process.kill()
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.kill()


def run_tasks(
    requests: Iterable[Request],
    count: int,
    make_worker: Callable[[], Worker],
    timeout: float,
    left: Callable[[], float],
) -> Iterator[tuple[Request, Reply]]:
    """Yield requests with their replies, in the order in which they end.

    Args:
        requests: the tasks.
        count: number of workers.
        make_worker: makes a worker, of which each belongs to one thread.
        timeout: seconds that one task may take.
        left: returns the seconds that are left; when there are none, no more tasks begin, and those that run are ended.
    """
    todo = iter(requests)
    lock = threading.Lock()
    replies: queue.SimpleQueue[tuple[Request, Reply] | BaseException | None] = queue.SimpleQueue()

    def take() -> Request | None:
        with lock:
            return next(todo, None) if left() > 0 else None

    def serve() -> None:
        worker = make_worker()
        try:
            while (request := take()) is not None:
                limit = max(1.0, min(timeout, left()))
                reply = worker.ask(request, limit)
                if reply.get("late") and limit < timeout:
                    break  # the time of the part ended, which says nothing of the task
                replies.put((request, reply))
        except BaseException as error:
            replies.put(error)
        finally:
            worker.close()
            replies.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(max(1, count))]
    for thread in threads:
        thread.start()
    running = len(threads)
    while running:
        found = replies.get()
        if found is None:
            running -= 1
        elif isinstance(found, BaseException):
            raise found
        else:
            yield found
