"""Several measurers at once: they compile in parallel, and take turns at timing per core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar

from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import Program
from env.worker_process import WorkerStartError

__all__ = ["MeasuringService", "Request"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Request: TypeAlias = tuple[Program, CompilationPlan | None]
"""A program and how to compile it; None: the defaults."""


class MeasuringService:
    """A number of measurers, each with a worker process of its own, and one store.

    Workers may crash, hang, or be stopped or killed: each measurer replaces its own. If one cannot be replaced, the
    others do its work. Use it as a context manager.

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
        self._unusable: set[int] = set()  # workers that could not be started
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
    def count(self) -> int:
        """Number of workers."""
        return len(self._measurers)

    @property
    def restarts(self) -> int:
        """Number of times that a dead or hung worker was replaced."""
        return sum(m.restarts for m in self._measurers)

    def measure(self, requests: Iterable[Request]) -> Iterator[tuple[int, Measurement]]:
        """Measure plans; yield the number of each request with its measurement, in the order in which they finish.

        Requests are drawn as workers become free, so there may be any number of them.

        Raises:
            MeasurementError: nothing can be measured on this machine.
            WorkerStartError: no worker can be started.
        """
        yield from self._apply(lambda measurer, request: measurer.measure(*request), requests)

    def map(self, function: Callable[[Measurer, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of a function that uses a measurer, in the order of the items; each runs in a thread.

        Raises:
            Exception: what the function raises first. What has not begun by then is not called.
        """
        found = dict(self._apply(function, items))
        return [found[n] for n in range(len(items))]

    def _apply(
        self, function: Callable[[Measurer, Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[int, Result]]:
        drawn = enumerate(items)
        returned: list[tuple[int, Item]] = []  # of workers that could not be started
        workers = range(len(self._measurers))
        free = [w for w in workers if w not in self._unusable] or list(workers)
        busy: dict[Future[Result], tuple[int, tuple[int, Item]]] = {}

        def give() -> None:
            while free and (following := returned.pop() if returned else next(drawn, None)) is not None:
                worker = free.pop(0)
                busy[self._threads[worker].submit(function, self._measurers[worker], following[1])] = worker, following

        give()
        try:
            while busy:
                finished, _ = wait(busy, return_when=FIRST_COMPLETED)
                for future in finished:
                    worker, (number, item) = busy.pop(future)
                    try:
                        result = future.result()
                    except WorkerStartError:
                        self._unusable.add(worker)
                        returned.append((number, item))
                        give()
                        if not busy:  # the others cannot be started either
                            raise
                        continue
                    free.append(worker)
                    give()
                    yield number, result
        finally:
            for future in busy:
                future.cancel()

    def measure_all(self, requests: Sequence[Request]) -> list[Measurement]:
        """Measure plans and return the measurements in the order of the requests.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        return self.map(lambda measurer, request: measurer.measure(*request), requests)

    def plans(
        self, program: Program, plans: Iterable[CompilationPlan]
    ) -> Iterator[tuple[CompilationPlan, Measurement]]:
        """Measure plans of a program; yield each with its measurement, in the order in which they finish.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        drawn: list[CompilationPlan] = []

        def requests() -> Iterator[Request]:
            for plan in plans:
                drawn.append(plan)
                yield program, plan

        for number, found in self.measure(requests()):
            yield drawn[number], found

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
