"""Runs of searches: plans are measured until the measurements or the seconds of a budget are used up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

from agents.deviations import PlanBuilder
from agents.finalists import Finalists, Observer
from agents.plan_search import PlanSearch
from agents.plan_space import PlanSpace, read_groups
from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer
from env.service import MeasuringService
from env.suites import Program

__all__ = ["Budget", "SearchRun", "Trial", "run_search"]


@dataclass(frozen=True)
class Budget:
    """What a search may use; it ends when either is used up.

    Attributes:
        measurements: number of plans measured.
        seconds: time since the start, with everything that the search computes.
    """

    measurements: int
    seconds: float = math.inf


@dataclass(frozen=True)
class Trial:
    """A plan that was measured.

    Attributes:
        plan: the plan.
        seconds: since the start of the search, after the measurement.
        relative: its time as a share of the default plan's; None if it failed.
    """

    plan: CompilationPlan
    seconds: float
    relative: float | None


@dataclass
class SearchRun:
    """What a search has measured.

    Attributes:
        trials: the plans in the order of measurement.
        finalists: the fastest of them.
        reason: why the last plan failed that did.
    """

    trials: list[Trial] = field(default_factory=list)
    finalists: Finalists = field(default_factory=Finalists)
    reason: str = ""

    @property
    def measurements(self) -> int:
        """Number of plans measured."""
        return len(self.trials)

    @property
    def failures(self) -> int:
        """Number of those that failed."""
        return sum(t.relative is None for t in self.trials)

    def best(self, measurements: int | None = None, seconds: float = math.inf) -> CompilationPlan | None:
        """Return the plan that was faster than the default plan by most, within a part of the budget; None: no plan.

        Of a plan that was measured several times, the mean counts.
        """
        known: dict[str, tuple[CompilationPlan, list[float]]] = {}
        for t in self.trials[:measurements]:
            if t.seconds <= seconds and t.relative is not None:
                known.setdefault(t.plan.to_json(), (t.plan, []))[1].append(t.relative)
        means = [(fmean(times), plan) for plan, times in known.values()]
        relative, plan = min(means, key=lambda m: m[0], default=(1.0, None))
        return plan if relative < 1 else None

    def note(self, plan: CompilationPlan, seconds: float, found: Measurement) -> None:
        """Note a measurement."""
        self.trials.append(Trial(plan, seconds, None if found.seconds is None else found.relative))
        self.finalists.note(plan, found)
        if found.seconds is None:
            self.reason = found.reason


def run_search(
    search: PlanSearch,
    builder: PlanBuilder,
    program: Program,
    measurer: Measurer,
    budget: Budget,
    observe: Observer | None = None,
    now: Callable[[], float] = time.monotonic,
    service: MeasuringService | None = None,
) -> SearchRun:
    """Run a search and return what it has measured.

    The default plan costs nothing; that of a policy is measured first.

    Args:
        search: proposes plans.
        builder: builds them.
        program: the program, for the measurer.
        measurer: measures plans beside the default plan.
        budget: what may be used.
        observe: called after each measurement.
        now: the time in seconds.
        service: workers that measure several proposed plans at once, instead of the measurer.

    Raises:
        MeasurementError: the default plan cannot be measured, or nothing on this machine.
    """
    begin, run = now(), SearchRun()
    start = measurer.measure_reference(program)
    if search.reads_kernels and not start.kernels:  # known from the store, which has whole programs only
        start = measurer.measure_reference(program, remeasure=True)
    space = PlanSpace(builder, read_groups(search.groups), search.seed)

    def note(plan: CompilationPlan, found: Measurement) -> Measurement:
        run.note(plan, now() - begin, found)
        if observe is not None:
            observe(plan, found)
        return found

    if not builder.is_default and budget.measurements:
        space.tried.add(space.start.text)
        start = note(space.start.plan, measurer.measure(program, space.start.plan))
    search.begin(space, start, budget.measurements)
    width = 1 if service is None else service.count
    while run.measurements < budget.measurements and now() - begin < budget.seconds:
        proposed = {p.text: p for p in search.propose(min(width, budget.measurements - run.measurements))}
        if not proposed:
            break
        again = {text for text in proposed if text in space.tried}
        space.tried.update(proposed)
        measured: Iterator[tuple[CompilationPlan, Measurement]]
        if service is None:
            measured = ((p.plan, _measure(measurer, program, p.plan, text in again)) for text, p in proposed.items())
        else:
            measured = service.plans(program, [p.plan for p in proposed.values()])
        for plan, found in measured:
            search.note(proposed[plan.to_json()], note(plan, found))
    return run


def _measure(measurer: Measurer, program: Program, plan: CompilationPlan, again: bool) -> Measurement:
    """Measure a plan; again in a fresh process, because the addresses of code and arrays affect times."""
    if again:
        measurer.restart()
    return measurer.measure(program, plan, remeasure=again)
