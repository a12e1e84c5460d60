"""Measured plans: raced against the default plan, outputs checked, in a worker that may crash; times are kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np

from compiler.plan import CompilationPlan
from compiler.support.lru_dict import LruDict
from env.gate import GATE, PATIENCE, Block, Gate, Verdict, judge
from env.patient_worker import MeasurementError, PatientWorker
from env.program_json import program_to_json
from env.statistics import Interval, median_interval, ratio_interval
from env.store import KEEP_SECONDS, PlanStore, PlanTime, TimeStore
from env.suites import Program
from env.timing_turns import TimingTurns
from env.worker_process import WorkerCrashedError, WorkerProcess, WorkerTimeoutError

__all__ = [
    "Comparison",
    "Failure",
    "KernelTime",
    "Measurement",
    "MeasurementError",
    "Measurer",
    "MeasurerOptions",
    "ReferenceFailedError",
]

Failure: TypeAlias = Literal["program", "compile", "unbuildable", "wrong", "run", "crash", "timeout"]
"""Why a measurement has no time.

"program": its inputs cannot be drawn, the interpreter cannot compute it, or its outputs do not show whether a plan is
right, or its default plan fails, so no plan is at fault. "unbuildable": a fusion that was legal has no kernel, which
is a fault of the compiler; environments raise it. The others are faults of the plan: it did not compile,
computed something else, raised, killed its process, or never ended.
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
        rounds: ABBA blocks of a plan and the default plan at most, and samples per plan of a comparison.
        timeout: seconds after which a request counts as hung; the first request of a program also interprets it.
        input_seeds: number of sets of random inputs; each check uses one of them, chosen at random.
        seed: seed of that choice.
        seconds: limit of the time spent on the blocks of one plan, once there are enough of them.
        patience: how many times as many blocks and seconds a race may take that is undecided by the gate.
        cores: number of cores that programs run on while they are timed; None: all. Measurements of several processes
            take turns per core.
        keep_seconds: age at which times expire.
        gate: when a difference to the default plan counts.
        real_time: whether programs are timed at real-time priority, for machines that do other work as well; that needs
            the right to it (CAP_SYS_NICE).
        trust_builds: whether plans that lead to the same code as the default plan count as equally fast, without a
            race; not so in A/A runs.
    """

    backend: str = "cpu"
    rounds: int = 25
    timeout: float = 120.0
    input_seeds: int = 2
    seed: int = 0
    seconds: float = 1.0
    patience: int = PATIENCE
    cores: int | None = None
    keep_seconds: float = KEEP_SECONDS
    gate: Gate = GATE
    real_time: bool = False
    trust_builds: bool = True


@dataclass(frozen=True)
class KernelTime:
    """The time of a thunk inside the program.

    Attributes:
        name: name of the HLO instruction that it computes.
        key: equal for thunks with the same code and shapes.
        executions: executions per call, counted.
        seconds: mean time of one execution.
    """

    name: str
    key: str
    executions: float
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """The time of a program compiled by a plan, or why there is none.

    Attributes:
        seconds: time per call, end to end; None if the plan failed.
        failure: the kind of failure, if it failed.
        message: why it failed.
        verdict: the comparison with the default plan; None if the plan failed, or is the default.
        kernels: thunks timed inside the program; none if the times come from the store.
        new: number of thunks that were timed for it.
        thunks: number of thunks that take time.
        idle: whether only copies take time, which no decision changes.
    """

    seconds: Interval | None
    failure: Failure | None = None
    message: str = ""
    verdict: Verdict | None = None
    kernels: tuple[KernelTime, ...] = ()
    new: int = 0
    thunks: int = 0
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
    def speedup(self) -> float:
        """Speedup over the default plan as far as it counts: 1 unless the difference passes the gate.

        Raises:
            ValueError: the plan failed.
        """
        if self.seconds is None:
            raise ValueError(f"there is no time: {self.reason}")
        return 1.0 if self.verdict is None else self.verdict.counted

    @property
    def relative(self) -> float:
        """Time as a share of the default plan's, measured beside it; it orders plans that were measured apart.

        Raises:
            ValueError: the plan failed.
        """
        if self.seconds is None:
            raise ValueError(f"there is no time: {self.reason}")
        return 1.0 if self.verdict is None else 1 / self.verdict.speedup.value

    @property
    def kernel_seconds(self) -> dict[str, float]:
        """Seconds per call of each instruction that has kernels, by its name."""
        found: dict[str, float] = {}
        for k in self.kernels:
            found[k.name] = found.get(k.name, 0.0) + k.executions * k.seconds
        return found

    @property
    def gain(self) -> bool:
        """Whether the plan is faster than the default plan, by the gate."""
        return self.verdict is not None and self.verdict.gain

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

    A plan is raced against the default plan of its program, which is what `compile` does without arguments: end to end,
    in one process, in ABBA blocks. Processes that measure on the same machine take turns at timing.

    Args:
        store: where times are kept; None: in memory.
        options: how to measure.
        worker: the worker process; None: one that is started when it is first needed.
    """

    def __init__(
        self,
        store: TimeStore | None = None,
        options: MeasurerOptions | None = None,
        worker: WorkerProcess | None = None,
    ) -> None:
        self.options = options or MeasurerOptions()
        self.store: TimeStore = store if store is not None else PlanStore(keep_seconds=self.options.keep_seconds)
        if worker is None:
            cores = self.options.cores
            worker = WorkerProcess(environment={} if cores is None else {"HLOGYM_NUM_THREADS": str(cores)})
        self._worker = worker
        self._patient = PatientWorker(self._worker, self.options.timeout)
        self._turns = TimingTurns(self.options.cores)
        self._rng = np.random.default_rng(self.options.seed)
        self._programs: LruDict[Program, dict[str, Any]] = LruDict(KNOWN_PROGRAMS)
        self._known: LruDict[tuple[Program, str], tuple[float, Measurement]] = LruDict(KNOWN_MEASUREMENTS)
        self._kernels: LruDict[str, tuple[KernelTime, ...]] = LruDict(KNOWN_MEASUREMENTS)  # by key in the store
        self._interpreted: tuple[int, set[tuple[str, int]]] = (-1, set())

    @property
    def restarts(self) -> int:
        """Number of times that a dead or hung worker was replaced."""
        return max(0, self._worker.restarts)

    def restart(self) -> None:
        """End the worker, so that the next measurement runs in a fresh process."""
        self._worker.kill()

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        """Measure a program compiled by a plan beside the default plan (None: the default plan alone).

        Outputs are compared with the interpreter's before and after the timing. A plan that was measured recently is
        not measured again unless `remeasure` is set, and neither is one that leads to the same code as another. If the
        worker is killed or stopped from outside, it is replaced and the request is repeated.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        key = _key(program, _text(plan))
        at, known = self._known.get(key) or (0.0, None)
        if known is not None and not remeasure and time.time() - at < self.options.keep_seconds:
            return known
        result = self._measure_anew(program, plan, remeasure)
        if result.failure != "program" and not (plan is None and result.failure):
            self._known[key] = time.time(), result
        return result

    def _measure_anew(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        text = _text(plan)
        try:
            return self._patient.retried(lambda: self._measure(program, text, remeasure))
        except WorkerCrashedError as error:
            return Measurement(None, "crash", str(error))
        except WorkerTimeoutError:
            return Measurement(None, "timeout", f"no result within {self.options.timeout:g} s; killed")

    def measure_reference(self, program: Program, remeasure: bool = False) -> Measurement:
        """Measure the default plan, which other plans of the program are compared with.

        If that fails, it is tried again in a fresh worker; failures are not kept.

        Raises:
            ReferenceFailedError: it fails each time, or nothing in it takes time.
            MeasurementError: nothing can be measured on this machine.
        """
        before = ""
        for _ in range(REFERENCE_TRIES):
            result = self.measure(program, None, remeasure)
            if result.seconds is not None and result.thunks:
                return result
            if result.seconds is not None:
                raise ReferenceFailedError(
                    f"{program.label}: nothing in it takes time to run, or the backend {self.options.backend} does not "
                    "time its parts"
                )
            if result.reason == before:  # a failure that repeats is not the machine's
                break
            before = result.reason
            self.restart()
        raise ReferenceFailedError(f"{program.label}: {before}")

    def verify_reference(self, program: Program) -> None:
        """Measure the default plan again in a fresh worker, to check that it still can be.

        Raises:
            ReferenceFailedError, MeasurementError: as in `measure_reference`.
        """
        self.restart()
        self.measure_reference(program, remeasure=True)

    def _measure(self, program: Program, plan: str | None, remeasure: bool) -> Measurement:
        seed = self._draw_seed()
        default = self._prepare(program, None, seed=seed)
        if "error" in default:
            return _failed(default, of_default=plan is not None)
        reply = default
        if plan is not None:
            reply = self._prepare(program, plan, keep=[default["handle"]], seed=seed)
            if "error" in reply:
                return _failed(reply)
        facts = {"thunks": reply["thunks"], "idle": bool(reply["idle"])}
        key = hashlib.sha256(f"{program.text()}\n{default['build']}\n{reply['build']}".encode()).hexdigest()[:32]
        stored = None if remeasure else self.store.get(key)
        if stored is None:
            return self._race(program, default, reply, key, plan is None, facts)
        verdict = stored.verdict
        kernels = self._kernels.get(key) or ()
        return Measurement(verdict.seconds, verdict=None if plan is None else verdict, kernels=kernels, **facts)

    def _race(
        self,
        program: Program,
        default: Mapping[str, Any],
        prepared: Mapping[str, Any],
        key: str,
        alone: bool,
        facts: Mapping[str, Any],
    ) -> Measurement:
        same = self.options.trust_builds and prepared["build"] == default["build"]
        settled = alone or same  # of such a race only the seconds are used
        with self._turns.turn() as cpus:
            reply = self._ask(
                {
                    "op": "race", "default": default["handle"], "candidate": prepared["handle"], "cpus": cpus,
                    "blocks": self.options.rounds, "seconds": self.options.seconds,
                    "patience": 1 if settled else self.options.patience, "gate": asdict(self.options.gate),
                    "real_time": self.options.real_time,
                }
            )  # fmt: skip
        if "error" in reply:
            return _failed(reply, of_default=reply.get("handle") == default["handle"] and not alone)
        blocks = [Block((b[0], b[1], b[2], b[3]), b[4]) for b in reply["blocks"]]
        least = min(t for b in blocks for t in b.times[1:3])
        if not least > reply["floor"]:
            floor = f"{reply['floor']:.3g} s, which no machine undercuts"
            return Measurement(None, "wrong", f"it seems to take {least:.3g} s, less than {floor}")
        verdict = judge(blocks, self.options.gate, reply["looks"])
        if same:  # a program is as fast as itself
            verdict = Verdict(Interval(1.0, 1.0, 1.0), verdict.default, verdict.seconds, False, verdict.blocks)
        self.store.put(PlanTime(key, program.name, verdict, median(b.load for b in blocks), time.time()))
        kernels = self._kernels[key] = tuple(KernelTime(*k) for k in reply["kernels"])
        return Measurement(
            verdict.seconds, verdict=None if alone else verdict, kernels=kernels, new=len(kernels), **facts
        )

    def _draw_seed(self) -> int:
        return self.options.seed * 1000 + int(self._rng.integers(self.options.input_seeds))

    def compare(
        self, program: Program, plans: Mapping[str, CompilationPlan | None], rounds: int | None = None
    ) -> Comparison:
        """Time whole calls of several plans of a program, interleaved in one process, after checking their outputs."""
        by_name = {name: _text(plan) for name, plan in plans.items()}
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
        seed = self._draw_seed()
        for name, text in plans.items():
            at[:] = [name]
            reply = self._prepare(program, text, keep=list(handles.values()), seed=seed)
            if "error" in reply:
                failures[name] = f"{reply['error']}: {reply['message']}"
            else:
                handles[name], kernels[name] = reply["handle"], reply["thunks"]
        if not handles:
            return {}, {}
        at[:] = list(handles)
        with self._turns.turn() as cpus:
            asked = {"op": "compare", "handles": list(handles.values()), "rounds": rounds, "cpus": cpus}
            asked["real_time"] = self.options.real_time
            reply = self._ask(asked)
        if "error" in reply:
            # Without the handle of one of them, all have failed.
            guilty = [n for n, h in handles.items() if h == reply.get("handle", h)]
            failures.update(dict.fromkeys(guilty, f"{reply['error']}: {reply['message']}"))
            rest = {n: t for n, t in plans.items() if n not in failures}
            return self._compare(program, rest, failures, rounds, at) if rest else ({}, {})
        return {n: tuple(t) for n, t in zip(handles, reply["times"], strict=True)}, kernels

    def check(self, program: Program, plan: CompilationPlan | None, text: str | None = None) -> str | None:
        """Compile and compare with the interpreter, without timing; return what is wrong, or None.

        Args:
            program: the program.
            plan: how to compile it; None: the defaults.
            text: HLO text that replaces the program's own.
        """
        try:
            reply = self._patient.retried(lambda: self._prepare(program, _text(plan), text))
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            return f"crash: {error}"
        return f"{reply['error']}: {reply['message']}" if "error" in reply else None

    def build(self, program: Program, plan: CompilationPlan | None) -> str | None:
        """Compile and check, without timing; return a key that plans with the same code share, None if it fails.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        try:
            reply = self._patient.retried(lambda: self._prepare(program, _text(plan)))
        except (WorkerCrashedError, WorkerTimeoutError):
            return None
        return reply.get("build")

    def _prepare(
        self,
        program: Program,
        plan: str | None,
        text: str | None = None,
        keep: Sequence[str] = (),
        seed: int | None = None,
    ) -> dict[str, Any]:
        sent = self._programs.get(program)
        if sent is None:
            sent = self._programs[program] = program_to_json(program)
        if text is not None:
            sent = {**sent, "text": text}
        asked = {"program": sent, "seed": self._draw_seed() if seed is None else seed}
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
        return self._patient.ask(request)

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


def _failed(reply: Mapping[str, Any], of_default: bool = False) -> Measurement:
    """Return the measurement of a reply with an error; if the default plan failed, no other plan is at fault."""
    if of_default:
        return Measurement(None, "program", f"the default plan fails: {reply['error']}: {reply['message']}")
    return Measurement(None, reply["error"], reply["message"])


def _text(plan: CompilationPlan | None) -> str | None:
    """Return a plan as JSON on one line, which is written ten times as fast as with indentation."""
    return None if plan is None else plan.to_json(indent=None)


def _key(program: Program, plan: str | None) -> tuple[Program, str]:
    """Return the key of a program compiled by a plan, with a hash because plans are long."""
    return program, "" if plan is None else hashlib.sha256(plan.encode()).hexdigest()
