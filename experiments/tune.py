"""`hlogym tune`: search for the fastest plan of one program by measuring candidates."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from agents.deviations import Deviation, PlanBuilder
from agents.finalists import Confirmed, confirm
from agents.search import draws_of
from agents.search_run import Budget, run_search
from agents.searches import make_search
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.plan import CompilationPlan
from compiler.policy import resolve_policy
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.statistics import Interval
from env.store import default_store_path
from env.suites import Program
from env.workers import LOCAL, Workers
from experiments.console import error_console, factor, progress, stdout, timing
from experiments.inputs import program_of, read_valid_module
from experiments.results import check_output, write_text

__all__ = ["TuneError", "tune_program"]


class TuneError(HlogymError, RuntimeError):
    """A search whose result failed in the final comparison."""


def tune_program(
    name: str,
    output: Path,
    budget: Budget,
    backend: str,
    policy: str | None,
    search: str,
    seed: int,
    as_json: bool,
    workers: Workers = LOCAL,
) -> None:
    """Run `hlogym tune`: search from the default plan, or from that of a policy, and confirm what was found."""
    searching = make_search(search, seed)
    program = program_of(name)
    module = read_valid_module(program)
    check_output(output, program.path)
    backend = find_backend(backend).name
    builder = PlanBuilder(
        module, backend, None if policy is None else draws_of(resolve_policy(policy, backend), backend)
    )
    default = PlanBuilder(module, backend).build(Deviation()).plan
    store, options = default_store_path(), MeasurerOptions(backend=backend, seed=seed)
    with ExitStack() as stack:
        bar = stack.enter_context(progress())
        measurer = stack.enter_context(workers.measurer(store, options))
        service = stack.enter_context(workers.service(store, options)) if workers.count > 1 else None
        task = bar.add_task(f"tuning {program.name}", total=budget.measurements)

        def step(plan: CompilationPlan, measurement: Measurement) -> None:
            del plan, measurement
            bar.update(task, advance=1)

        run = run_search(searching, builder, program, measurer, budget, step, service=service)
        if run.failures:
            failed = f"{run.failures} of {run.measurements} plans failed; the last failure: {run.reason}"
            error_console.print(failed, markup=False)
        confirmed = confirm(measurer, program, run.finalists)
        _report(program, default, confirmed, run.measurements, measurer, output, as_json)


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
