"""The first entries of the leaderboard: the rules, the policy that ships, and plans that a search has found.

    python -m experiments.leaderboard.ours [--suite train] [--budget 32] [--out results/leaderboard/entries]

Writes one folder per entry; `hlogym leaderboard verify` and `page` measure them and make the page. The search measures
`--budget` plans per program; a plan other than the default one is taken if its gain was confirmed in fresh processes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agents.deviations import Deviation, PlanBuilder
from agents.finalists import confirm
from agents.search_run import Budget, run_search
from agents.searches import make_search
from compiler.plan import CompilationPlan
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import ManifestError, Program, load_suite
from experiments.inputs import read_valid_module
from experiments.leaderboard.entry import EntryError
from experiments.leaderboard.writing import write_entry
from experiments.module_command import plain_errors

__all__ = ["main", "searched_plan", "write_ours"]

AUTHOR = "hlogym"


def searched_plan(measurer: Measurer, program: Program, search: str, budget: int, seed: int) -> CompilationPlan:
    """Return the plan that a search finds and confirms, or else the default plan.

    Raises:
        HlogymError: the program cannot be compiled or measured.
    """
    builder = PlanBuilder(read_valid_module(program), measurer.options.backend)
    run = run_search(make_search(search, seed), builder, program, measurer, Budget(budget))
    best = confirm(measurer, program, run.finalists)
    return builder.build(Deviation()).plan if best is None else best.plan


def write_ours(folder: Path, suite: str, search: str, budget: int, seed: int, options: MeasurerOptions) -> list[Path]:
    """Write the entries into a folder; return their folders.

    Raises:
        ManifestError: the suite has programs held out for tests, on which nothing may be searched.
        EntryError: an entry exists already.
    """
    programs = load_suite(suite).programs
    if any(p.split == "test" for p in programs):
        raise ManifestError(f"{suite} has programs held out for tests, which must not guide a search")
    made = [folder / name for name in ("rules", "learned", "searched")]
    for path in made:
        if path.exists():
            raise EntryError(f"{path} exists; remove it to write it again")
    write_entry(
        made[0], "rules", AUTHOR, suite, "heuristic", "The hand-written rules in every phase: the default plan."
    )
    write_entry(made[1], "learned", AUTHOR, suite, "learned", "The policy that ships; the rules decide the rest.")
    plans = {}
    with Measurer(PlanStore(":memory:"), options) as measurer:
        for program in programs:
            plans[program.name] = searched_plan(measurer, program, search, budget, seed)
            print(f"{program.name}: {plans[program.name]!r}", file=sys.stderr)
    about = f"The search {search} with {budget} measurements per program; gains were confirmed in fresh processes."
    write_entry(made[2], "searched", AUTHOR, suite, plans, about)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="train", help="suite of the entries (default: %(default)s)")
    parser.add_argument("--search", default="local", help="search, as of `hlogym tune` (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=32, help="measurements per program (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="ABBA blocks at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="time limit of the blocks (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/leaderboard/entries"), help="folder of the entries")
    o = parser.parse_args(arguments)
    options = MeasurerOptions(rounds=o.rounds, seconds=o.seconds, seed=o.seed)
    for path in write_ours(o.out, o.suite, o.search, o.budget, o.seed, options):
        print(path)


if __name__ == "__main__":
    with plain_errors():
        main()
