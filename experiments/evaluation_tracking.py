"""Evaluations in MLflow: one run with the summary, and a nested run per program with its times, plans and kernels."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from compiler.api import compile as compile_hlo
from compiler.errors import HlogymError
from compiler.plan import CompilationPlan
from compiler.support.safe_names import file_name
from env.suites import Program
from experiments.console import error_console
from experiments.mlflow_store import TrackingError
from experiments.pass_orders.evaluation import DEFAULT, OrderEvaluation
from experiments.plots import profile_lines, save_figure, speedup_bars
from experiments.results import Evaluation, ProgramResult
from experiments.system_metrics import SystemMetrics
from experiments.tracking import TrackedRun

__all__ = ["Plans", "track_evaluation", "track_orders"]

Plans: TypeAlias = Mapping[str, Mapping[str, CompilationPlan]]
"""The plan of each strategy, by program."""
_SHOWN = "learned"
"""The strategy whose kernels are logged."""


def track_evaluation(
    evaluation: Evaluation, file: Path, policy: str, programs: Sequence[Program], plans: Plans, runs: Path
) -> None:
    """Log an evaluation of a fusion policy; a store that fails is a warning, since the results are in files already.

    Args:
        evaluation: the results.
        file: where they were written as JSON; the table is beside it.
        policy: what was evaluated, as the user named it.
        programs: the programs of the evaluation.
        plans: the plan of each strategy, by program.
        runs: the folder of the local store.
    """
    try:
        with TrackedRun(runs, file.stem) as parent:
            facts = {"backend": evaluation.backend, "budget": evaluation.budget, "policy": policy}
            parent.params({**facts, "strategies": ",".join(evaluation.strategies), "reference": evaluation.reference})
            parent.tags({**evaluation.provenance, "kind": "evaluation"})
            parent.dataset(programs, _suites(programs), "evaluation")
            system = SystemMetrics(runs)
            parent.metrics(_summary(evaluation), 0)
            _log_files(parent, file)
            _log_figures(parent, evaluation)
            by_name = {p.name: p for p in programs}
            for step, result in enumerate(evaluation.programs):
                with TrackedRun(runs, result.program, parent=parent.run_id) as child:
                    _log_program(child, result, evaluation.reference)
                    _log_plans(child, by_name[result.program], plans.get(result.program, {}), evaluation.backend)
                learned = result.strategies.get(_SHOWN)
                if learned is not None and learned.speedup is not None:
                    parent.metrics({f"program.{_SHOWN}.speedup": learned.speedup.value}, step)
            parent.metrics(system.read(), 0)
    except TrackingError as error:
        _warn(error)


def track_orders(evaluation: OrderEvaluation, file: Path, policy: str, programs: Sequence[Program], runs: Path) -> None:
    """Log an evaluation of a pass order; see `track_evaluation`."""
    try:
        with TrackedRun(runs, file.stem) as parent:
            parent.params({"budget": evaluation.budget, "search_budget": evaluation.search_budget, "policy": policy})
            parent.tags({**evaluation.provenance, "kind": "evaluation"})
            parent.dataset(programs, _suites(programs), "evaluation")
            parent.metrics(_order_summary(evaluation), 0)
            _log_files(parent, file)
            for row in evaluation.rows:
                with TrackedRun(runs, row.program, parent=parent.run_id) as child:
                    child.params({"suite": row.suite, "split": row.split, "seen": row.seen})
                    child.metrics({"ops.written": row.written}, 0)
                    child.metrics({f"ops.{name}": c.ops for name, c in row.contenders.items()}, 0)
                    child.metrics({f"{name}.speedup": s.value for name, s in row.speedups.items()}, 0)
                    _log_json(child, "passes.json", {name: list(c.passes) for name, c in row.contenders.items()})
    except TrackingError as error:
        _warn(error)


def _warn(error: TrackingError) -> None:
    error_console.print(f"warning: the evaluation is not tracked: {error}", soft_wrap=True, markup=False)


def _suites(programs: Sequence[Program]) -> str:
    return ",".join(dict.fromkeys(p.suite for p in programs)) or "none"


def _summary(evaluation: Evaluation) -> dict[str, float]:
    found: dict[str, float] = {}
    for strategy in evaluation.contenders:
        for seen, kind in ((False, "held_out"), (True, "seen")):
            values = [
                p.strategies[strategy].speedup for p in evaluation.programs
                if p.seen is seen and strategy in p.strategies
            ]  # fmt: skip
            logs = [math.log(v.value) for v in values if v is not None]
            if logs:
                found[f"{kind}.{strategy}.speedup"] = math.exp(sum(logs) / len(logs))
    return found


def _order_summary(evaluation: OrderEvaluation) -> dict[str, float]:
    """Return the geometric means that the table of an evaluation of pass orders has, by contender."""
    found = {f"ops_over_default.{name}": evaluation.ratio(name, DEFAULT).value for name in evaluation.names}
    speedups = {f"{name}.speedup": evaluation.speedup(name) for name in evaluation.names}
    return found | {name: s.value for name, s in speedups.items() if s is not None}


def _log_files(run: TrackedRun, file: Path) -> None:
    for path in (file, file.with_suffix(".md")):
        if path.is_file():
            run.artifacts(path, "tables")


def _log_figures(run: TrackedRun, evaluation: Evaluation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in (("speedups", speedup_bars(evaluation)), ("profile", profile_lines(evaluation))):
            if figure is not None:
                save_figure(figure, Path(folder) / f"{name}.png")
                run.artifacts(Path(folder) / f"{name}.png", "plots")


def _log_program(run: TrackedRun, result: ProgramResult, reference: str) -> None:
    run.params({"split": result.split, "seen": result.seen, "reference": reference})
    failures = {n: s.failure for n, s in result.strategies.items() if s.failure}
    if failures:
        run.tags({f"failure.{name}": text for name, text in failures.items()})
    found: dict[str, float] = {"noise.low": result.noise.low, "noise.high": result.noise.high}
    for name, strategy in result.strategies.items():
        found[f"{name}.kernels"], found[f"{name}.measurements"] = strategy.kernels, strategy.measurements
        if strategy.seconds is not None:
            found[f"{name}.seconds"] = strategy.seconds.value
        if strategy.speedup is not None:
            found[f"{name}.speedup"] = strategy.speedup.value
            found[f"{name}.speedup_low"], found[f"{name}.speedup_high"] = strategy.speedup.low, strategy.speedup.high
    run.metrics(found, 0)
    rounds = max((len(s.ratios) for s in result.strategies.values()), default=0)
    for step in range(rounds):
        ratios = {n: s.ratios[step] for n, s in result.strategies.items() if step < len(s.ratios)}
        run.metrics({f"{name}.round_speedup": ratio for name, ratio in ratios.items()}, step)


def _log_plans(run: TrackedRun, program: Program, plans: Mapping[str, CompilationPlan], backend: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "plans"
        here.mkdir()
        for name, plan in plans.items():
            (here / file_name(name, ".json")).write_text(plan.to_json(), encoding="utf-8")
        if plans:
            run.artifacts(here, "plans")
        if _SHOWN not in plans:
            return
        kernels = Path(folder) / "kernels"
        kernels.mkdir()
        try:
            made = compile_hlo(program.text(), backend=backend, plan=plans[_SHOWN]).kernels
        except (HlogymError, OSError):  # the comparison has reported it
            return
        for kernel in made:
            if kernel.source:
                (kernels / file_name(kernel.name, ".txt")).write_text(kernel.source, encoding="utf-8")
        run.artifacts(kernels, "kernels")


def _log_json(run: TrackedRun, name: str, value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(json.dumps(value, indent=1), encoding="utf-8")
        run.artifacts(file)
