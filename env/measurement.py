"""Measured kernel time: checked outputs, a worker that may crash, a store so that only new kernels are measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np

from compiler.plan import CompilationPlan
from env.program_json import program_to_json
from env.statistics import Interval, median_interval, ratio_interval
from env.store import KernelStore, KernelTime, program_seconds
from env.suites import Program
from env.worker_process import WorkerCrashedError, WorkerProcess, WorkerTimeoutError

__all__ = ["Comparison", "Failure", "Measurement", "Measurer", "MeasurerOptions"]

Failure: TypeAlias = Literal["compile", "wrong", "run", "crash", "timeout"]
"""Why there is no time: it did not compile, computed something else, raised, killed its process, or never ended."""


@dataclass(frozen=True)
class MeasurerOptions:
    """How to measure.

    Attributes:
        backend: "cpu" or "cuda".
        rounds: samples a kernel; they are taken in turns with a reference load and with the other kernels.
        timeout: seconds after which a request counts as hung. The first one of a program also interprets it.
        input_seeds: how many sets of random inputs a program is checked on, one drawn at each check.
        seed: of the choice of inputs.
    """

    backend: str = "cpu"
    rounds: int = 9
    timeout: float = 120.0
    input_seeds: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Measurement:
    """What one plan costs on one program.

    Attributes:
        seconds: time of a call as the sum over its kernels; None when it failed.
        failure, message: why it failed.
        kernels: (name, executions a call, time of one) of each kernel.
        new: how many kernels had to be timed; the others were known.
    """

    seconds: Interval | None
    failure: Failure | None = None
    message: str = ""
    kernels: tuple[tuple[str, float, KernelTime], ...] = ()
    new: int = 0


@dataclass(frozen=True)
class Comparison:
    """Whole programs timed in turns in one process.

    Attributes:
        samples: seconds a call, one a round, by the candidate's name.
        failures: why a candidate has none.
        kernels: how many steps that take time each candidate has.
    """

    samples: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)

    def seconds(self, name: str) -> Interval:
        """Median time of a candidate; KeyError when it failed."""
        return median_interval(self.samples[name])

    def speedup(self, name: str, reference: str) -> Interval:
        """How many times faster than the reference; KeyError when either failed."""
        return ratio_interval(self.samples[reference], self.samples[name])


class Measurer:
    """Measures plans of programs in a worker process; use it as a context manager.

    Args:
        store: where kernel times are kept; by default in memory.
        options: how to measure.
        worker: the process to ask; by default one that is started when first needed.
    """

    def __init__(
        self,
        store: KernelStore | None = None,
        options: MeasurerOptions | None = None,
        worker: WorkerProcess | None = None,
    ) -> None:
        self.options = options or MeasurerOptions()
        self.store = store if store is not None else KernelStore()
        self._worker = worker if worker is not None else WorkerProcess()
        self._rng = np.random.default_rng(self.options.seed)
        self._programs: dict[Program, dict[str, Any]] = {}
        self._known: dict[tuple[str, str | None], Measurement] = {}
        self.measurements = 0
        self.seconds_spent = 0.0

    @property
    def restarts(self) -> int:
        """How often a dead or hung worker was replaced."""
        return max(0, self._worker.restarts)

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        """Time of a program compiled by a plan (None: the defaults), as the sum over its kernels.

        Outputs are compared with the interpreter's first. A plan measured before by this object is not compiled again
        and a kernel in the store is not timed again, unless `remeasure`.
        """
        text = None if plan is None else plan.to_json()
        key = (program.name, text)
        if not remeasure and key in self._known:
            return self._known[key]
        start = time.monotonic()
        try:
            result = self._measure(program, text, remeasure)
        except WorkerCrashedError as error:
            result = Measurement(None, "crash", str(error))
        except WorkerTimeoutError:
            result = Measurement(None, "timeout", f"no result within {self.options.timeout:g} s; killed")
        self.measurements += 1
        self.seconds_spent += time.monotonic() - start
        self._known[key] = result
        return result

    def _measure(self, program: Program, plan: str | None, remeasure: bool) -> Measurement:
        reply = self._prepare(program, plan)
        if "error" in reply:
            return Measurement(None, reply["error"], reply["message"])
        thunks: list[tuple[int, str, str, float]] = [(i, n, k, e) for i, n, k, e in reply["thunks"]]
        known = {} if remeasure else self.store.get(t[2] for t in thunks)
        doubtful = {k: t for k, t in known.items() if self._is_doubtful(t)}
        known = {k: t for k, t in known.items() if k not in doubtful}
        missing = {key: (i, name) for i, name, key, _ in thunks if key not in known}
        if missing:
            indices = [i for i, _ in missing.values()]
            timed = self._ask({"op": "time", "handle": reply["handle"], "indices": indices})
            if "error" in timed:
                return Measurement(None, "run", timed["message"])
            fresh = {k: _better(t, doubtful.get(k)) for k, t in _kernel_times(missing, timed).items()}
            self.store.put(fresh.values())
            known |= fresh
        return Measurement(
            program_seconds(known, ((k, e) for _, _, k, e in thunks)),
            kernels=tuple((n, e, known[k]) for _, n, k, e in thunks),
            new=len(missing),
        )

    def _is_doubtful(self, known: KernelTime) -> bool:
        """A wide interval says that the machine was busy; such a kernel is timed again, twice at most."""
        wide = known.seconds.high > 1.5 * known.seconds.low
        return wide and known.samples <= 2 * self.options.rounds

    def compare(
        self, program: Program, plans: Mapping[str, CompilationPlan | None], rounds: int | None = None
    ) -> Comparison:
        """Whole calls of several plans of a program, in turns in one process, after each one's outputs were checked."""
        handles: dict[str, str] = {}
        kernels: dict[str, int] = {}
        failures: dict[str, str] = {}
        for name, plan in plans.items():
            try:
                reply = self._prepare(program, None if plan is None else plan.to_json())
            except (WorkerCrashedError, WorkerTimeoutError) as error:
                # Its handles died with it; what was prepared before is prepared again without the culprit.
                failures[name] = f"crash: {error}"
                rest = {n: p for n, p in plans.items() if n != name}
                again = self.compare(program, rest, rounds)
                return Comparison(again.samples, {**again.failures, **failures}, again.kernels)
            if "error" in reply:
                failures[name] = f"{reply['error']}: {reply['message']}"
            else:
                handles[name], kernels[name] = reply["handle"], len(reply["thunks"])
        if not handles:
            return Comparison({}, failures)
        try:
            reply = self._ask(
                {"op": "compare", "handles": list(handles.values()), "rounds": rounds or self.options.rounds}
            )
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            return Comparison({}, {**failures, **dict.fromkeys(handles, f"crash: {error}")})
        if "error" in reply:
            return Comparison({}, {**failures, **dict.fromkeys(handles, f"{reply['error']}: {reply['message']}")})
        samples = {n: tuple(t) for n, t in zip(handles, reply["times"], strict=True)}
        return Comparison(samples, failures, kernels)

    def check(self, program: Program, plan: CompilationPlan | None, text: str | None = None) -> str | None:
        """Compile and compare with the interpreter, without timing anything; what is wrong, or None.

        Args:
            program: what to check.
            plan: how to compile it; None: the defaults.
            text: HLO to take in the place of the program's own.
        """
        try:
            reply = self._prepare(program, None if plan is None else plan.to_json(), text)
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            return f"crash: {error}"
        return f"{reply['error']}: {reply['message']}" if "error" in reply else None

    def noise_floor(self, program: Program, plan: CompilationPlan | None = None, rounds: int | None = None) -> Interval:
        """The ratio of a program's time to itself, measured like any two candidates (an A/A run).

        What lies within this interval is not a difference. One with infinite bounds when the program fails.
        """
        result = self.compare(program, {"a": plan, "b": plan}, rounds)
        if result.failures:
            return Interval(1.0, 0.0, float("inf"))
        return result.speedup("b", "a")

    def _prepare(self, program: Program, plan: str | None, text: str | None = None) -> dict[str, Any]:
        if program not in self._programs:
            self._programs[program] = program_to_json(program)
        sent = self._programs[program] if text is None else {**self._programs[program], "text": text}
        seed = self.options.seed * 1000 + int(self._rng.integers(self.options.input_seeds))
        return self._ask(
            {
                "op": "prepare",
                "program": sent,
                "plan": plan,
                "backend": self.options.backend,
                "seed": seed,
            }
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._worker.ask({"rounds": self.options.rounds, **request}, self.options.timeout)

    def close(self) -> None:
        """End the worker and close the store."""
        self._worker.kill()
        self.store.close()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _better(new: KernelTime, old: KernelTime | None) -> KernelTime:
    """Of two timings of a kernel the faster one: whatever else a machine does only ever slows it down."""
    if old is None:
        return new
    faster = new if new.seconds.value <= old.seconds.value else old
    return replace(faster, samples=new.samples + old.samples)


def _kernel_times(missing: Mapping[str, tuple[int, str]], reply: Mapping[str, Any]) -> dict[str, KernelTime]:
    reference = median(reply["reference"])
    samples: Sequence[Sequence[float]] = reply["times"]
    return {
        key: KernelTime(key, name, median_interval(s), len(s), reference)
        for (key, (_, name)), s in zip(missing.items(), samples, strict=True)
    }
