"""Several measurers at once: they compile in parallel, and take turns at timing per core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import Program

__all__ = ["MeasuringService", "Request"]

Request: TypeAlias = tuple[Program, CompilationPlan | None]
"""A program and how to compile it; None: the defaults."""


class MeasuringService:
    """A number of measurers, each with a worker process of its own, and one store.

    Workers may crash, hang, or be stopped or killed: each measurer replaces its own. Use it as a context manager.

    Args:
        workers: number of worker processes.
        store: file of times that all of them use; None: each keeps its own times in memory.
        options: how to measure. With `cores=1`, as many programs are timed at once as there are cores.
        make: returns the measurer of a worker; for tests.
    """

    def __init__(
        self,
        workers: int,
        store: str | Path | None = None,
        options: MeasurerOptions | None = None,
        make: Callable[[PlanStore | None, MeasurerOptions], Measurer] = Measurer,
    ) -> None:
        if workers < 1:
            raise ValueError(f"expected at least one worker, got {workers}")
        self._options = options or MeasurerOptions()
        self._store, self._make = store, make
        self._measurers: list[Measurer] = []
        # Each thread makes one measurer, because SQLite's connections belong to the thread that opened them.
        self._threads = [ThreadPoolExecutor(1, f"measurer-{n}") for n in range(workers)]
        try:
            for number, thread in enumerate(self._threads):
                self._measurers.append(thread.submit(self._start, number).result())
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Measurer:
        store = None if self._store is None else PlanStore(self._store, self._options.keep_seconds)
        return self._make(store, replace(self._options, seed=self._options.seed + number))

    @property
    def restarts(self) -> int:
        """Number of times that a dead or hung worker was replaced."""
        return sum(m.restarts for m in self._measurers)

    def measure(self, requests: Iterable[Request]) -> Iterator[tuple[int, Measurement]]:
        """Measure plans; yield the number of each request with its measurement, in the order in which they finish.

        Requests are drawn as workers become free, so there may be any number of them.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        drawn = enumerate(requests)
        busy: dict[Future[Measurement], tuple[int, int]] = {}

        def give(worker: int) -> None:
            following = next(drawn, None)
            if following is not None:
                number, (program, plan) = following
                busy[self._threads[worker].submit(self._measurers[worker].measure, program, plan)] = worker, number

        for worker in range(len(self._measurers)):
            give(worker)
        try:
            while busy:
                finished, _ = wait(busy, return_when=FIRST_COMPLETED)
                for future in finished:
                    worker, number = busy.pop(future)
                    result = future.result()
                    give(worker)
                    yield number, result
        finally:
            for future in busy:
                future.cancel()

    def measure_all(self, requests: Sequence[Request]) -> list[Measurement]:
        """Measure plans and return the measurements in the order of the requests.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        found = dict(self.measure(requests))
        return [found[n] for n in range(len(requests))]

    def close(self) -> None:
        """End the workers and close their stores."""
        for thread, measurer in zip(self._threads, self._measurers, strict=False):
            thread.submit(measurer.close).result()
        self._measurers = []
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def __enter__(self) -> MeasuringService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
