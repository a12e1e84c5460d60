"""Learned pass orders against fixed ones and searches, on programs they have not seen: op counts, then measured time.

Every contender chooses from the same passes, one sweep an application, and pays for its applications.
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
from compiler.passes.pipelines.completion import complete, run_on_copy
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
NOTHING = "the default where it leaves fewer ops, alone"
_EXPANDING = ("while-loop-unroller", "state-splitting")


@dataclass(frozen=True)
class Contender:
    """What one contender made of a program.

    Attributes:
        ops: after its passes.
        applications: passes it ran to find that, whether they changed anything or not.
        completion: passes that the default pipeline ran after them.
        passes: those that lead there.
        seconds: of a call, end to end; None when not measured.
    """

    ops: int
    applications: int
    completion: int = 0
    passes: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class OrderRow:
    """A program: op count as written, contenders by name, ratios of time over BASELINE by name."""

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
    """All programs, with the budgets they were given and where the figures come from."""

    budget: int
    search_budget: int
    rows: tuple[OrderRow, ...]
    provenance: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Contenders, in the order they were asked."""
        return list(self.rows[0].contenders) if self.rows else []

    def ratio(self, name: str, reference: str) -> Interval:
        """Geometric mean of op counts over those of another contender; a count of none is taken as one."""
        return geometric_mean([max(r.contenders[name].ops, 1) / max(r.contenders[reference].ops, 1) for r in self.rows])

    def worse(self, name: str, reference: str) -> list[str]:
        """Programs on which a contender leaves more ops than another."""
        return [r.program for r in self.rows if r.contenders[name].ops > r.contenders[reference].ops]

    def speedup(self, name: str) -> Interval | None:
        """Geometric mean of measured speedups over BASELINE; None when nothing was measured."""
        found = [r.speedups[name].value for r in self.rows if name in r.speedups]
        return geometric_mean(found) if found else None

    @staticmethod
    def read(path: Path) -> OrderEvaluation:
        """From a results file.

        Raises:
            ResultError: it cannot be read.
        """
        told = read_object(path, ResultError, finite=False)
        try:
            rows = tuple(_row(checked(r, dict)) for r in checked(told["rows"], list))
            wanted = {BASELINE, DEFAULT, *(rows[0].contenders if rows else ())}
            for row in rows:
                if row.contenders.keys() != wanted:
                    raise ValueError(f"{row.program} has other contenders than the rest")
            budgets = checked(told["budget"], int), checked(told["search_budget"], int)
            return OrderEvaluation(*budgets, rows, checked(told["provenance"], dict))
        except KeyError as error:
            raise ResultError(f"{path} is no evaluation of pass orders: {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise ResultError(f"{path} is no evaluation of pass orders: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """As a results file holds it."""
        return {
            "budget": self.budget,
            "search_budget": self.search_budget,
            "provenance": dict(self.provenance),
            "rows": [asdict(r) for r in self.rows],
        }


def _row(told: Mapping[str, Any]) -> OrderRow:
    def interval(bounds: Mapping[str, float | None]) -> Interval:
        return Interval.from_json([bounds["value"], bounds["low"], bounds["high"]])

    return OrderRow(
        program=checked(told["program"], str),
        suite=checked(told["suite"], str),
        split=checked(told["split"], str),
        seen=checked(told["seen"], bool),
        written=checked(told["written"], int),
        contenders={n: _read_contender(checked(c, dict)) for n, c in checked(told["contenders"], dict).items()},
        speedups={n: positive(interval(checked(s, dict))) for n, s in checked(told["speedups"], dict).items()},
        noise=None if told["noise"] is None else interval(checked(told["noise"], dict)),
        failure=checked(told["failure"], str),
    )


def _read_contender(told: Mapping[str, Any]) -> Contender:
    seconds = told["seconds"]
    return Contender(
        ops=checked(told["ops"], int),
        applications=checked(told["applications"], int),
        completion=checked(told["completion"], int),
        passes=tuple(checked(p, str) for p in checked(told["passes"], list)),
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
    """Op counts of every contender on one program.

    Args:
        program: held out from the policies, or not: the row says so.
        policies: by name.
        budget: applications that a policy and each search have.
        search_budget: applications that each search has beside, and a policy that is sampled from.
        searches: names in PASS_SEARCHES.
        seed: of the searches.
    """
    module = parse(program.text(), filename=str(program.path))
    found = {
        BASELINE: _fixed(module, _once(XLA_ORDER)),
        LEAN: _fixed(module, _once([t for t in XLA_ORDER if not t.startswith(_EXPANDING)])),
        DEFAULT: _fixed(module, default_pipeline()),
        NOTHING: _completed((), FoundOrder((), PassGraph(module, ()).root, 0)),
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


def _once(texts: Sequence[str]) -> PassPipeline:
    return PassPipeline("once", tuple(make_pass(f"{t}@1") for t in texts))


def _fixed(module: HloModule, pipeline: Any) -> Contender:
    """A pipeline; its applications are those of single passes."""
    made = run_on_copy(module, pipeline)
    return Contender(made.ops, made.applications, passes=tuple(made.passes))


def _contender(actions: tuple[str, ...], found: FoundOrder) -> Contender:
    return Contender(found.state.ops, found.applications, passes=tuple(actions[a] for a in found.actions))


def _completed(actions: tuple[str, ...], found: FoundOrder) -> Contender:
    """The same, and then what the default pipeline finds, where that leaves fewer ops."""
    done, alone = complete(found.state.module, found.state.ops), _contender(actions, found)
    return Contender(done.ops, alone.applications, done.applications, (*alone.passes, *done.passes))


def _ops(state: PassState) -> float:
    return float(state.ops)


def sample(policy: LearnedPassOrder, module: HloModule, total: int, seed: int) -> FoundOrder:
    """The best of what a policy does when it is followed once and then drawn from until the applications are spent."""
    graph, rng = PassGraph(module, policy.actions), np.random.default_rng(seed)
    best = policy.follow(graph, limit=total)
    # Draws that only repeat what is known cost nothing, so their number has a limit of its own.
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
    """Time the programs that contenders made, fused by default, in turns; outputs are checked first."""
    module = parse(program.text(), filename=str(program.path))
    plans = {name: _plan(module, row.contenders[name].passes) for name in names}
    try:
        compared = measurer.compare(program, {**plans, "again": plans[BASELINE]}, rounds)
    except Exception as error:  # one program that cannot be measured does not end an evaluation
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
    """All contenders on all programs; with a measurer, times too, of those that search no more than a policy does."""
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
    "contender", "ops / XLA's order once", "fewer", "ops / our default", "worse than it", "passes run", "then",
    "speed / XLA's order once",
)  # fmt: skip


def summary_rows(evaluation: OrderEvaluation) -> list[list[str]]:
    """A row a contender; geometric means with their 95% intervals, and the median of applications."""
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
    """`summary_rows` in Markdown."""
    lines = [f"| {' | '.join(SUMMARY_HEADER)} |", "|---|---|---:|---|---:|---:|---:|---|"]
    return lines + [f"| {' | '.join(map(markdown_cell, row))} |" for row in summary_rows(evaluation)]


def _interval(value: Interval) -> str:
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def program_table(evaluation: OrderEvaluation, names: Sequence[str]) -> list[str]:
    """Markdown: a line a program."""
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
    """`hlogym evaluate` of a pass order: op counts at so many applications; prints and writes a table.

    Raises:
        UnknownNameError: no such suite or search. ResultError: the results cannot be written.
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
    table = Table("contender", "ops / XLA's order once", "ops / our default", "worse", "passes run", title=title)
    for name in evaluation.names:
        table.add_row(
            name, _interval(evaluation.ratio(name, BASELINE)), _interval(evaluation.ratio(name, DEFAULT)),
            str(len(evaluation.worse(name, DEFAULT))),
            f"{math.floor(np.median([r.contenders[name].applications for r in evaluation.rows]))}",
        )  # fmt: skip
    stdout.print(table)


def check_searches(names: Sequence[str]) -> tuple[str, ...]:
    """The searches of those names.

    Raises:
        UnknownNameError: no such search.
    """
    for name in names:
        if name not in PASS_SEARCHES:
            raise UnknownNameError("search", name, PASS_SEARCHES)
    return tuple(names)
