"""The best plans of a search, measured again in fresh processes, because the best of many timings is biased."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer
from env.suites import Program

__all__ = ["Confirmed", "Finalists", "Observer", "confirm"]

FINALISTS = 3
Observer: TypeAlias = Callable[[CompilationPlan, Measurement], None]
"""Is called with each plan that a search measures."""


@dataclass(frozen=True)
class Confirmed:
    """A plan that was faster than the default plan each time, and its last measurement, in a fresh process."""

    plan: CompilationPlan
    measurement: Measurement


class Finalists:
    """The fastest plans that a search has measured so far.

    Args:
        count: number of plans to keep.
    """

    def __init__(self, count: int = FINALISTS) -> None:
        self._count = count
        self._best: dict[str, tuple[float, CompilationPlan]] = {}

    def note(self, plan: CompilationPlan, measurement: Measurement) -> None:
        """Note a measurement; plans that failed, or were no faster than the default plan, are not kept."""
        if measurement.seconds is None or measurement.relative >= 1:
            return
        self._best[plan.to_json()] = measurement.relative, plan
        kept = heapq.nsmallest(self._count, self._best.items(), key=lambda item: item[1][0])
        self._best = dict(kept)

    @property
    def plans(self) -> list[CompilationPlan]:
        """The plans, the fastest first."""
        return [plan for _, plan in self._best.values()]


def confirm(measurer: Measurer, program: Program, finalists: Finalists) -> Confirmed | None:
    """Measure the finalists again, beside the default plan, and return the fastest whose gain is confirmed.

    All are measured in one fresh process. The fastest whose gain passes the gate is measured once more in another
    process; if its gain does not pass the gate there, the next one is.

    Raises:
        MeasurementError: nothing can be measured on this machine.
    """
    measurer.restart()
    again = [(measurer.measure(program, plan, remeasure=True), plan) for plan in finalists.plans]
    gains = sorted(((m.relative, n) for n, (m, _) in enumerate(again) if m.gain))
    for _, number in gains:
        plan = again[number][1]
        measurer.restart()
        last = measurer.measure(program, plan, remeasure=True)
        if last.gain:
            return Confirmed(plan, last)
    return None
