"""Learned pass orders on held-out programs, compared with fixed orders and searches; writes results/ and an MLflow run.

    python -m experiments.benchmarks.pass_ordering NAME=POLICY... [--suite jax/test,test] [--budget 300]
        [--search-budget 1500] [--measure] [--runs runs] [--out results/passes/ordering]

`hlogym train --env hlogym/PassOrder-v0 --set reward=op-count` writes a policy to runs/NAME/policy.
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
from env.store import PlanStore
from env.suites import load_suite
from experiments.console import error_console
from experiments.module_command import plain_errors
from experiments.pass_orders.contenders import LEAN, evaluate_orders
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, OrderEvaluation
from experiments.pass_orders.tables import program_table, summary_table
from experiments.provenance import provenance
from experiments.results import write_text
from experiments.tracking import TrackedRun


def report(evaluation: OrderEvaluation, policies: dict[str, LearnedPassOrder], suite: str) -> str:
    """Return the results page in Markdown."""
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
        f"- programs: {len(evaluation.rows)} of {suite}; {sum(r.seen for r in evaluation.rows)} of them seen in "
        "training",
        *learned,
        "",
        f"All contenders choose from the same {len(policies[first].actions)} passes; one application of a pass is one "
        f"sweep over the module. A policy has {evaluation.budget} applications. Searches, and policies that are "
        "sampled from, have the number of applications given in parentheses. After a policy or a search, the default "
        'pipeline runs, and its result is used if it leaves fewer ops; the column "completion passes" counts its '
        'applications. It does not run after a policy that is marked "alone". Op counts exclude parameters, '
        "constants and tuples; loop bodies and functions count once each. Speedups are those of whole calls after "
        "default fusion, from interleaved timings, after checking the outputs. Ratios are geometric means over the "
        "programs with 95% intervals; numbers of passes are medians.",
        "",
        *summary_table(evaluation),
        "",
    ]
    if measured:
        low = min(n.value for n in noise)
        high = max(n.value for n in noise)
        lines += [
            f"{measured} programs were measured. The speedup of a program over itself was between {low:.2f}x and "
            f"{high:.2f}x. A lower op count does not imply a lower time: unrolling and splitting add ops and may save "
            "time.",
            "",
        ]
    for name in policies:
        worse = evaluation.worse(name, DEFAULT)
        lines.append(
            markdown_cell(f"Programs on which {name} leaves more ops than the default: {', '.join(worse) or 'none'}.")
        )
    names = [BASELINE, LEAN, DEFAULT, *policies]
    return "\n".join([*lines, "", *program_table(evaluation, names)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", metavar="NAME=POLICY", help="name and folder of a learned pass order")
    parser.add_argument("--suite", default="jax/test,test", help="comma-separated suites (default: %(default)s)")
    parser.add_argument(
        "--budget", type=int, default=300, help="pass applications of a policy or search (default: %(default)s)"
    )
    parser.add_argument(
        "--search-budget", type=int, default=1500,
        help="pass applications of the longer searches and of sampling (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--measure", action="store_true", help="also time the programs")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved timings (default: %(default)s)")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder of the local MLflow store (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/passes/ordering"),
        help="results file without suffix; .md and .json are written (default: %(default)s)",
    )  # fmt: skip
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
            measurer = stack.enter_context(Measurer(PlanStore(":memory:"), MeasurerOptions(rounds=options.rounds)))
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
    with plain_errors():
        main()
