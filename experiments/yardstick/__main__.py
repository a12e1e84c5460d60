"""The command line of the yardstick.

    python -m experiments.yardstick aa [--limit 200]           the default plan against itself
    python -m experiments.yardstick agreement [--limit 50]     the reward against end-to-end times

Each writes results/yardstick/NAME.md, and NAME.jsonl with one row per program, from which an interrupted run continues.
`python -m tests.sweeps.planted_gain` finds gains of a known size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from env.gate import PATIENCE
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.worker_process import WorkerProcess
from experiments.module_command import plain_errors
from experiments.yardstick.agreement import agreement_lines, agreement_row, agreement_table
from experiments.yardstick.races import aa_lines, race_row, race_table
from experiments.yardstick.rows import SUITES, Row, collect, drawn_programs, write_page

__all__ = ["Yardstick", "main"]

FOLDER = Path("results/yardstick")


class Yardstick:
    """The options that all commands share, and the run of one of them.

    Args:
        description: of the command line.
        names: of the commands.
    """

    def __init__(self, description: str, names: Sequence[str]) -> None:
        self.parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add = self.parser.add_argument
        add("command", choices=names)
        add("--suite", default=SUITES, help="comma-separated suites (default: %(default)s)")
        add("--limit", type=int, default=None, help="number of programs to measure (default: 200, or 50)")
        add("--repeats", type=int, default=1, help="races per program, each in a fresh process (default: %(default)s)")
        add("--plans", type=int, default=6, help="plans per program of agreement (default: %(default)s)")
        add("--rounds", type=int, default=25, help="ABBA blocks at most (default: %(default)s)")
        add("--seconds", type=float, default=0.5, help="time limit of the blocks (default: %(default)s)")
        add("--patience", type=int, default=PATIENCE, help="factor of both while undecided (default: %(default)s)")
        add("--timeout", type=float, default=20.0, help="seconds per program for each step (default: %(default)s)")
        add("--seed", type=int, default=0, help="seed of the draws (default: %(default)s)")
        add("--real-time", action="store_true", help="time programs at real-time priority")
        add("--out", type=Path, default=None, help="page to write (default: results/yardstick/COMMAND.md)")

    def options(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Return the options of a command line."""
        self.settings = self.parser.parse_args(arguments)
        if self.settings.limit is None:
            self.settings.limit = 50 if self.settings.command == "agreement" else 200
        return self.settings

    def measurer(self, worker: WorkerProcess | None = None) -> Measurer:
        """Return a measurer that races equal programs too."""
        o = self.settings
        options = MeasurerOptions(
            rounds=o.rounds, seconds=o.seconds, patience=o.patience, timeout=o.timeout, seed=o.seed, input_seeds=1,
            trust_builds=False, real_time=o.real_time,
        )  # fmt: skip
        return Measurer(PlanStore(":memory:"), options, worker)

    def run(
        self,
        title: str,
        row: Callable[..., Row],
        lines: Callable[[Sequence[Row]], list[str]],
        table: Callable[[Sequence[Row]], list[list[str]]],
        module: str,
    ) -> None:
        """Collect the rows of all programs, then write the page and print it."""
        o = self.settings
        out = o.out or FOLDER / f"{o.command}.md"
        named = {
            n: getattr(o, n) for n in ("suite", "repeats", "plans", "rounds", "seconds", "patience", "timeout", "seed")
        }
        programs = drawn_programs(o.suite, o.seed)
        given = " ".join(f"--{n} {v}" for n, v in {**named, "limit": o.limit}.items())
        given += " --real-time" if o.real_time else ""
        command, file = f"python -m {module} {o.command} {given}", out.with_suffix(".jsonl")
        rows = collect(file, {"command": o.command, **named}, programs, row, o.limit)
        sys.stdout.write(write_page(out, title, command, lines(rows), table(rows), file))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    yardstick = Yardstick(__doc__ or "", ("aa", "agreement"))
    o = yardstick.options(arguments)
    with yardstick.measurer() as measurer:
        if o.command == "aa":
            row = partial(race_row, measurer, repeats=o.repeats)
            lines = partial(aa_lines, gate=str(measurer.options.gate))
            yardstick.run("The default plan against itself", row, lines, race_table, "experiments.yardstick")
        else:
            row = partial(agreement_row, measurer, plans=o.plans, seed=o.seed, rounds=o.rounds)
            title = "Reward against end-to-end time"
            yardstick.run(title, row, agreement_lines, agreement_table, "experiments.yardstick")


if __name__ == "__main__":
    with plain_errors():
        main()
