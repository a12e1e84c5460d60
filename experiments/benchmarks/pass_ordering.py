"""Learned pass orders on held-out programs, beside fixed orders and searches; writes results/ and an MLflow run.

    python -m experiments.benchmarks.pass_ordering NAME=POLICY... [--suite jax/test,test] [--budget 300]
        [--search-budget 1500] [--measure] [--runs runs] [--out results/passes/ordering]

A policy is what `hlogym train --env hlogym/PassOrder-v0 --set reward=op-count` leaves in runs/NAME/policy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from compiler.learned.pass_order import LearnedPassOrder, load_pass_order
from compiler.support.safe_names import markdown_cell
from env.measurement import Measurer, MeasurerOptions
from env.store import KernelStore
from env.suites import load_suite
from experiments.console import error_console
from experiments.pass_orders.contenders import LEAN, evaluate_orders
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, OrderEvaluation
from experiments.pass_orders.tables import program_table, summary_table
from experiments.provenance import provenance
from experiments.results import write_text
from experiments.tracking import TrackedRun


def report(evaluation: OrderEvaluation, policies: dict[str, LearnedPassOrder], suite: str) -> str:
    """The page of results."""
    facts = evaluation.provenance
    first = next(iter(policies))
    learned = [
        f"- {name}: {p.provenance.get('timesteps'):,} steps on {p.provenance.get('suite')} "
        f"({len(p.provenance.get('programs', ()))} programs), seed {p.provenance.get('seed')}, "
        f"commit {p.provenance.get('commit')}"
        for name, p in policies.items()
    ]
    measured = sum(bool(r.speedups) for r in evaluation.rows)
    noise = [r.noise for r in evaluation.rows if r.noise is not None]
    lines = [
        "# Pass orders on held-out programs",
        "",
        f"- command: `{facts['command']}`",
        f"- commit: {facts['commit']}",
        f"- machine: {facts['machine']}",
        f"- date: {facts['date']}",
        f"- programs: the {len(evaluation.rows)} of {suite}; {sum(r.seen for r in evaluation.rows)} of them seen in "
        "training",
        *learned,
        "",
        f"Every contender chooses from the same {len(policies[first].actions)} passes, one sweep over the module an "
        f"application. A policy has {evaluation.budget} applications; searches have as many, and "
        f"{evaluation.search_budget} where it says so, as has a policy that is sampled from. Policies and searches "
        "hand over to the default pipeline, which is kept where it leaves fewer ops (its applications stand in the "
        "column behind); a policy alone does not. Ops are counted without "
        "parameters, constants and tuples, loop bodies and functions once each. Speed is that of whole calls after "
        "default fusion, in turns, outputs checked first. Ratios are geometric means over the programs with 95% "
        "intervals; passes run are a median.",
        "",
        *summary_table(evaluation),
        "",
    ]
    if measured:
        low = min(n.value for n in noise)
        high = max(n.value for n in noise)
        lines += [
            f"{measured} programs were measured; the same program against itself came out between {low:.2f}x and "
            f"{high:.2f}x. Op count is not time: what unrolling and splitting add in ops, they may save in time.",
            "",
        ]
    for name in policies:
        worse = evaluation.worse(name, DEFAULT)
        lines.append(markdown_cell(f"More ops than our default, {name}: {', '.join(worse) or 'none'}."))
    names = [BASELINE, LEAN, DEFAULT, *policies]
    return "\n".join([*lines, "", *program_table(evaluation, names)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", metavar="NAME=POLICY")
    parser.add_argument("--suite", default="jax/test,test")
    parser.add_argument("--budget", type=int, default=300)
    parser.add_argument("--search-budget", type=int, default=1500)
    parser.add_argument("--measure", action="store_true", help="time the programs too")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the MLflow store is")
    parser.add_argument("--out", type=Path, default=Path("results/passes/ordering"))
    options = parser.parse_args(arguments)
    pairs = [text.partition("=") for text in options.policies]
    policies = {name: load_pass_order(Path(folder)) for name, _, folder in pairs}
    programs = load_suite(options.suite).programs
    shown = [f"{name}=runs/{name}/policy" for name in policies]
    flags = [f"--suite {options.suite}", f"--budget {options.budget}", f"--search-budget {options.search_budget}"]
    flags += [f"--measure --rounds {options.rounds}"] if options.measure else []
    command = " ".join(["python -m experiments.benchmarks.pass_ordering", *shown, *flags])
    with contextlib.ExitStack() as stack:
        measurer = None
        if options.measure:
            measurer = stack.enter_context(Measurer(KernelStore(":memory:"), MeasurerOptions(rounds=options.rounds)))
        evaluation = evaluate_orders(
            programs, policies, options.budget, options.search_budget, {**provenance(), "command": command},
            measurer=measurer,
            rounds=options.rounds, step=lambda name: error_console.print(name),
        )  # fmt: skip
    text = report(evaluation, policies, options.suite)
    page, data = options.out.with_suffix(".md"), options.out.with_suffix(".json")
    write_text(page, text)
    write_text(data, json.dumps(evaluation.to_json(), separators=(",", ":")) + "\n")
    with TrackedRun(options.runs, "pass-orders-evaluation") as tracked:
        tracked.params({"suite": options.suite, "budget": options.budget, "search_budget": options.search_budget})
        tracked.tags(evaluation.provenance)
        for name in evaluation.names:
            speed = evaluation.speedup(name)
            tracked.metrics(
                {
                    f"ops over XLA once/{name}": evaluation.ratio(name, BASELINE).value,
                    f"ops over default/{name}": evaluation.ratio(name, DEFAULT).value,
                    f"worse than default/{name}": float(len(evaluation.worse(name, DEFAULT))),
                    **({} if speed is None else {f"speedup/{name}": speed.value}),
                },
                0,
            )
        tracked.artifacts(page, "tables")
    sys.stdout.write("\n".join(summary_table(evaluation)) + "\n")


if __name__ == "__main__":
    main()
