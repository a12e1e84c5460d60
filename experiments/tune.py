"""`hlogym tune`: search for the fastest plan of one program by measuring candidates."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from agents.search import Starts, beam_plans, best_measured, find_plan, learned_plans, random_plans
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY
from compiler.learned.fusion_policy import load_policy
from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.store import KernelStore, default_store_path
from env.suites import Program
from experiments.console import error_console, factor, progress, stdout, timing
from experiments.inputs import program_of, read_valid_module
from experiments.results import check_output, write_text

__all__ = ["TuneError", "tune_program"]


class TuneError(HlogymError, RuntimeError):
    """A search whose result failed in the final comparison."""


def tune_program(
    name: str, output: Path, budget: int, backend: str, policy: str | None, seed: int, as_json: bool
) -> None:
    """Run `hlogym tune`: measure plans proposed in turn by a policy, if given, a beam search and random search."""
    program = program_of(name)
    read_valid_module(program)
    check_output(output, program.path)
    backend = find_backend(backend).name
    starts = Starts(backend)
    proposals = [beam_plans(starts, program), random_plans(starts, program, seed)]
    if policy is not None:
        proposals.insert(0, learned_plans(starts, program, load_policy(policy), seed))
    store = KernelStore(default_store_path())
    with progress() as bar, Measurer(store, MeasurerOptions(backend=backend, seed=seed)) as measurer:
        task = bar.add_task(f"tuning {program.name}", total=budget)

        def step(_: Measurement) -> None:
            bar.update(task, advance=1)

        default = find_plan(DEFAULT_POLICY, starts, program, measurer, budget)
        # Fails before the search if the program cannot be measured even with the default plan.
        measurer.measure_reference(program, default.plan)
        best = best_measured(measurer, program, itertools.chain([default.plan], _in_turns(proposals)), budget, step)
        if best.failures:
            error_console.print(f"{best.failures} of {best.measurements} plans failed; the last failure: {best.reason}")
        _report(program, default.plan, best.plan, best.measurements, measurer, output, as_json)


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
    best: CompilationPlan,
    measurements: int,
    measurer: Measurer,
    output: Path,
    as_json: bool,
) -> None:
    """Time the winner again, end to end, against the default, because the best of many timings is biased."""
    compared = measurer.compare(program, {"default": default, "tuned": best})
    if compared.failures:
        raise TuneError(f"{program.name}: {'; '.join(f'{n}: {f}' for n, f in compared.failures.items())}")
    write_text(output, best.to_json())
    seconds, speedup = compared.seconds("tuned"), compared.speedup("tuned", "default")
    if as_json:
        facts = {"seconds": seconds.to_json(), "speedup": speedup.to_json(), "measurements": measurements}
        print(json.dumps({"program": program.name, **facts, "plan": str(output)}))
        return
    stdout.print(
        f"{program.name}: {timing(seconds)}, {factor(speedup)} over the default, {measurements} plans measured"
    )
    stdout.print(f"plan      {output}", soft_wrap=True)
