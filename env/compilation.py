"""The compilation that an episode makes, as rewards see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.passes.infrastructure.base import op_count
from compiler.plan import CompilationPlan, Phase
from compiler.session import CompilationSession
from env.baseline import LEAST_ESTIMATE, Baseline
from env.measurement import Measurement
from env.speedup_measurer import SpeedupMeasurer
from env.suites import Program

__all__ = ["Compilation", "PlanFailedError"]


class PlanFailedError(HlogymError):
    """A plan that does not compile, computes something else, crashes or hangs.

    Attributes:
        measurement: how it failed.
    """

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement
        super().__init__(measurement.reason)


class Compilation(ABC):
    """The compilation that an episode makes: the module now, the whole compilation it leads to, and the baseline.

    The whole compilation takes the decisions so far and continues with the defaults. Rewards only read modules and
    sessions; they must not change them.

    Attributes:
        program: the program that is compiled.
        baseline: its default compilation, to compare with: `ops`, `seconds`, `plan`, `complete()`.
    """

    def __init__(self, program: Program, baseline: Baseline, measurer: SpeedupMeasurer) -> None:
        self.program, self.baseline = program, baseline
        self._measurer = measurer
        self._measured: tuple[CompilationPlan, Measurement, float | None] | None = None
        self._completed: tuple[int, CompilationSession] | None = None

    # ---- now

    @property
    @abstractmethod
    def phase(self) -> Phase:
        """The phase of the next decision; "done" after the last one."""

    @property
    @abstractmethod
    def decisions(self) -> Sequence[str]:
        """The decisions so far, as text."""

    @property
    def done(self) -> bool:
        """Whether the episode has taken its last decision."""
        return self.phase == "done"

    @property
    @abstractmethod
    def module(self) -> HloModule:
        """The module after the decisions so far."""

    @property
    def ops(self) -> int:
        """Number of instructions of `module`, by `op_count`."""
        return op_count(self.module)

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Estimated time of `module` by the cost model; positive."""

    # ---- the whole compilation

    def complete(self) -> CompilationSession:
        """Return the session of the whole compilation: `.module`, `.kernels()`, `.cost()`, `.plan`."""
        count = len(self.decisions)
        if self._completed is None or self._completed[0] != count:
            self._completed = count, self._complete()
        return self._completed[1]

    @abstractmethod
    def _complete(self) -> CompilationSession: ...

    @property
    def plan(self) -> CompilationPlan:
        """The plan of the whole compilation."""
        return self.complete().plan

    @property
    def complete_seconds(self) -> float:
        """Estimated time of the whole compilation by the cost model; positive."""
        return max(self.complete().cost().seconds, LEAST_ESTIMATE)

    # ---- against the baseline

    def speedup(self) -> float:
        """Return the estimated speedup over the baseline: of the module now, or of the whole compilation when done."""
        return self.baseline.seconds / (self.complete_seconds if self.done else self.seconds)

    def measured_speedup(self) -> float:
        """Return the measured speedup of the whole compilation over the default plan; a plan is measured once.

        The default plan is what `compile` does without arguments. A difference that does not count, by the gate of the
        measurer, is a speedup of 1.


        Raises:
            PlanFailedError: the plan does not compile, computes something else, crashes or hangs.
            MeasurementError: the default plan cannot be measured, so there is nothing to compare the plan with.
        """
        plan = self.plan
        if self._measured is None or self._measured[0] != plan:
            self._measured = plan, *self._measurer.measure(self.program, plan)
        _, measurement, speedup = self._measured
        if speedup is None:
            raise PlanFailedError(measurement)
        return speedup

    @property
    def measurement(self) -> Measurement | None:
        """The latest measurement of a plan of this episode; None if nothing was measured."""
        return None if self._measured is None else self._measured[1]
