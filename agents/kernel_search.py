"""A local search over the kernel choices of one plan: one knob of one kernel at a time, measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agents.finalists import Observer
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.kernel_selector import KernelRanking, most_promising
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from env.measurement import Measurement, Measurer
from env.suites import Program

__all__ = ["KernelSearch"]

MARGIN = 0.02
"""Share of the time that a choice must save to be taken, because measurements vary."""


@dataclass
class _Tried:
    """A kernel and the choices that were measured for it."""

    site: KernelSite
    choices: set[KernelChoice]


class KernelSearch:
    """Improves the kernel choices of plans of one program.

    The kernels of a plan are visited from the one that takes the most time to the one that takes the least. For each,
    the choices that differ from the current one in one knob are measured; one that saves more than MARGIN becomes the
    current one. The search of a plan ends when no such choice of any kernel is left.

    Args:
        module: the program, parsed.
        program: the program, for the measurer.
        measurer: measures plans.
        ranking: if there is one, the choices of a kernel are tried in its order.

    Attributes:
        measurements: number of plans that were measured.
        failures: number of those that failed.
        reason: why the last of them failed.
    """

    def __init__(
        self, module: HloModule, program: Program, measurer: Measurer, ranking: KernelRanking | None = None
    ) -> None:
        self._module, self._program, self._measurer, self._ranking = module, program, measurer, ranking
        self.measurements = self.failures = 0
        self.reason = ""

    def improve(self, plan: CompilationPlan, budget: int, progress: Observer | None = None) -> CompilationPlan:
        """Return the plan with the fastest kernel choices found.

        Args:
            plan: a plan that was measured without failure.
            budget: greatest number of plans that are measured.
            progress: called after each measurement.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        session = CompilationSession(self._module, backend=self._measurer.options.backend)
        session.replay(plan)
        start = self._measurer.measure(self._program, plan)
        if start.seconds is None:
            return plan
        if not start.kernels:  # its time was known, but not those of its kernels
            start = self._measurer.measure(self._program, plan, remeasure=True)
            if start.seconds is None:
                return plan
        best = start.relative
        kernels = [_Tried(s, {session.chosen_kernel(s)}) for s in _heaviest_first(session, start)]
        for _ in range(budget):
            step = next(_untried(session, kernels, self._ranking), None)
            if step is None:
                break
            kernel, choice = step
            kernel.choices.add(choice)
            changed = session.fork()
            changed.set_kernel(kernel.site, choice)
            relative = self._measure(changed.plan, progress)
            if relative is not None and relative < (1 - MARGIN) * best:
                best, session = relative, changed
        return session.plan

    def _measure(self, plan: CompilationPlan, progress: Observer | None) -> float | None:
        result = self._measurer.measure(self._program, plan)
        self.measurements += 1
        if result.seconds is None:
            self.failures, self.reason = self.failures + 1, result.reason
        if progress is not None:
            progress(plan, result)
        return None if result.seconds is None else result.relative


def _heaviest_first(session: CompilationSession, measured: Measurement) -> list[KernelSite]:
    """Return the kernels that have choices; kernels of one name share the time measured under it."""
    times: dict[str, float] = {}
    for kernel in measured.kernels:
        times[kernel.name] = times.get(kernel.name, 0.0) + kernel.executions * kernel.seconds
    sites = [s for s in session.kernel_sites() if s.choices.size > 1]
    return sorted(sites, key=lambda s: -times.get(s.name, 0.0))


def _untried(
    session: CompilationSession, kernels: list[_Tried], ranking: KernelRanking | None
) -> Iterator[tuple[_Tried, KernelChoice]]:
    """Yield the choices next to the current ones that were not measured, those of the heaviest kernel first."""
    for kernel in kernels:
        current = session.chosen_kernel(kernel.site)
        near = kernel.site.neighbours(current)
        if ranking is not None:
            near = most_promising(ranking, kernel.site, [current, *near], len(near) + 1)[1:]
        for choice in near:
            if choice not in kernel.choices and kernel.site.check(choice) is None:
                yield kernel, choice
