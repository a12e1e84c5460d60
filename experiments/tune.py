"""`hlogym tune`: search for the fastest plan of one program by measuring candidates."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from agents.finalists import Confirmed, Finalists, Observer, confirm
from agents.kernel_search import KernelSearch
from agents.search import NoPlanError, Starts, beam_plans, best_measured, find_plan, learned_plans, random_plans
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY
from compiler.learned.fusion_policy import load_policy
from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.statistics import Interval
from env.store import PlanStore, default_store_path
from env.suites import Program
from experiments.console import error_console, factor, progress, stdout, timing
from experiments.inputs import program_of, read_valid_module
from experiments.interruption import keeping
from experiments.results import check_output, write_text

__all__ = ["TuneError", "tune_program"]


class TuneError(HlogymError, RuntimeError):
    """A search whose result failed in the final comparison."""


def tune_program(
    name: str, output: Path, budget: int, backend: str, policy: str | None, seed: int, as_json: bool
) -> None:
    """Run `hlogym tune`.

    Two stages alternate: measuring plans that a policy, if given, a beam search and random search propose in turn, and
    a local search over the kernel choices of the best plan.
    """
    program = program_of(name)
    module = read_valid_module(program)
    check_output(output, program.path)
    backend = find_backend(backend).name
    starts = Starts(backend)
    proposals = [beam_plans(starts, program), random_plans(starts, program, seed)]
    if policy is not None:
        proposals.insert(0, learned_plans(starts, program, load_policy(policy), seed))
    store = PlanStore(default_store_path())
    options = MeasurerOptions(backend=backend, seed=seed)
    with ExitStack() as around, progress() as bar, Measurer(store, options) as measurer:
        task = bar.add_task(f"tuning {program.name}", total=budget)

        finalists = Finalists()
        defaults: list[CompilationPlan] = []
        around.enter_context(keeping(lambda: _keep(finalists, defaults, output)))

        def step(plan: CompilationPlan, measurement: Measurement) -> None:
            bar.update(task, advance=1)
            finalists.note(plan, measurement)

        default = find_plan(DEFAULT_POLICY, starts, program, measurer, budget)
        defaults.append(default.plan)
        # Fails before the search if the program cannot be measured even with the default plan.
        measurer.measure_reference(program)
        search = _Search(measurer, program, KernelSearch(module, program, measurer), step)
        plans = itertools.chain([default.plan], _in_turns(proposals))
        for share in _shares(budget):
            search.fusions(plans, share)
            search.kernels(share)
        search.fusions(plans, budget - search.measurements)  # what the kernels left
        if search.failures:
            error_console.print(
                f"{search.failures} of {search.measurements} plans failed; the last failure: {search.reason}"
            )
        confirmed = confirm(measurer, program, finalists)
        _report(program, default.plan, confirmed, search.measurements, measurer, output, as_json)


def _keep(finalists: Finalists, defaults: list[CompilationPlan], output: Path) -> str:
    """Write the fastest plan that an interrupted search has found, or the default plan; return what was written."""
    found = finalists.plans or defaults
    if not found:
        return "no plan was measured, so nothing was written"
    write_text(output, found[0].to_json())
    if not finalists.plans:
        return f"no plan was faster so far, so the default plan is written to {output}"
    return f"the fastest plan so far is in {output}; its gain was not confirmed in a fresh process"


def _shares(budget: int) -> list[int]:
    """Return how many plans each stage of each round may measure."""
    rounds = 2 if budget >= 16 else 1
    return [max(1, budget // (2 * rounds))] * rounds


class _Search:
    """The best plan found so far, and the stages that look for a better one."""

    def __init__(
        self,
        measurer: Measurer,
        program: Program,
        kernels: KernelSearch,
        step: Observer,
    ) -> None:
        self._measurer, self._program, self._kernels, self._step = measurer, program, kernels, step
        self._best: CompilationPlan | None = None
        self._measured = self._failed = 0
        self._reason = ""

    @property
    def best(self) -> CompilationPlan:
        """The fastest plan; the first stage must have run."""
        if self._best is None:
            raise RuntimeError("no plan has been measured")
        return self._best

    @property
    def measurements(self) -> int:
        """Number of plans measured."""
        return self._measured + self._kernels.measurements

    @property
    def failures(self) -> int:
        """Number of plans that failed."""
        return self._failed + self._kernels.failures

    @property
    def reason(self) -> str:
        """Why the last plan failed."""
        return self._reason or self._kernels.reason

    def fusions(self, plans: Iterator[CompilationPlan], budget: int) -> None:
        """Measure proposed plans."""
        if budget < 1:
            return
        try:
            found = best_measured(self._measurer, self._program, plans, budget, self._step)
        except NoPlanError:
            if self._best is None:
                raise
            return
        self._measured, self._failed = self._measured + found.measurements, self._failed + found.failures
        self._reason = found.reason or self._reason
        if self._best is None or self._relative(found.plan) < self._relative(self._best):
            self._best = found.plan

    def kernels(self, budget: int) -> None:
        """Search the kernel choices of the best plan."""
        self._best = self._kernels.improve(self.best, budget, self._step)

    def _relative(self, plan: CompilationPlan) -> float:
        return self._measurer.measure(self._program, plan).relative  # known from the search


def _in_turns(proposals: list[Iterator[CompilationPlan]]) -> Iterator[CompilationPlan]:
    while proposals:
        for source in list(proposals):
            plan = next(source, None)
            if plan is None:
                proposals.remove(source)
            else:
                yield plan


def _report(
    program: Program,
    default: CompilationPlan,
    confirmed: Confirmed | None,
    measurements: int,
    measurer: Measurer,
    output: Path,
    as_json: bool,
) -> None:
    """Write the plan that was confirmed to be faster than the default plan, or else the default plan, and say so."""
    gate = measurer.options.gate
    measured = measurer.measure_reference(program) if confirmed is None else confirmed.measurement
    if measured.seconds is None:
        raise TuneError(f"{program.name}: {measured.reason}")
    write_text(output, (default if confirmed is None else confirmed.plan).to_json())
    speedup = Interval(1.0, 1.0, 1.0) if measured.verdict is None else measured.verdict.speedup
    if as_json:
        facts = {
            "seconds": measured.seconds.to_json(),
            "speedup": speedup.to_json(),
            "measurements": measurements,
            "faster": confirmed is not None,
            "gate": str(gate),
        }
        print(json.dumps({"program": program.name, **facts, "plan": str(output)}))
        return
    if confirmed is None:
        stdout.print(f"{program.name}: {timing(measured.seconds)} by default, {measurements} plans measured")
        stdout.print(f"no plan is faster ({gate}), so the default plan is written", soft_wrap=True)
    else:
        gain = f"{factor(speedup)} over the default, measured again in a fresh process"
        stdout.print(f"{program.name}: {timing(measured.seconds)}, {gain}, {measurements} plans measured")
    stdout.print(f"plan      {output}", soft_wrap=True)
