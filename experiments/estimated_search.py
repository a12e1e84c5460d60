"""Searches by the cost model: plans are estimated and not timed, so that results depend on no machine."""

from __future__ import annotations

from agents.deviations import Built, Deviation, PlanBuilder
from agents.searches import analytic_seconds
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from env.gate import Verdict
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.statistics import Interval
from env.store import PlanStore
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


class EstimatingMeasurer(Measurer):
    """Returns the estimated times of plans that were built as their measurements; every difference counts.

    Args:
        plans: builds the plans.
    """

    def __init__(self, plans: EstimatedPlans) -> None:
        super().__init__(PlanStore(":memory:"), MeasurerOptions(backend=plans.backend))
        self._plans = plans
        self._default = plans.seconds[plans.build(Deviation()).text]

    def measure_reference(self, program: Program, remeasure: bool = False) -> Measurement:
        """Return the estimated time of the default plan."""
        del program, remeasure
        return Measurement(_exact(self._default))

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        """Return the estimated time of a plan that was built.

        Raises:
            KeyError: it was not.
        """
        if plan is None:
            return self.measure_reference(program, remeasure)
        seconds = _exact(self._plans.seconds[plan.to_json()])
        speedup = _exact(self._default / max(seconds.value, 1e-12))
        return Measurement(seconds, verdict=Verdict(speedup, _exact(self._default), seconds, counts=True, blocks=1))


def _exact(value: float) -> Interval:
    return Interval(value, value, value)
