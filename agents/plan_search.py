"""What a search is: it proposes plans, receives their times, and proposes others; and what its plans may change."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from agents.deviations import Built
from agents.plan_space import ALL_GROUPS, PlanSpace, read_groups
from compiler.analysis.cost_model import CostModel, module_cost
from compiler.errors import OptionError, UnknownNameError
from compiler.learned.kernel_calibration import calibrated
from compiler.learned.kernel_model import shipped_kernel_cost
from compiler.learned.learned_costs import LearnedCosts
from compiler.session import CompilationSession
from env.measurement import Measurement

__all__ = [
    "MARGIN",
    "NO_MODEL",
    "PREDICTORS",
    "PlanSearch",
    "Predictor",
    "Search",
    "learned_costs",
    "learned_seconds",
    "relative_time",
]

MARGIN = 0.01
"""Share of the time that a change must save to be kept, because measurements vary."""
NO_MODEL = "none"

Predictor: TypeAlias = Callable[[CompilationSession], float]
"""Returns the predicted seconds of a compilation in which every decision was taken."""


def analytic_seconds(session: CompilationSession) -> float:
    """Return the time by the analytic cost model, which does not tell the choices of a kernel apart."""
    return session.cost().seconds


@functools.cache
def learned_costs() -> CostModel:
    """Return the learned cost model of kernels, with the calibration to this machine if there is one."""
    model = shipped_kernel_cost()
    return CostModel() if model is None else LearnedCosts(calibrated(model))


def learned_seconds(session: CompilationSession) -> float:
    """Return the time by the learned times of its kernels, see `compiler.learned.learned_costs`."""
    return module_cost(session.module, learned_costs()).seconds


PREDICTORS: dict[str, Predictor] = {"analytic": analytic_seconds, "learned": learned_seconds}
"""Cost models by name."""


class Search(Protocol):
    """Proposes plans of one program from the times of those that were measured."""

    def begin(self, space: PlanSpace, start: Measurement, measurements: int) -> None:
        """Begin with the measurement of the plan `space.start`; about so many plans will be measured."""
        ...

    def propose(self, count: int) -> Sequence[Built]:
        """Return up to `count` plans, the one to measure first at the front; none when the search has ended."""
        ...

    def note(self, built: Built, measurement: Measurement) -> None:
        """Take notice of the measurement of a proposed plan; plans that are not measured are not noted."""
        ...


@dataclass(eq=False)
class PlanSearch(ABC):
    """The common part of the searches.

    Attributes:
        groups: the decisions that may change: all, or some of passes, expansions, loops, fusion and kernels, joined
            by +.
        model: cost model by which proposed plans are chosen, a name in PREDICTORS; none: all are measured.
        drawn: number of plans that are proposed for each one that is measured, if there is a model.
        seed: equal seeds and equal times give equal proposals.
        reads_kernels: whether the search wants the times of the kernels of its first plan.
        takes_model: whether it takes a cost model.
    """

    reads_kernels: ClassVar[bool] = False
    takes_model: ClassVar[bool] = True

    groups: str = ALL_GROUPS
    model: str = NO_MODEL
    drawn: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UnknownNameError: there is no such group or cost model.
            OptionError: a number is out of its bounds, or the search takes no cost model.
        """
        read_groups(self.groups)
        if self.model != NO_MODEL and not self.takes_model:
            name = type(self).__name__.lower()
            raise OptionError(f"{name} search takes no option model: it asks the learned models by itself")
        if self.model != NO_MODEL and self.model not in PREDICTORS:
            raise UnknownNameError("cost model", self.model, (NO_MODEL, *PREDICTORS))
        for name, value in vars(self).items():
            if type(value) in (int, float) and name != "seed" and not value > 0:
                raise OptionError(f"option {name} of a search must be positive, not {value}")

    def begin(self, space: PlanSpace, start: Measurement, measurements: int) -> None:
        """See `Search.begin`."""
        self.space, self.measurements = space, max(1, measurements)
        self._begin(space.start, start)

    def propose(self, count: int) -> Sequence[Built]:
        """See `Search.propose`."""
        if self.model == NO_MODEL:
            return self._propose(count)
        predict = PREDICTORS[self.model]
        found = list(self._propose(count * self.drawn))
        self.space.rng.shuffle(found)  # so that plans of equal prediction have equal chances
        return sorted(found, key=lambda b: predict(b.session))[:count]

    def note(self, built: Built, measurement: Measurement) -> None:
        """See `Search.note`."""
        self._note(built, relative_time(measurement), measurement)

    def _begin(self, start: Built, measurement: Measurement) -> None:
        """Begin at a plan; searches that keep a state override it."""
        del start, measurement

    @abstractmethod
    def _propose(self, count: int) -> Sequence[Built]: ...

    def _note(self, built: Built, relative: float, measurement: Measurement) -> None:
        """Note a time as a share of the default plan's, infinite for a plan that failed."""
        del built, relative, measurement


def relative_time(measurement: Measurement) -> float:
    """Return the time as a share of the default plan's; infinite for a plan that failed."""
    return math.inf if measurement.seconds is None else measurement.relative
