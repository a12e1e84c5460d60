"""Measured kernel time: checked outputs, a worker that may crash, a store so that only new kernels are measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np

from compiler.plan import CompilationPlan
from compiler.support.lru_dict import LruDict
from env.patient_worker import MeasurementError, PatientWorker
from env.program_json import program_to_json
from env.statistics import Interval, median_interval, ratio_interval
from env.store import KernelStore, KernelTime, program_seconds
from env.suites import Program
from env.worker_process import WorkerCrashedError, WorkerProcess, WorkerTimeoutError

__all__ = [
    "Comparison",
    "Failure",
    "Measurement",
    "MeasurementError",
    "Measurer",
    "MeasurerOptions",
    "ReferenceFailedError",
]

Failure: TypeAlias = Literal["program", "compile", "wrong", "run", "crash", "timeout"]
"""Why a measurement has no time.

"program": its inputs cannot be drawn, the interpreter cannot compute it, or its outputs do not show whether a plan is
right, so no plan is at fault. The others are faults of the plan: it did not compile, computed something else, raised,
killed its process, or never ended.
"""

REFERENCE_TRIES = 3
KNOWN_MEASUREMENTS = 2000
KNOWN_PROGRAMS = 64


class ReferenceFailedError(MeasurementError):
    """The reference that plans of a program are compared with cannot be measured; names the program and the reason."""


@dataclass(frozen=True)
class MeasurerOptions:
    """How to measure.

    Attributes:
        backend: "cpu" or "cuda".
        rounds: samples per kernel, interleaved with a reference load and with the other kernels.
        timeout: seconds after which a request counts as hung; the first request of a program also interprets it.
        input_seeds: number of sets of random inputs; each check uses one of them, chosen at random.
        seed: seed of that choice.
    """

    backend: str = "cpu"
    rounds: int = 9
    timeout: float = 120.0
    input_seeds: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Measurement:
    """The time of a program compiled by a plan, or why there is none.

    Attributes:
        seconds: time per call as the sum over the kernels; None if the plan failed.
        failure: the kind of failure, if it failed.
        message: why it failed.
        kernels: (name, executions per call, time of one execution) of each kernel.
        new: number of kernels that had to be timed; the times of the others were known.
        idle: whether only copies take time, which no decision changes.
    """

    seconds: Interval | None
    failure: Failure | None = None
    message: str = ""
    kernels: tuple[tuple[str, float, KernelTime], ...] = ()
    new: int = 0
    idle: bool = False

    @property
    def time(self) -> Interval:
        """`seconds` of a measurement that did not fail.

        Raises:
            ValueError: it failed.
        """
        if self.seconds is None:
            raise ValueError(f"there is no time: {self.reason}")
        return self.seconds

    @property
    def reason(self) -> str:
        """Why there is no time, in one line."""
        return f"{self.failure}: {self.message}"


@dataclass(frozen=True)
class Comparison:
    """Whole programs timed in turns in one process.

    Attributes:
        samples: seconds per call, one sample per round, by name of the candidate.
        failures: why a candidate has no samples.
        kernels: number of thunks that take time, by name of the candidate.
    """

    samples: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)

    def seconds(self, name: str) -> Interval:
        """Return the median time of a candidate; KeyError if it failed."""
        return median_interval(self.samples[name])

    def speedup(self, name: str, reference: str) -> Interval:
        """Return the speedup of a candidate over another one; KeyError if either failed."""
        return ratio_interval(self.samples[reference], self.samples[name])


class Measurer:
    """Measures plans of programs in a worker process; use it as a context manager.

    Args:
        store: where kernel times are kept; None: in memory.
        options: how to measure.
        worker: the worker process; None: one that is started when it is first needed.
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
        self._patient = PatientWorker(self._worker, self.options.timeout)
        self._rng = np.random.default_rng(self.options.seed)
        self._programs: LruDict[Program, dict[str, Any]] = LruDict(KNOWN_PROGRAMS)
        self._known: LruDict[tuple[Program, str], Measurement] = LruDict(KNOWN_MEASUREMENTS)
        self._references: dict[tuple[Program, str], Measurement] = {}
        self._interpreted: tuple[int, set[tuple[str, int]]] = (-1, set())

    @property
    def restarts(self) -> int:
        """Number of times that a dead or hung worker was replaced."""
        return max(0, self._worker.restarts)

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        """Measure a program compiled by a plan (None: the defaults), as the sum over its kernels.

        Outputs are first compared with the interpreter's. A plan that was measured recently is not compiled again, and
        a kernel in the store is not timed again, unless `remeasure` is set. If the worker is killed or stopped from
        outside, it is replaced and the request is repeated.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        key = _key(program, None if plan is None else plan.to_json())
        known = self._references.get(key) or self._known.get(key)
        if known is not None and not remeasure:
            return known
        result = self._measure_anew(program, plan, remeasure)
        if result.failure != "program":
            self._known[key] = result
        return result

    def _measure_anew(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        text = None if plan is None else plan.to_json()
        try:
            return self._patient.retried(lambda: self._measure(program, text, remeasure))
        except WorkerCrashedError as error:
            return Measurement(None, "crash", str(error))
        except WorkerTimeoutError:
            return Measurement(None, "timeout", f"no result within {self.options.timeout:g} s; killed")

    def measure_reference(self, program: Program, plan: CompilationPlan | None) -> Measurement:
        """Measure the plan that other plans of the program are compared with; its `seconds` are positive.

        A reference is measured once. If that fails, it is tried again in a fresh worker; failures are not kept.

        Raises:
            ReferenceFailedError: it fails each time, or nothing in it takes time.
            MeasurementError: nothing can be measured on this machine.
        """
        key = _key(program, None if plan is None else plan.to_json())
        if key not in self._references:
            self._references[key] = self._measure_reference(program, plan)
        return self._references[key]

    def verify_reference(self, program: Program, plan: CompilationPlan | None) -> None:
        """Measure a reference again in a fresh worker, to check that it still can be; its time is not replaced.

        Raises:
            ReferenceFailedError, MeasurementError: as in `measure_reference`.
        """
        self._worker.kill()
        self._measure_reference(program, plan)

    def _measure_reference(self, program: Program, plan: CompilationPlan | None) -> Measurement:
        before = ""
        for _ in range(REFERENCE_TRIES):
            result = self._measure_anew(program, plan)
            if result.seconds is not None and result.seconds.value > 0:
                return result
            if result.seconds is not None:
                raise ReferenceFailedError(f"{program.label}: nothing in it takes time to run, or can be measured")
            if result.reason == before:  # a failure that repeats is not the machine's
                break
            before = result.reason
            self._worker.kill()
        raise ReferenceFailedError(f"{program.label}: {before}")

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
            idle=bool(reply["idle"]),
        )

    def _is_doubtful(self, known: KernelTime) -> bool:
        """Check whether to time a kernel again (at most twice), because a wide interval means a busy machine."""
        wide = known.seconds.high > 1.5 * known.seconds.low
        return wide and known.samples <= 2 * self.options.rounds

    def compare(
        self, program: Program, plans: Mapping[str, CompilationPlan | None], rounds: int | None = None
    ) -> Comparison:
        """Time whole calls of several plans of a program, interleaved in one process, after checking their outputs."""
        by_name = {name: None if plan is None else plan.to_json() for name, plan in plans.items()}
        failures: dict[str, str] = {}
        while len(failures) < len(by_name):
            rest = {name: text for name, text in by_name.items() if name not in failures}
            at: list[str] = []
            compare = partial(self._compare, program, rest, failures, rounds or self.options.rounds, at)
            try:
                samples, kernels = self._patient.retried(compare)
            except (WorkerCrashedError, WorkerTimeoutError) as error:
                # The handles died with the worker, so the other plans are prepared again, without the failed one.
                failures.update(dict.fromkeys(at, f"crash: {error}"))
            else:
                return Comparison(samples, failures, kernels)
        return Comparison({}, failures)

    def _compare(
        self, program: Program, plans: Mapping[str, str | None], failures: dict[str, str], rounds: int, at: list[str]
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, int]]:
        """Return samples and numbers of kernels of the plans that do not fail.

        Args:
            program: the program.
            plans: plans as JSON, by name.
            failures: receives the failures.
            rounds: number of samples.
            at: receives the names of the plans that the worker is busy with.
        """
        handles: dict[str, str] = {}
        kernels: dict[str, int] = {}
        for name, text in plans.items():
            at[:] = [name]
            reply = self._prepare(program, text, keep=list(handles.values()))
            if "error" in reply:
                failures[name] = f"{reply['error']}: {reply['message']}"
            else:
                handles[name], kernels[name] = reply["handle"], len(reply["thunks"])
        if not handles:
            return {}, {}
        at[:] = list(handles)
        reply = self._ask({"op": "compare", "handles": list(handles.values()), "rounds": rounds})
        if "error" in reply:
            failures.update(dict.fromkeys(handles, f"{reply['error']}: {reply['message']}"))
            return {}, {}
        return {n: tuple(t) for n, t in zip(handles, reply["times"], strict=True)}, kernels

    def check(self, program: Program, plan: CompilationPlan | None, text: str | None = None) -> str | None:
        """Compile and compare with the interpreter, without timing; return what is wrong, or None.

        Args:
            program: the program.
            plan: how to compile it; None: the defaults.
            text: HLO text that replaces the program's own.
        """
        try:
            reply = self._patient.retried(
                lambda: self._prepare(program, None if plan is None else plan.to_json(), text)
            )
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            return f"crash: {error}"
        return f"{reply['error']}: {reply['message']}" if "error" in reply else None

    def _prepare(
        self, program: Program, plan: str | None, text: str | None = None, keep: Sequence[str] = ()
    ) -> dict[str, Any]:
        sent = self._programs.get(program)
        if sent is None:
            sent = self._programs[program] = program_to_json(program)
        if text is not None:
            sent = {**sent, "text": text}
        seed = self.options.seed * 1000 + int(self._rng.integers(self.options.input_seeds))
        asked = {"program": sent, "seed": seed}
        failed = self._interpret(asked)
        if failed:
            return failed
        return self._ask({"op": "prepare", **asked, "plan": plan, "backend": self.options.backend, "keep": list(keep)})

    def _interpret(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Let the worker interpret the program, whatever the plan; return an empty reply, or the failure."""
        what = (hashlib.sha256(asked["program"]["text"].encode()).hexdigest(), asked["seed"])
        if what in self._interpreted[1] and self._interpreted[0] == self._worker.restarts and self._worker.running:
            return {}
        try:
            reply = self._ask({"op": "interpret", **asked})
        except WorkerCrashedError as error:
            return {"error": "program", "message": f"the interpreter crashed on it: {error}"}
        except WorkerTimeoutError:
            return {"error": "program", "message": f"the interpreter takes more than {self.options.timeout:g} s on it"}
        if self._interpreted[0] != self._worker.restarts:
            self._interpreted = (self._worker.restarts, set())
        if "error" not in reply:
            self._interpreted[1].add(what)
        return reply

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._patient.ask({"rounds": self.options.rounds, **request})

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
    """Return the faster of two timings of a kernel: other load on the machine only ever slows it down."""
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


def _key(program: Program, plan: str | None) -> tuple[Program, str]:
    """Return the key of a program compiled by a plan, with a hash because plans are long."""
    return program, "" if plan is None else hashlib.sha256(plan.encode()).hexdigest()
