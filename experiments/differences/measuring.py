"""What each difference is worth: the plan beside the same plan without the difference, timed in turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compiler.plan import CompilationPlan
from env.measurement import Comparison, MeasurementError, Measurer
from env.statistics import Interval
from env.suites import Program
from experiments.differences.finding import Difference
from experiments.differences.sides import Side

__all__ = ["Worth", "measure_worth"]

AT_ONCE = 12
"""Plans that are timed in turns; more of them would push each other out of the caches."""
LEAST = 0.01
"""Share of the time below which nothing counts, whatever the interval is."""
_FIRST, _SECOND, _AGAIN = "first", "second", "again"


@dataclass(frozen=True)
class Worth:
    """What the differences are worth.

    Attributes:
        whole: speedup of the first plan over the second; None if the second failed.
        noise: the first plan over itself (A/A).
        each: speedup of the first plan over the one without a difference, by the number of the difference.
        failures: why there is none, by the number of the difference.
    """

    whole: Interval | None
    noise: Interval
    each: Mapping[int, Interval] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)

    def counts(self, speedup: Interval) -> bool:
        """Check whether a speedup is beyond the noise: its interval, and 1%."""
        low, high = min(self.noise.low, 1 - LEAST), max(self.noise.high, 1 + LEAST)
        return speedup.low > high or speedup.high < low


def measure_worth(
    measurer: Measurer, program: Program, first: Side, second: Side, differences: Sequence[Difference]
) -> Worth:
    """Time the first plan, the second, and the first without each difference; outputs are checked.

    Raises:
        MeasurementError: the first plan cannot be measured.
    """
    wanted = [(n, d.without) for n, d in enumerate(differences) if d.without is not None]
    noise = Interval(1.0, 1.0, 1.0)
    whole: Interval | None = None
    each: dict[int, Interval] = {}
    failures: dict[int, str] = {}
    for at in range(0, max(1, len(wanted)), AT_ONCE):
        some = wanted[at : at + AT_ONCE]
        plans: dict[str, CompilationPlan | None] = {_FIRST: first.plan, _AGAIN: first.plan}
        if at == 0:
            plans[_SECOND] = second.plan
        compared = measurer.compare(program, {**plans, **{str(n): plan for n, plan in some}})
        if _FIRST not in compared.samples:
            raise MeasurementError(f"{program.label}: {first.label}: {compared.failures.get(_FIRST, 'not measured')}")
        if _AGAIN in compared.samples:
            again = compared.speedup(_AGAIN, _FIRST)
            noise = Interval(again.value, min(noise.low, again.low), max(noise.high, again.high))
        whole = _speedup(compared, _SECOND) or whole
        for n, _ in some:
            found = _speedup(compared, str(n))
            if found is None:
                failures[n] = compared.failures.get(str(n), "not measured")
            else:
                each[n] = found
    return Worth(whole, noise, each, failures)


def _speedup(compared: Comparison, name: str) -> Interval | None:
    """Return the speedup of the first plan over another one; None if that failed."""
    if name not in compared.samples:
        return None
    found = compared.speedup(_FIRST, name)
    return found if math.isfinite(found.value) else None
