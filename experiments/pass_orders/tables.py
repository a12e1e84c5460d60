"""Tables of an evaluation of pass orders, in Markdown and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.support.safe_names import markdown_cell
from env.statistics import Interval
from experiments.console import bounds, stdout
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, OrderEvaluation

__all__ = ["SUMMARY_HEADER", "print_summary", "program_table", "summary_rows", "summary_table"]

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
        applied, completion = (
            float(np.median([getattr(r.contenders[name], n) for r in evaluation.rows]))
            for n in ("applications", "completion")
        )
        speed = evaluation.speedup(name)
        rows.append(
            [
                name, _interval(once), f"{1 - once.value:.1%}", _interval(default), f"{len(worse)} ({share:.1%})",
                f"{applied:.0f}", f"{completion:.0f}", "-" if speed is None else _interval(speed),
            ]
        )  # fmt: skip
    return rows


def summary_table(evaluation: OrderEvaluation) -> list[str]:
    """Return the lines of `summary_rows` as a Markdown table."""
    lines = [f"| {' | '.join(SUMMARY_HEADER)} |", "|---|---|---:|---|---:|---:|---:|---|"]
    return lines + [f"| {' | '.join(map(markdown_cell, row))} |" for row in summary_rows(evaluation)]


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


def print_summary(evaluation: OrderEvaluation) -> None:
    """Print one row per contender to the terminal."""
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


def _interval(value: Interval) -> str:
    return f"{value.value:.3f} {bounds(value, digits=3)}".rstrip()
