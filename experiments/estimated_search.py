"""Searches by a cost model: plans are predicted and not timed, so that results depend on no machine."""

from __future__ import annotations

from agents.deviations import Built, Deviation, PlanBuilder, PolicyDraws
from agents.plan_search import PREDICTORS, Predictor
from compiler.errors import UnknownNameError
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from env.measurement import MeasurerOptions
from env.predicted_measurer import LEAST_SECONDS, PredictedMeasurer
from env.suites import Program

__all__ = ["EstimatedPlans", "EstimatingMeasurer"]


class EstimatedPlans:
    """Builds plans of a program and notes their predicted times, whichever policy they start from.

    Args:
        module: the program.
        backend: the backend to plan for.
        model: name of the cost model whose times count, one of `agents.plan_search.PREDICTORS`.

    Attributes:
        seconds: predicted seconds by the text of a plan.
        default_seconds: those of the default plan.

    Raises:
        UnknownNameError: there is no such cost model.
        HlogymError: the program cannot be compiled.
    """

    def __init__(self, module: HloModule, backend: str, model: str = "analytic") -> None:
        if model not in PREDICTORS:
            raise UnknownNameError("cost model", model, tuple(PREDICTORS))
        self.backend = backend
        self.seconds: dict[str, float] = {}
        self._module, self._predict = module, PREDICTORS[model]
        default = self.builder().build(Deviation())
        self.default_seconds = max(LEAST_SECONDS, self.seconds[default.text])

    def builder(self, policy: PolicyDraws | None = None) -> PlanBuilder:
        """Return what builds plans next to those of a policy, or to the default plan, and notes their times."""
        return _NotingBuilder(self._module, self.backend, policy, self.seconds, self._predict)


class _NotingBuilder(PlanBuilder):
    def __init__(
        self,
        module: HloModule,
        backend: str,
        policy: PolicyDraws | None,
        seconds: dict[str, float],
        predict: Predictor,
    ) -> None:
        super().__init__(module, backend, policy)
        self._seconds, self._predict = seconds, predict

    def build(self, deviation: Deviation) -> Built:
        """Return the plan of a deviation, see `PlanBuilder.build`."""
        built = super().build(deviation)
        if built.text not in self._seconds:
            self._seconds[built.text] = self._predict(built.session)
        return built


class EstimatingMeasurer(PredictedMeasurer):
    """Returns the predicted times of plans that were built as their measurements; every difference counts.

    Args:
        plans: what builds the plans.
    """

    def __init__(self, plans: EstimatedPlans) -> None:
        super().__init__(_BuiltTimes(plans), MeasurerOptions(backend=plans.backend))


class _BuiltTimes:
    """The predicted times of plans that were built; others raise KeyError. Implements `Times`."""

    def __init__(self, plans: EstimatedPlans) -> None:
        self._plans = plans

    def seconds(self, program: Program, plan: CompilationPlan) -> float:
        del program
        return max(LEAST_SECONDS, self._plans.seconds[plan.to_json()])

    def default_seconds(self, program: Program) -> float:
        del program
        return self._plans.default_seconds

    def kernels(self, program: Program, plan: CompilationPlan | None) -> int:
        del program, plan
        return 0
