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
from experiments.answer import give_answer, print_fields
from experiments.console import progress
from experiments.evaluation_tracking import track_orders
from experiments.interruption import keeping
from experiments.mlflow_store import check_store
from experiments.pass_orders.contenders import compare_orders
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, OrderEvaluation, OrderRow
from experiments.pass_orders.tables import print_summary, program_table, summary_table
from experiments.provenance import provenance
from experiments.results import check_output, check_writable, fresh_stem, markdown_facts, write_text

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
    output: Path | None = None,
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
        output: file that receives the results too: Markdown if it ends in .md, else JSON.

    Raises:
        UnknownNameError: there is no such suite or search.
        ResultError: the results cannot be written.
    """
    names = tuple(PASS_SEARCHES) if searches is None else _check_searches(searches)
    programs = load_suite(",".join(suites)).programs
    check_writable(results)
    if output is not None:
        check_output(output)
    if runs is not None:
        check_store(runs)
    facts = provenance()
    with progress() as bar:
        task = bar.add_task("evaluating", total=len(programs))
        done: list[OrderRow] = []

        def so_far() -> OrderEvaluation:
            return OrderEvaluation(budget, 5 * budget, tuple(done), facts)

        with keeping(lambda: _keep(so_far(), len(programs), results)):
            for program in programs:
                bar.update(task, description=program.name)
                done.append(compare_orders(program, {"learned": policy}, budget, 5 * budget, names, seed))
                share = so_far().ratio("learned", DEFAULT).value
                bar.update(task, advance=1, so_far=f"{share:.3f} of the default's ops")
    evaluation = so_far()
    file = _write(evaluation, results)
    if output is not None:
        write_text(output, (file.with_suffix(".md") if output.suffix == ".md" else file).read_text(encoding="utf-8"))
    if runs is not None:
        track_orders(evaluation, file, named, programs, runs)

    def show() -> None:
        print_summary(evaluation)
        print_fields({"results": file})

    give_answer({**evaluation.to_json(), "file": str(file)}, show, as_json)
    return evaluation


def _keep(evaluation: OrderEvaluation, number: int, results: Path) -> str:
    """Write the programs that an interrupted evaluation has compared; return what was written."""
    if not evaluation.rows:
        return "no program was compared, so nothing was written"
    return f"{len(evaluation.rows)} of {number} programs were compared; results {_write(evaluation, results)}"


def _write(evaluation: OrderEvaluation, results: Path) -> Path:
    """Write an evaluation as JSON and as a Markdown table; return the path of the JSON file."""
    stem = fresh_stem(results, time.strftime("pass-order-%Y%m%d-%H%M%S"), ".json")
    write_text(results / f"{stem}.json", json.dumps(evaluation.to_json(), indent=1) + "\n")
    tables = [*summary_table(evaluation), "", *program_table(evaluation, [BASELINE, DEFAULT, "learned"])]
    facts = markdown_facts(evaluation.provenance)
    write_text(results / f"{stem}.md", "\n".join(["# Pass orders", "", *facts, "", *tables]) + "\n")
    return results / f"{stem}.json"


def _check_searches(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in PASS_SEARCHES:
            raise UnknownNameError("search", name, PASS_SEARCHES)
    return tuple(names)
