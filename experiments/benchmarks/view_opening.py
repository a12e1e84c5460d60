"""How long the graph pages of programs take to open in a headless Chromium, and how large they are.

    python -m experiments.benchmarks.view_opening PROGRAM.hlo... [--rounds 5] [--out results/view]

The page of each program is made without building kernels and opened several times, each time from scratch. A page is
open when the graph is drawn. Then the slider is moved to the middle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks.headless import Chromium
from experiments.decisions import decided_session
from experiments.inputs import program_of
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.view import graph_page, read_program

LIMIT = 3.0
"""Seconds in which a page is meant to open."""


@dataclass(frozen=True)
class Opening:
    """The times of one page.

    Attributes:
        instructions: of the program as it was given.
        fusions: decisions on the slider.
        made: seconds that making the page took.
        size: bytes of the page.
        opened: seconds of each opening.
        stepped: seconds to move the slider to the middle.
    """

    name: str
    instructions: int
    fusions: int
    made: float
    size: int
    opened: tuple[float, ...]
    stepped: float


def measure(name: str, rounds: int, folder: Path, pictures: Path | None) -> Opening:
    """Make the page of a program and open it `rounds` times."""
    module = read_program(program_of(name))
    start = time.perf_counter()
    plan = decided_session(module, "cpu", None, None).plan
    page = graph_page(module, plan)
    made = time.perf_counter() - start
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    opened = []
    for _ in range(rounds):
        with Chromium() as browser:
            opened.append(browser.open(path))
            begin = time.perf_counter()
            browser.evaluate(f"View.app.moveTo({len(plan.steps) // 2}).then(() => 0)")
            stepped = time.perf_counter() - begin
            if pictures is not None:
                browser.picture(pictures / f"{Path(name).stem}.png")
    instructions = sum(len(c) for c in module.computations)
    return Opening(Path(name).stem, instructions, len(plan.steps), made, len(page), tuple(opened), stepped)


def table(rows: Sequence[Opening], rounds: int) -> str:
    """Return the report in Markdown."""
    about = provenance()
    lines = [
        "# Opening the graph page",
        "",
        f"- command: `python -m experiments.benchmarks.view_opening {' '.join(f'{r.name}.hlo' for r in rows)}`",
        *(f"- {key}: {about[key]}" for key in ("commit", "date", "machine")),
        "",
        f"Seconds from the navigation to the drawn graph in a headless Chromium that was just started, in {rounds} "
        f"rounds; at most {LIMIT:g} s are wanted. `step`: move the slider to the middle of the decisions and draw. "
        "`made`: all decisions, their replay and the reasons, in Python.",
        "",
        "| program | instructions | fusions | page MB | open: median | worst | step | made |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        median, worst = statistics.median(r.opened), max(r.opened)
        mark = "" if worst < LIMIT else " (slow)"
        lines.append(
            f"| {r.name} | {r.instructions:,} | {r.fusions:,} | {r.size / 1e6:.1f} | {median:.2f} | {worst:.2f}{mark} "
            f"| {r.stepped:.2f} | {r.made:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the pages of programs and print or write the table; return 1 if one opens too slowly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder of opening.md")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each page")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory(prefix="hlogym-view-") as folder:
        for name in options.programs:
            rows.append(measure(name, options.rounds, Path(folder), options.pictures))
            print(rows[-1], flush=True)
    text = table(rows, options.rounds)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "opening.md").write_text(text, encoding="utf-8")
    return int(any(max(r.opened) >= LIMIT for r in rows))


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
