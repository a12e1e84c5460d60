"""`hlogym evaluate` for a pass order: compare its op counts with fixed orders and searches."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from agents.pass_search import PASS_SEARCHES
from compiler.errors import UnknownNameError
from compiler.learned.pass_order import LearnedPassOrder
from env.suites import load_suite
from experiments.console import progress, stdout
from experiments.evaluation_tracking import track_orders
from experiments.mlflow_store import check_store
from experiments.pass_orders.contenders import evaluate_orders
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, OrderEvaluation
from experiments.pass_orders.tables import print_summary, program_table, summary_table
from experiments.provenance import provenance
from experiments.results import check_writable, fresh_stem, markdown_facts, write_text

__all__ = ["evaluate_pass_order"]


def evaluate_pass_order(
    policy: LearnedPassOrder,
    suites: Sequence[str],
    searches: Sequence[str] | None,
    budget: int,
    results: Path,
    seed: int,
    as_json: bool,
    runs: Path | None = None,
    named: str = "",
) -> OrderEvaluation:
    """Evaluate a pass order, print a table and write the results.

    Args:
        policy: the pass order.
        suites: names of suites.
        searches: names in PASS_SEARCHES to compare with; None: all of them.
        budget: pass applications of the policy and of each search; searches run again with five times as many.
        results: folder of the results.
        seed: seed of the searches.
        as_json: print JSON instead of a table.
        runs: the folder of the MLflow store that tracks the evaluation; None: it is not tracked.
        named: the policy, as the user named it.

    Raises:
        UnknownNameError: there is no such suite or search.
        ResultError: the results cannot be written.
    """
    names = tuple(PASS_SEARCHES) if searches is None else _check_searches(searches)
    programs = load_suite(",".join(suites)).programs
    check_writable(results)
    if runs is not None:
        check_store(runs)
    facts = provenance()
    with progress() as bar:
        task = bar.add_task("evaluating", total=len(programs))
        evaluation = evaluate_orders(
            programs, {"learned": policy}, budget, 5 * budget, facts, names, seed=seed,
            step=lambda name: bar.update(task, advance=1, description=name),
        )  # fmt: skip
    stem = fresh_stem(results, time.strftime("pass-order-%Y%m%d-%H%M%S"), ".json")
    write_text(results / f"{stem}.json", json.dumps(evaluation.to_json(), indent=1) + "\n")
    tables = [*summary_table(evaluation), "", *program_table(evaluation, [BASELINE, DEFAULT, "learned"])]
    write_text(results / f"{stem}.md", "\n".join(["# Pass orders", "", *markdown_facts(facts), "", *tables]) + "\n")
    if runs is not None:
        track_orders(evaluation, results / f"{stem}.json", named, programs, runs)
    if as_json:
        print(json.dumps(evaluation.to_json(), indent=2))
    else:
        print_summary(evaluation)
        stdout.print(f"results   {results / stem}.json", soft_wrap=True)
    return evaluation


def _check_searches(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in PASS_SEARCHES:
            raise UnknownNameError("search", name, PASS_SEARCHES)
    return tuple(names)
