"""Measure kernels, train the cost model of kernels, and report how good it is.

Examples:
    python -m experiments.kernel_times collect --suite corpus/train,corpus/validation --out kernel_times.jsonl
    python -m experiments.kernel_times train kernel_times.jsonl --out cost_model
    python -m experiments.kernel_times report kernel_times.jsonl cost_model --out results/learning/cost_model.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from env.suites import load_suite
from experiments.console import stdout
from experiments.kernel_times.collect import CollectOptions, collect


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def _collect(o: argparse.Namespace) -> None:
    programs = load_suite(o.suite).programs
    options = CollectOptions(choices=o.choices, threads=_numbers(o.threads), seconds=o.seconds, seed=o.seed)
    for seen, kernels in collect(programs[: o.programs], o.out, options):
        stdout.print(f"{seen} programs, {kernels} kernels")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("collect", help="measure kernels of programs")
    add = command.add_argument
    add("--suite", default="corpus/train,corpus/validation", help="comma-separated suites (default: %(default)s)")
    add("--out", type=Path, required=True, help="dataset to write or to continue")
    add("--choices", type=int, default=8, help="choices per kernel (default: %(default)s)")
    add("--threads", default="1", help="comma-separated numbers of threads; more than 1 only on a quiet machine")
    add("--programs", type=int, default=None, help="number of programs (default: all)")
    add("--seconds", type=float, default=None, help="time limit (default: none)")
    add("--seed", type=int, default=0, help="seed of random fusions and choices (default: %(default)s)")
    command.set_defaults(run=_collect)
    o = parser.parse_args(arguments)
    o.run(o)


if __name__ == "__main__":
    main()
