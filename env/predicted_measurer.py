"""A measurer that predicts instead of timing, for commands on machines without the device that they compile for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

from compiler.backends.cuda.program_times import ProgramTime
from compiler.backends.registry import find_backend
from compiler.errors import OptionError, UnknownNameError
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.baseline import ProgramError
from env.compilation import PlanFailedError
from env.gate import Verdict
from env.measurement import Comparison, Measurement, Measurer, MeasurerOptions, ReferenceFailedError
from env.predicted_time import PlanTimes, RememberedTimes
from env.statistics import Interval
from env.store import PlanStore
from env.suites import Program

__all__ = [
    "EMULATED",
    "LEAST_SECONDS",
    "MEASURED",
    "PREDICTIONS",
    "CostModelTimes",
    "PredictedMeasurer",
    "Times",
    "backend_of_reward",
    "predicted_measurer",
]

MEASURED = "measured-time"
EMULATED = "emulated-time"
"""The rewards by measured run time, and by predicted time on a GPU."""
LEAST_SECONDS = 1e-12
"""Estimates of programs without work are zero, which has no ratio to others."""


class Times(Protocol):
    """What predicts the times of plans."""

    def seconds(self, program: Program, plan: CompilationPlan) -> float:
        """Return the seconds per call of a program compiled by a plan; raise PlanFailedError if it fails."""
        ...

    def default_seconds(self, program: Program) -> float:
        """Return the seconds per call by default; raise ProgramError if the program cannot be compiled."""
        ...

    def kernels(self, program: Program, plan: CompilationPlan | None) -> int:
        """Return the number of steps that take time; for plans with a predicted time, None for the default."""
        ...


class CostModelTimes(RememberedTimes):
    """Estimates the times of plans by the cost model, which does not tell the choices of a kernel apart.

    Args:
        backend: name of the backend whose device is modeled.
    """

    unknown = "its time cannot be estimated"

    def __init__(self, backend: str) -> None:
        super().__init__()
        self._backend = backend

    def _time(self, text: str, plan: CompilationPlan | None) -> ProgramTime:
        from compiler.api import decide_all
        from compiler.policy import resolve_policy

        session = CompilationSession(parse(text), self._backend)
        if plan is None:
            decide_all(session, resolve_policy("heuristic", session.backend))
        else:
            session.replay(plan)
        cost = session.cost()
        steps = tuple((name, 1.0, t) for (_, name), t in cost.by_instruction.items() if t > 0)
        return ProgramTime(max(cost.seconds, LEAST_SECONDS), steps)


class PredictedMeasurer(Measurer):
    """Returns predicted times as measurements: exact, deterministic, and without any process or device.

    Every difference to the default plan counts. Outputs are not compared with the interpreter's.

    Args:
        times: what predicts.
        options: for the backend and the number of samples of a comparison.
    """

    def __init__(self, times: Times, options: MeasurerOptions) -> None:
        super().__init__(PlanStore(":memory:"), options)
        self._times = times

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        """Return the predicted time of a plan beside that of the default plan."""
        del remeasure
        try:
            default = self._times.default_seconds(program)
        except ProgramError as error:
            return Measurement(None, "program", str(error))
        if plan is None:
            return Measurement(_exact(default), thunks=self._times.kernels(program, None))
        try:
            seconds = self._times.seconds(program, plan)
        except PlanFailedError as error:
            return error.measurement
        verdict = Verdict(_exact(default / seconds), _exact(default), _exact(seconds), seconds != default, blocks=1)
        return Measurement(_exact(seconds), verdict=verdict, thunks=self._times.kernels(program, plan))

    def measure_reference(self, program: Program, remeasure: bool = False) -> Measurement:
        """Return the predicted time of the default plan; raise ReferenceFailedError if it has none."""
        found = self.measure(program, None, remeasure)
        if found.seconds is None:
            raise ReferenceFailedError(found.message)
        return found

    def compare(
        self, program: Program, plans: Mapping[str, CompilationPlan | None], rounds: int | None = None
    ) -> Comparison:
        """Return the predicted time of each plan as all of its samples."""
        found = {name: self.measure(program, plan) for name, plan in plans.items()}
        count = rounds or self.options.rounds
        samples = {name: (m.time.value,) * count for name, m in found.items() if m.seconds is not None}
        failures = {name: m.reason for name, m in found.items() if m.seconds is None}
        return Comparison(samples, failures, {name: found[name].thunks for name in samples})

    def check(self, program: Program, plan: CompilationPlan | None, text: str | None = None) -> str | None:
        """Return why a plan has no predicted time, or None; outputs are not compared.

        Raises:
            ValueError: `text` is given, which has no program.
        """
        if text is not None:
            raise ValueError("the time of a program is predicted from its own text")
        found = self.measure(program, plan)
        return None if found.seconds is not None else found.reason

    def build(self, program: Program, plan: CompilationPlan | None) -> str | None:
        """Return a key of a plan, None if it fails; equal keys mean equal plans."""
        if self.check(program, plan) is not None:
            return None
        return hashlib.sha256(("" if plan is None else plan.to_json()).encode()).hexdigest()


def _exact(value: float) -> Interval:
    return Interval(value, value, value)


PREDICTIONS: Mapping[str, Callable[[str], Times]] = {
    "estimated-time": CostModelTimes,
    EMULATED: lambda _: PlanTimes(),
}
"""What predicts the times of a reward, made from the name of a backend."""


def backend_of_reward(reward: str, backend: str) -> str:
    """Return the name of the backend that a reward is about, where `backend` is what the user asked for.

    Raises:
        OptionError: emulated time is asked for of another backend than "cuda".
        UnknownNameError: there is no such reward, or no such backend.
    """
    if reward not in (MEASURED, *PREDICTIONS):
        raise UnknownNameError("reward", reward, (MEASURED, *PREDICTIONS))
    if reward != EMULATED:
        return find_backend(backend).name
    if backend not in ("auto", "cuda"):
        find_backend(backend)
        raise OptionError(f"emulated time is that of a GPU: use the backend cuda, not {backend}")
    return "cuda"


def predicted_measurer(reward: str, options: MeasurerOptions) -> PredictedMeasurer | None:
    """Return the measurer of a reward by predicted times, or None for measured time.

    Raises:
        BackendError: the reward needs g++, which is not installed.
    """
    made = PREDICTIONS.get(reward)
    return None if made is None else PredictedMeasurer(made(options.backend), options)
