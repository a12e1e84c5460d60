"""Searches by the cost model: plans are estimated and not timed, so that results depend on no machine."""

from __future__ import annotations

from agents.deviations import Built, Deviation, PlanBuilder
from agents.searches import analytic_seconds
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from env.measurement import MeasurerOptions
from env.predicted_measurer import LEAST_SECONDS, PredictedMeasurer
from env.suites import Program

__all__ = ["EstimatedPlans", "EstimatingMeasurer"]


class EstimatedPlans(PlanBuilder):
    """Builds plans and notes their estimated times.

    Attributes:
        seconds: by the text of a plan, its time by the analytic cost model.
    """

    def __init__(self, module: HloModule, backend: str) -> None:
        super().__init__(module, backend)
        self.seconds: dict[str, float] = {}

    def build(self, deviation: Deviation) -> Built:
        """Return the plan of a deviation, see `PlanBuilder.build`."""
        built = super().build(deviation)
        if built.text not in self.seconds:
            self.seconds[built.text] = analytic_seconds(built.session)
        return built


class EstimatingMeasurer(PredictedMeasurer):
    """Returns the estimated times of plans that were built as their measurements; every difference counts.

    Args:
        plans: builds the plans.
    """

    def __init__(self, plans: EstimatedPlans) -> None:
        super().__init__(_BuiltTimes(plans), MeasurerOptions(backend=plans.backend))


class _BuiltTimes:
    """The estimated times of plans that were built; others raise KeyError. Implements `Times`."""

    def __init__(self, plans: EstimatedPlans) -> None:
        self._plans = plans
        self._default = max(LEAST_SECONDS, plans.seconds[plans.build(Deviation()).text])

    def seconds(self, program: Program, plan: CompilationPlan) -> float:
        del program
        return max(LEAST_SECONDS, self._plans.seconds[plan.to_json()])

    def default_seconds(self, program: Program) -> float:
        del program
        return self._default

    def kernels(self, program: Program, plan: CompilationPlan | None) -> int:
        del program, plan
        return 0
