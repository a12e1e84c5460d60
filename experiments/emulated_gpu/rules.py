"""The rules of the backend beside the former ones, by predicted time on training programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from env.suites import Program
from experiments.emulated_gpu.comparison import RESHAPES_FIRST, RULES, UNROLLED, Starts, Times, speedups
from experiments.emulated_gpu.mapping import drawn
from experiments.emulated_gpu.settings import EmulatedSettings
from experiments.yardstick.rows import Row, collect, write_page

__all__ = ["COMPARED", "compare_rules"]

COMPARED = (RULES[1], RESHAPES_FIRST, UNROLLED, RULES[0])
"""The former rules, either change alone, and both, which are the rules."""
LARGEST = 200_000
"""Programs with more characters of text are left out; each is compiled four times."""


def compare_rules(settings: EmulatedSettings, per_family: int, out: Path, command: str) -> None:
    """Predict the times of training programs by the former rules and by the changes, and write a page and its rows.

    Args:
        settings: for the suite and the backend.
        per_family: number of programs of each family at most.
        out: the page; the rows are beside it, and an interrupted run continues from them.
        command: as the page names it.

    Raises:
        ManifestError: the suite has programs held out for tests.
        ResultError: the rows were written with other settings.
    """
    programs = [p for p in drawn(settings.train, per_family) if len(p.text()) <= LARGEST]
    used = {"backend": settings.backend, "suite": settings.train, "per_family": per_family}
    rows = collect(out.with_suffix(".jsonl"), used, programs, lambda p: _row(p, settings.backend), len(programs))
    times = [_times(r) for r in rows if r.get("seconds")]
    lines = [
        f"Predicted time of the kernels on the model of a GPU, {len(times)} training programs of "
        f"{len({t.family for t in times})} families; {len(rows) - len(times)} others take no time or cannot be "
        "compiled. The former rules run a loop inside one kernel or keep it, and fuse by the policy `default`. "
        "*Reshapes first*: they fuse by `reshapes,default,readers`. *Loops unrolled*: loops that have no kernel are "
        "unrolled by up to 8. The *rules* do both. Means are geometric, with 95% intervals over programs.",
        "",
        "Slower with the rules: " + (", ".join(_slower(times)) or "none") + ".",
    ]
    write_page(out, "Rules for a GPU by predicted time", command, lines, _table(times))


def _row(program: Program, backend: str) -> Row:
    starts = Starts(program, backend)
    times = Times(program.name, program.family or program.name, {}, {})
    times.seconds.update({name: starts.of_rules(name) for name in COMPARED})
    row = asdict(times)
    return row if all(times.seconds.values()) else {**row, "seconds": {}}


def _times(row: Row) -> Times:
    return Times(row["program"], row["family"], row["seconds"], {})


def _slower(times: Sequence[Times]) -> list[str]:
    ratios = {t.program: t.seconds[RULES[1]] / t.seconds[RULES[0]] for t in times}
    return [f"{name} {r:.2f}x" for name, r in sorted(ratios.items(), key=lambda x: x[1]) if r < 0.99]


def _table(times: Sequence[Times]) -> list[list[str]]:
    rows = [["rules", "over the former rules", "median", "worst", "best", "slower by 1%", "faster by 1%"]]
    for name in COMPARED[1:]:
        s = speedups(times, name, RULES[1])
        mean = f"{s.mean.value:.3f}x [{s.mean.low:.3f}, {s.mean.high:.3f}]"
        shares = [f"{s.slower:.1%}", f"{s.faster:.1%}"]
        rows.append([name, mean, f"{s.median.value:.3f}x", f"{s.worst:.2f}x", f"{s.best:.2f}x", *shares])
    return rows
