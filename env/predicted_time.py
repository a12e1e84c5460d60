"""Predicted GPU times of plans, with which agents are trained for a GPU on any machine."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from compiler.api import compile
from compiler.backends.cuda import emulation
from compiler.backends.cuda.gpu_models import GpuModel
from compiler.backends.cuda.program_times import PredictedTimes, ProgramTime
from compiler.errors import BackendError, HlogymError, UnbuildableFusionError
from compiler.plan import CompilationPlan
from compiler.support.lru_dict import LruDict
from env.baseline import ProgramError
from env.compilation import PlanFailedError
from env.measurement import Measurement
from env.suites import Program

__all__ = ["PlanTimes", "RememberedTimes"]

KNOWN_PLANS = 2000
"""Number of plans whose times are remembered."""


class RememberedTimes(ABC):
    """Predicts the times of programs compiled by plans, and remembers them."""

    unknown: ClassVar[str]
    """What is said of a program that has no default time."""

    def __init__(self) -> None:
        self._known: LruDict[str, ProgramTime] = LruDict(KNOWN_PLANS)

    @abstractmethod
    def _time(self, text: str, plan: CompilationPlan | None) -> ProgramTime:
        """Return the time of a program after a plan; None: after all default decisions."""

    def seconds(self, program: Program, plan: CompilationPlan) -> float:
        """Return the predicted seconds per call of a program compiled by a plan.

        Raises:
            PlanFailedError: the plan cannot be compiled, or a kernel fails in the emulator.
            UnbuildableFusionError: a fusion that was legal has no kernel, which is a fault of the compiler.
        """
        try:
            return self._predicted(program, plan).seconds
        except UnbuildableFusionError:
            raise
        except HlogymError as error:
            raise PlanFailedError(Measurement(None, "compile", str(error))) from error

    def default_seconds(self, program: Program) -> float:
        """Return the predicted seconds of a program as `compile` compiles it by default.

        Raises:
            ProgramError: it cannot be compiled, or a kernel fails in the emulator.
        """
        try:
            return self._predicted(program, None).seconds
        except HlogymError as error:
            raise ProgramError(f"{program.label}: {self.unknown}: {error}") from error

    def kernels(self, program: Program, plan: CompilationPlan | None) -> int:
        """Return the number of steps that take time; None: of the default plan. Errors are those of `compile`."""
        return len(self._predicted(program, plan).steps)

    def _predicted(self, program: Program, plan: CompilationPlan | None) -> ProgramTime:
        text = program.text()
        key = hashlib.sha256("\n".join([text, "" if plan is None else plan.to_json()]).encode()).hexdigest()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._time(text, plan)
        return found


class PlanTimes(RememberedTimes):
    """Predicts the times of programs compiled by plans for the backend "cuda", without a GPU.

    A copy shares what is known with the original.

    Args:
        gpu: a model of a GPU, or the name of one in `compiler.backends.cuda.gpu_models.GPUS`.
        times: what predicts kernels and programs; None: one for `gpu`.

    Raises:
        BackendError: kernels cannot be emulated on this machine.
        UnknownNameError: there is no such GPU.
    """

    unknown = "its time on a GPU cannot be predicted"

    def __init__(self, gpu: GpuModel | str = "h100", times: PredictedTimes | None = None) -> None:
        if not emulation.available():
            raise BackendError("predicted GPU times need g++, which is not installed (Debian: apt install g++)")
        super().__init__()
        self._times = times or PredictedTimes(gpu)

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanTimes:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanTimes, (self._times.gpu,)

    def _time(self, text: str, plan: CompilationPlan | None) -> ProgramTime:
        return self._times.program(compile(text, backend="cuda", plan=plan).thunks)
