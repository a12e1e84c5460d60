"""`hlogym tune`: search for the fastest plan of one program by measuring candidates."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.text import Text

from agents.deviations import Deviation, PlanBuilder
from agents.finalists import Confirmed, Finalists, confirm
from agents.search import draws_of
from agents.search_run import Budget, run_search
from agents.searches import make_search
from compiler.backends.registry import find_backend
from compiler.errors import ArgumentError, HlogymError
from compiler.plan import CompilationPlan
from compiler.policy import resolve_policy
from compiler.support.display import counted
from compiler.support.safe_names import shell_command
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.predicted_measurer import MEASURED, backend_of_reward, predicted_measurer
from env.statistics import Interval
from env.store import default_store_path
from env.suites import Program
from env.workers import LOCAL, Workers
from experiments.answer import give_answer, print_fields
from experiments.command_tracking import track_tune
from experiments.console import error_console, factor, progress, stdout, timing
from experiments.inputs import program_of, read_valid_module
from experiments.interruption import keeping
from experiments.mlflow_store import check_store
from experiments.noise import LoadWatch, print_noise, style_of
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
    tracked: Path | None = None,
    reward: str = MEASURED,
) -> None:
    """Run `hlogym tune`: search from the default plan, or from that of a policy, and confirm what was found.

    The search is recorded in the MLflow store of the folder `tracked`, if one is given. Plans are measured, or their
    times predicted by the reward "estimated-time" or "emulated-time".
    """
    searching = make_search(search, seed)
    program = program_of(name)
    module = read_valid_module(program)
    check_output(output, program.path)
    backend = backend_of_reward(reward, backend)
    if reward != MEASURED and workers != LOCAL:
        raise ArgumentError(f"workers measure plans, which the reward {reward} does not; leave --workers out")
    builder = PlanBuilder(
        module, backend, None if policy is None else draws_of(resolve_policy(policy, backend), backend)
    )
    default = PlanBuilder(module, backend).build(Deviation()).plan
    if tracked is not None:
        check_store(tracked)
    watch = LoadWatch()
    store, options = default_store_path(), MeasurerOptions(backend=backend, seed=seed)
    with ExitStack() as stack:
        bar = stack.enter_context(progress())
        predicted = predicted_measurer(reward, options)
        measurer = stack.enter_context(workers.measurer(store, options) if predicted is None else predicted)
        service = stack.enter_context(workers.service(store, options)) if workers.count > 1 else None
        task = bar.add_task(f"tuning {program.name}", total=budget.measurements)

        seen, speedups = Finalists(), list[float]()
        stack.enter_context(keeping(lambda: _keep(seen, default, output, max(speedups, default=1.0))))

        def step(plan: CompilationPlan, measurement: Measurement) -> None:
            seen.note(plan, measurement)
            if measurement.seconds is not None:
                speedups.append(1 / measurement.relative)
            bar.update(task, advance=1, so_far=f"best {max(speedups, default=1.0):.2f}x the default")

        run = run_search(searching, builder, program, measurer, budget, step, service=service)
        if run.failures:
            failed = f"{run.failures} of {run.measurements} plans failed; the last failure: {run.reason}"
            error_console.print(failed, markup=False)
        bar.update(task, description=f"measuring the best plans of {program.name} again")
        confirmed = confirm(measurer, program, run.finalists)
        facts = _facts(program, default, confirmed, run.measurements, measurer, output, name, reward)
        facts["noise"] = watch.why_noisy() if predicted is None else None
    give_answer(facts, lambda: _print(facts), as_json)
    print_noise(facts["noise"])
    if tracked is not None:
        settings = {"search": search, "budget": budget.measurements, "backend": backend, "seed": seed}
        plan = (default if confirmed is None else confirmed.plan).to_json()
        track_tune(tracked, program, settings | {"policy": policy or "default"}, speedups, facts, plan)


def _keep(finalists: Finalists, default: CompilationPlan, output: Path, speedup: float) -> str:
    """Write the fastest plan that an interrupted search has found, or the default plan; return what was written."""
    found = finalists.plans
    write_text(output, (found[0] if found else default).to_json())
    if not found:
        return f"no plan was faster so far, so the default plan is written to {output}"
    return f"the fastest plan so far, {speedup:.2f}x the default, is in {output}; its gain was not measured again"


def _facts(
    program: Program,
    default: CompilationPlan,
    confirmed: Confirmed | None,
    measurements: int,
    measurer: Measurer,
    output: Path,
    name: str,
    reward: str,
) -> dict[str, Any]:
    """Write the plan that was confirmed to be faster than the default plan, or else the default plan; return facts."""
    measured = measurer.measure_reference(program) if confirmed is None else confirmed.measurement
    if measured.seconds is None:
        raise TuneError(f"{program.name}: {measured.reason}")
    write_text(output, (default if confirmed is None else confirmed.plan).to_json())
    backend = measurer.options.backend
    where = [] if find_backend("auto").name == backend else ["--backend", backend]
    speedup = Interval(1.0, 1.0, 1.0) if measured.verdict is None else measured.verdict.speedup
    return {
        "program": program.name,
        "seconds": measured.seconds.to_json(),
        "speedup": speedup.to_json(),
        "measurements": measurements,
        "faster": confirmed is not None,
        "reward": reward,
        "gate": str(measurer.options.gate) if reward == MEASURED else "any difference counts",
        "plan": str(output),
        "next": shell_command("hlogym", "run", name, "--plan", output, *where),
    }


def _print(facts: Mapping[str, Any]) -> None:
    seconds, speedup = Interval.from_json(facts["seconds"]), Interval.from_json(facts["speedup"])
    name, measured = facts["program"], facts["reward"] == MEASURED
    tried = f"{counted(facts['measurements'], 'plan')} {'measured' if measured else 'predicted'}"
    if facts["faster"]:
        gain = Text(factor(speedup), style_of(speedup, facts["noise"]))
        rest = f" the default, {'measured again in a fresh process' if measured else facts['reward']}; {tried}"
        stdout.print(Text.assemble(f"{name}: {timing(seconds)}, ", gain, rest), soft_wrap=True)
    else:
        stdout.print(f"{name}: {timing(seconds)} by default, {tried}")
        stdout.print(f"no plan is faster ({facts['gate']}), so the default plan is written", soft_wrap=True)
    print_fields({"plan": facts["plan"], "next": facts["next"]})
