"""The rows of `hlogym bench`: as a table for a terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.support.safe_names import markdown_cell
from env.statistics import Interval, geometric_mean
from experiments.console import duration, factor
from experiments.results import markdown_facts, markdown_table

__all__ = [
    "OURS",
    "SLOW",
    "Row",
    "bench_markdown",
    "bench_table",
    "cost_markdown",
    "cost_table",
    "rows_json",
    "summary",
]

OURS = "hlogym"
SLOW = 0.95
"""Ratio below which a program counts as slower than a peer."""


@dataclass(frozen=True)
class Row:
    """The timings of one program.

    Attributes:
        program: its name.
        seconds: time per call by contestant.
        ratios: time of each peer divided by hlogym's; above one, hlogym is faster.
        failures: the reason for each contestant that was not timed.
        unchecked: why comparing the outputs proves nothing; None if it does.
        fastest: time per call of the fastest sample by contestant, which other load on the machine disturbs least.
        first_result: seconds from the program to its first result by contestant, with compilation.
        peak_bytes: peak memory of a call with its arguments by contestant; None if it is not known.
    """

    program: str
    seconds: Mapping[str, Interval]
    ratios: Mapping[str, Interval]
    failures: Mapping[str, str]
    unchecked: str | None = None
    fastest: Mapping[str, float] = field(default_factory=dict)
    first_result: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The peer with the shortest time, or None if there is none."""
        return min(self.ratios, key=lambda n: self.ratios[n].value, default=None)

    @property
    def fastest_ratio(self) -> float | None:
        """The fastest sample of any peer divided by hlogym's fastest."""
        peers = [t for n, t in self.fastest.items() if n != OURS]
        return min(peers) / self.fastest[OURS] if peers and OURS in self.fastest else None


def bench_table(rows: Sequence[Row], against: Sequence[str]) -> list[list[str]]:
    """Return the table as rows of cells, the header first."""
    table = [["program", OURS, *against, *(["ratio", "95% interval"] if against else [])]]
    for row in rows:
        cells = [duration(row.seconds[n].value) if n in row.seconds else "-" for n in (OURS, *against)]
        if row.best is not None:
            ratio = row.ratios[row.best]
            cells += [f"{ratio.value:.2f}x", f"{ratio.low:.2f} to {ratio.high:.2f}"]
        table.append([row.program, *cells, *["-"] * (len(table[0]) - 1 - len(cells))])
    return table


def cost_table(rows: Sequence[Row], against: Sequence[str]) -> list[list[str]]:
    """Return the time to the first result and the peak memory of each contestant; the first row is the header."""
    names = (OURS, *against)
    table = [["program", *names, *(f"{n} MB" for n in names)]]
    for row in rows:
        times = [duration(row.first_result[n]) if n in row.first_result else "-" for n in names]
        sizes = [row.peak_bytes.get(n) for n in names]
        table.append([row.program, *times, *("-" if s is None else f"{s / 1e6:.1f}" for s in sizes)])
    for title, values in (
        ("geometric mean of the ratios: time", [r.first_result for r in rows]),
        ("geometric mean of the ratios: memory", [r.peak_bytes for r in rows]),
    ):
        cells = []
        for peer in against:
            pairs = [(v.get(peer), v.get(OURS)) for v in values]
            ratios = [theirs / ours for theirs, ours in pairs if theirs and ours]
            cells.append(f"{geometric_mean(ratios).value:.2f}x" if ratios else "-")
        table.append([title, "", *cells, *[""] * len(names)])
    return table


def summary(rows: Sequence[Row], against: Sequence[str]) -> list[str]:
    """Return the geometric mean against each peer and against the better one, and the number of slower programs."""
    lines = []
    for peer in against if len(rows) > 1 else ():
        ratios = [r.ratios[peer].value for r in rows if peer in r.ratios]
        if ratios:
            lines.append(f"geometric mean against {peer}: {factor(geometric_mean(ratios))}, {len(ratios)} programs")
    best = [r.ratios[r.best].value for r in rows if r.best is not None]
    if len(best) > 1:
        lines.append(f"geometric mean against the better peer: {factor(geometric_mean(best))}")
        lines.append(f"below {SLOW}x the better peer: {sum(b < SLOW for b in best)} of {len(best)} programs")
    fastest = [ratio for r in rows if (ratio := r.fastest_ratio) is not None]
    if len(fastest) > 1:
        mean, slow = factor(geometric_mean(fastest)), sum(f < SLOW for f in fastest)
        lines.append(f"of the fastest samples: {mean}, below {SLOW}x: {slow} programs")
    return lines


def bench_markdown(rows: Sequence[Row], against: Sequence[str], title: str, provenance: Mapping[str, Any]) -> str:
    """Return the table, slowest program first, as Markdown with its provenance."""
    ordered = sorted(rows, key=lambda r: r.ratios[r.best].value if r.best is not None else 0.0)
    header, *body = bench_table(ordered, against)
    header.append("fastest samples")
    for row, cells in zip(ordered, body, strict=True):
        cells.append("-" if row.fastest_ratio is None else f"{row.fastest_ratio:.2f}x")
    lines = [f"# {title}", "", *markdown_facts(provenance), ""]
    lines += [
        "Time per call around the Python call, medians of interleaved rounds. The ratio is the better peer's time"
    ]
    lines += ["divided by ours; the last column is the ratio of the fastest samples.", ""]
    lines += [f"- {line}" for line in summary(rows, against)]
    lines += ["", markdown_table([header, *body])]
    lines += [f"- {r.program}: {n} left out: {markdown_cell(why)}" for r in ordered for n, why in r.failures.items()]
    return "\n".join(lines).rstrip() + "\n"


def cost_markdown(rows: Sequence[Row], against: Sequence[str], title: str, provenance: Mapping[str, Any]) -> str:
    """Return the table of compile times and memory as Markdown with its provenance."""
    lines = [f"# {title}", "", *markdown_facts(provenance), ""]
    lines += [
        "Time from the program to its first result with empty caches, and peak memory of a call with its arguments.",
        "",
    ]
    return "\n".join([*lines, markdown_table(cost_table(rows, against))])


def rows_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as they are written to a file."""
    return [
        {
            "program": r.program,
            "seconds": {n: s.to_json() for n, s in r.seconds.items()},
            "ratios": {n: s.to_json() for n, s in r.ratios.items()},
            "better_peer": r.best,
            "failures": dict(r.failures),
            "unchecked": r.unchecked,
            "fastest": dict(r.fastest),
            "first_result": dict(r.first_result),
            "peak_bytes": dict(r.peak_bytes),
        }
        for r in rows
    ]
