"""Comparison of learned pass orders with fixed orders and searches, by op count and optionally by measured time.

All contenders choose from the same passes. One application of a pass is one sweep over the module and counts towards
the contender's budget.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.pass_search import PASS_SEARCHES, FoundOrder, search_order
from compiler.errors import UnknownNameError
from compiler.fusion.policies import make_policy
from compiler.ir import HloModule
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_order import LearnedPassOrder
from compiler.learned.pass_states import PassGraph, PassState, default_pass_actions
from compiler.passes import PassPipeline
from compiler.passes.infrastructure.base import op_count
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.completion import complete, run_aside
from compiler.passes.pipelines.default import XLA_ORDER, default_pipeline
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.support.json_reading import read_object
from compiler.support.safe_names import markdown_cell
from compiler.text import parse
from env.episode import COMPLETION_POLICY
from env.measurement import Measurer
from env.statistics import Interval, geometric_mean
from env.suites import Program, load_suite
from experiments.console import progress, stdout
from experiments.provenance import provenance
from experiments.results import (
    ResultError,
    check_writable,
    checked,
    fresh_stem,
    markdown_facts,
    positive,
    write_text,
)

__all__ = ["BASELINE", "DEFAULT", "OrderEvaluation", "compare_orders", "evaluate_orders", "evaluate_pass_order"]

BASELINE = "XLA's order, once"
LEAN = "XLA's order, once, without unrolling and splitting"
DEFAULT = "our default, fixed point"
COMPLETION_ONLY = "the default where it leaves fewer ops, alone"
_EXPANDING = ("while-loop-unroller", "state-splitting")


@dataclass(frozen=True)
class Contender:
    """The result of one contender on one program.

    Attributes:
        ops: op count after its passes.
        applications: passes applied during the search, whether they changed the module or not.
        completion: passes that the default pipeline applied afterwards.
        passes: the passes of the order that was found.
        seconds: time per call, end to end; None if not measured.
    """

    ops: int
    applications: int
    completion: int = 0
    passes: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class OrderRow:
    """The results of all contenders on one program.

    Attributes:
        program: name of the program.
        suite: its suite.
        split: its split within the suite.
        seen: whether a policy was trained on it.
        written: op count before any pass.
        contenders: results by contender.
        speedups: measured speedup over BASELINE, by contender.
        noise: measured speedup of BASELINE over itself; None if not measured.
        failure: why nothing was measured; empty if it was, or was not requested.
    """

    program: str
    suite: str
    split: str
    seen: bool
    written: int
    contenders: Mapping[str, Contender]
    speedups: Mapping[str, Interval] = field(default_factory=dict)
    noise: Interval | None = None
    failure: str = ""


@dataclass(frozen=True)
class OrderEvaluation:
    """The results on all programs, with the budgets and the provenance of the numbers."""

    budget: int
    search_budget: int
    rows: tuple[OrderRow, ...]
    provenance: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The names of the contenders, in the order in which they ran."""
        return list(self.rows[0].contenders) if self.rows else []

    def ratio(self, name: str, reference: str) -> Interval:
        """Return the geometric mean of op counts divided by those of another contender; zero ops count as one."""
        return geometric_mean([max(r.contenders[name].ops, 1) / max(r.contenders[reference].ops, 1) for r in self.rows])

    def worse(self, name: str, reference: str) -> list[str]:
        """Return the programs on which a contender leaves more ops than another one."""
        return [r.program for r in self.rows if r.contenders[name].ops > r.contenders[reference].ops]

    def speedup(self, name: str) -> Interval | None:
        """Return the geometric mean of measured speedups over BASELINE, or None if nothing was measured."""
        found = [r.speedups[name].value for r in self.rows if name in r.speedups]
        return geometric_mean(found) if found else None

    @staticmethod
    def read(path: Path) -> OrderEvaluation:
        """Read an evaluation from a results file.

        Raises:
            ResultError: the file cannot be read or is not an evaluation of pass orders.
        """
        data = read_object(path, ResultError, finite=False)
        try:
            rows = tuple(_row(checked(r, dict)) for r in checked(data["rows"], list))
            wanted = {BASELINE, DEFAULT, *(rows[0].contenders if rows else ())}
            for row in rows:
                if row.contenders.keys() != wanted:
                    raise ValueError(f"{row.program} has other contenders than the rest")
            budgets = checked(data["budget"], int), checked(data["search_budget"], int)
            return OrderEvaluation(*budgets, rows, checked(data["provenance"], dict))
        except KeyError as error:
            raise ResultError(f"{path} is not an evaluation of pass orders: {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise ResultError(f"{path} is not an evaluation of pass orders: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `read` reads."""
        return {
            "budget": self.budget,
            "search_budget": self.search_budget,
            "provenance": dict(self.provenance),
            "rows": [asdict(r) for r in self.rows],
        }


def _row(data: Mapping[str, Any]) -> OrderRow:
    def interval(bounds: Mapping[str, float | None]) -> Interval:
        return Interval.from_json([bounds["value"], bounds["low"], bounds["high"]])

    return OrderRow(
        program=checked(data["program"], str),
        suite=checked(data["suite"], str),
        split=checked(data["split"], str),
        seen=checked(data["seen"], bool),
        written=checked(data["written"], int),
        contenders={n: _read_contender(checked(c, dict)) for n, c in checked(data["contenders"], dict).items()},
        speedups={n: positive(interval(checked(s, dict))) for n, s in checked(data["speedups"], dict).items()},
        noise=None if data["noise"] is None else interval(checked(data["noise"], dict)),
        failure=checked(data["failure"], str),
    )


def _read_contender(data: Mapping[str, Any]) -> Contender:
    seconds = data["seconds"]
    return Contender(
        ops=checked(data["ops"], int),
        applications=checked(data["applications"], int),
        completion=checked(data["completion"], int),
        passes=tuple(checked(p, str) for p in checked(data["passes"], list)),
        seconds=None if seconds is None else float(seconds),
    )


def compare_orders(
    program: Program,
    policies: Mapping[str, LearnedPassOrder],
    budget: int,
    search_budget: int,
    searches: Sequence[str] = tuple(PASS_SEARCHES),
    seed: int = 0,
) -> OrderRow:
    """Return the op counts of all contenders on one program.

    Args:
        program: the program; the result records whether a policy was trained on it.
        policies: learned pass orders by name.
        budget: pass applications for each policy and each search.
        search_budget: pass applications for a second run of each search, and for sampling from each policy.
        searches: names in PASS_SEARCHES.
        seed: seed of the searches and of sampling.
    """
    module = parse(program.text(), filename=str(program.path))
    found = {
        BASELINE: _fixed(module, _once(XLA_ORDER)),
        LEAN: _fixed(module, _once([t for t in XLA_ORDER if not t.startswith(_EXPANDING)])),
        DEFAULT: _fixed(module, default_pipeline()),
        COMPLETION_ONLY: _completed((), FoundOrder((), PassGraph(module, ()).root, 0)),
    }
    for name, policy in policies.items():
        first = policy.follow(PassGraph(module, policy.actions), limit=budget)
        stopped = replace(policy, finish=0).follow(PassGraph(module, policy.actions), limit=budget)
        drawn = sample(policy, module, search_budget, seed)
        found[name] = _completed(policy.actions, _found(first, len(first.taken)))
        found[f"{name}, alone"] = _contender(policy.actions, _found(first, len(first.taken)))
        found[f"{name}, alone until its stop"] = _contender(policy.actions, _found(stopped, len(stopped.taken)))
        found[f"{name}, sampled ({search_budget})"] = _completed(policy.actions, drawn)
    actions = next(iter(policies.values())).actions if policies else default_pass_actions()
    for name in searches:
        for limit in dict.fromkeys((budget, search_budget)):
            best = search_order(name, module, actions, _ops, limit, seed)
            found[f"{name} ({limit})"] = _completed(actions, best)
    learned_on = {name for p in policies.values() for name in p.provenance.get("programs", ())}
    return OrderRow(program.name, program.suite, program.split, program.name in learned_on, op_count(module), found)


def _once(passes: Sequence[str]) -> PassPipeline:
    return PassPipeline("once", tuple(make_pass(f"{p}@1") for p in passes))


def _fixed(module: HloModule, pipeline: Any) -> Contender:
    """Run a fixed pipeline; each single pass that it runs counts as one application."""
    made = run_aside(module, pipeline)
    return Contender(made.ops, made.applications, passes=tuple(made.passes))


def _contender(actions: tuple[str, ...], found: FoundOrder) -> Contender:
    return Contender(found.state.ops, found.applications, passes=tuple(actions[a] for a in found.actions))


def _completed(actions: tuple[str, ...], found: FoundOrder) -> Contender:
    """Return the contender after the default pipeline has run on its module, if that leaves fewer ops."""
    done, alone = complete(found.state.module, found.state.ops), _contender(actions, found)
    return Contender(done.ops, alone.applications, done.applications, (*alone.passes, *done.passes))


def _ops(state: PassState) -> float:
    return float(state.ops)


def sample(policy: LearnedPassOrder, module: HloModule, total: int, seed: int) -> FoundOrder:
    """Follow a policy greedily once, then sample orders from it until `total` passes ran; return the best order."""
    graph, rng = PassGraph(module, policy.actions), np.random.default_rng(seed)
    best = policy.follow(graph, limit=total)
    # A sampled order whose states are all known runs no pass, so the number of samples has its own limit.
    for _ in range(total // 10):
        if graph.runs >= total:
            break
        episode = policy.follow(graph, rng, limit=total - graph.runs)
        if episode.state.ops < best.state.ops:
            best = episode
    return _found(best, graph.runs)


def _found(episode: PassEpisode, applications: int) -> FoundOrder:
    return FoundOrder(tuple(episode.path), episode.state, applications)


def measure_orders(program: Program, row: OrderRow, names: Sequence[str], measurer: Measurer, rounds: int) -> OrderRow:
    """Measure the contenders' programs with default fusion, interleaved, after checking their outputs."""
    module = parse(program.text(), filename=str(program.path))
    plans = {name: _plan(module, row.contenders[name].passes) for name in names}
    try:
        compared = measurer.compare(program, {**plans, "again": plans[BASELINE]}, rounds)
    except Exception as error:  # the evaluation continues with the other programs
        return replace(row, failure=f"{type(error).__name__}: {error}")
    if BASELINE not in compared.samples:
        return replace(row, failure=str(next(iter(compared.failures.values()), "not measured")).splitlines()[0])
    speedups = {n: compared.speedup(n, BASELINE) for n in names if n in compared.samples}
    noise = compared.speedup("again", BASELINE) if "again" in compared.samples else None
    return replace(row, speedups=speedups, noise=noise)


def _plan(module: HloModule, passes: Sequence[str]) -> CompilationPlan:
    session = CompilationSession(module)
    session.run_passes(PassPipeline("order", tuple(make_pass(t) for t in passes)))
    session.run_fusion_policy(make_policy(COMPLETION_POLICY))
    return session.plan


def evaluate_orders(
    programs: Sequence[Program],
    policies: Mapping[str, LearnedPassOrder],
    budget: int,
    search_budget: int,
    provenance: Mapping[str, Any],
    searches: Sequence[str] = tuple(PASS_SEARCHES),
    measurer: Measurer | None = None,
    rounds: int = 15,
    seed: int = 0,
    step: Callable[[str], None] = lambda _: None,
) -> OrderEvaluation:
    """Evaluate all contenders on all programs.

    With a measurer, the fixed orders, the policies and the random search with `budget` applications are also timed.

    Args:
        programs: the programs to evaluate on.
        policies: learned pass orders by name.
        budget: see `compare_orders`.
        search_budget: see `compare_orders`.
        provenance: stored with the results.
        searches: names in PASS_SEARCHES.
        measurer: measures times; None: only op counts are compared.
        rounds: the number of interleaved timings.
        seed: seed of the searches and of sampling.
        step: called with the name of each program before it is evaluated.
    """
    rows = []
    for program in programs:
        step(program.name)
        row = compare_orders(program, policies, budget, search_budget, searches, seed)
        if measurer is not None:
            names = [BASELINE, LEAN, DEFAULT, *policies, *(f"{s} ({budget})" for s in searches if s == "random")]
            row = measure_orders(program, row, names, measurer, rounds)
        rows.append(row)
    return OrderEvaluation(budget, search_budget, tuple(rows), provenance)


SUMMARY_HEADER = (
    "contender", "ops / XLA's order once", "fewer ops", "ops / default", "worse than default", "passes applied",
    "completion passes", "speedup over XLA's order once",
)  # fmt: skip


def summary_rows(evaluation: OrderEvaluation) -> list[list[str]]:
    """Return one row per contender: geometric means with 95% intervals, and median numbers of applied passes."""
    rows = []
    for name in evaluation.names:
        once, default = evaluation.ratio(name, BASELINE), evaluation.ratio(name, DEFAULT)
        worse = evaluation.worse(name, DEFAULT)
        share = len(worse) / len(evaluation.rows)
        run, then = (
            float(np.median([getattr(r.contenders[name], n) for r in evaluation.rows]))
            for n in ("applications", "completion")
        )
        speed = evaluation.speedup(name)
        rows.append(
            [
                name, _interval(once), f"{1 - once.value:.1%}", _interval(default), f"{len(worse)} ({share:.1%})",
                f"{run:.0f}", f"{then:.0f}", "-" if speed is None else _interval(speed),
            ]
        )  # fmt: skip
    return rows


def summary_table(evaluation: OrderEvaluation) -> list[str]:
    """Return the lines of `summary_rows` as a Markdown table."""
    lines = [f"| {' | '.join(SUMMARY_HEADER)} |", "|---|---|---:|---|---:|---:|---:|---|"]
    return lines + [f"| {' | '.join(map(markdown_cell, row))} |" for row in summary_rows(evaluation)]


def _interval(value: Interval) -> str:
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def program_table(evaluation: OrderEvaluation, names: Sequence[str]) -> list[str]:
    """Return the lines of a Markdown table with one row per program."""
    header = " | ".join(map(markdown_cell, names))
    lines = [f"| program | written | {header} | time |", f"|---|---:|{'---:|' * len(names)}---|"]
    for r in evaluation.rows:
        times = ", ".join(f"{n}: {r.speedups[n].value:.2f}x" for n in names if n in r.speedups and n != BASELINE)
        counts = [str(r.contenders[n].ops) for n in names]
        cells = [r.program, str(r.written), *counts, times or r.failure[:60] or "-"]
        lines.append(f"| {' | '.join(map(markdown_cell, cells))} |")
    return lines


def evaluate_pass_order(
    policy: LearnedPassOrder,
    suites: Sequence[str],
    searches: Sequence[str] | None,
    budget: int,
    results: Path,
    seed: int,
    as_json: bool,
) -> OrderEvaluation:
    """Run `hlogym evaluate` for a pass order: compare op counts, print a table and write the results.

    Raises:
        UnknownNameError: there is no such suite or search.
        ResultError: the results cannot be written.
    """
    names = tuple(PASS_SEARCHES) if searches is None else check_searches(searches)
    programs = load_suite(",".join(suites)).programs
    check_writable(results)
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
    if as_json:
        print(json.dumps(evaluation.to_json(), indent=2))
    else:
        _print(evaluation)
        stdout.print(f"results   {results / stem}.json", soft_wrap=True)
    return evaluation


def _print(evaluation: OrderEvaluation) -> None:
    from rich.table import Table

    held_out = sum(not r.seen for r in evaluation.rows)
    title = f"Op counts on {len(evaluation.rows)} programs, {held_out} of them not seen in training"
    table = Table(
        "contender", "ops / XLA's order once", "ops / default", "worse than default", "passes applied", title=title
    )
    for name in evaluation.names:
        table.add_row(
            name, _interval(evaluation.ratio(name, BASELINE)), _interval(evaluation.ratio(name, DEFAULT)),
            str(len(evaluation.worse(name, DEFAULT))),
            f"{math.floor(np.median([r.contenders[name].applications for r in evaluation.rows]))}",
        )  # fmt: skip
    stdout.print(table)


def check_searches(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple.

    Raises:
        UnknownNameError: there is no search of one of the names.
    """
    for name in names:
        if name not in PASS_SEARCHES:
            raise UnknownNameError("search", name, PASS_SEARCHES)
    return tuple(names)
