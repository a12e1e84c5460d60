"""Races of a program against itself: unchanged (A/A), or with the default slowed by a known share (a planted gain)."""

from __future__ import annotations

from collections.abc import Sequence

from agents.search import Starts, find_plan
from compiler.fusion.policies import DEFAULT_POLICY
from env.measurement import Measurer
from env.suites import Program
from env.summaries import SpeedupSummary, summarise
from experiments.yardstick.rows import Row

__all__ = ["aa_lines", "planted_lines", "race_row", "race_table"]

LONG = 100e-6
"""Seconds from which a planted gain must be found."""


def race_row(measurer: Measurer, program: Program, repeats: int) -> Row:
    """Race the default plan, replayed from its record, against the default plan; each time in a fresh process.

    Raises:
        HlogymError: the program cannot be measured.
    """
    plan = find_plan(DEFAULT_POLICY, Starts(measurer.options.backend), program, measurer, 0).plan
    races = []
    for number in range(repeats):
        if number:
            measurer.restart()
        found = measurer.measure(program, plan, remeasure=True)
        if found.verdict is None:
            return {"failure": found.reason}
        v = found.verdict
        races.append([v.speedup.value, v.speedup.low, v.speedup.high, v.default.value, v.counts, v.blocks])
    return {"races": races}


def aa_lines(rows: Sequence[Row], gate: str) -> list[str]:
    """Return what A/A runs show."""
    races = [r for row in rows for r in row.get("races", ())]
    summary = summarise(_speedups(rows))
    gains, losses = (sum(r[4] and (r[0] > 1) is up for r in races) for up in (True, False))
    return [
        f"The default plan against itself, compiled twice, on {summary.programs} programs ({len(races)} races). "
        f"A difference counts {gate}.",
        "",
        f"- geometric mean: {_shown(summary)} (goal: 1.000 within 0.005)",
        f"- false gains: {gains} of {len(races)} ({gains / len(races):.2%}; goal: below 1%); false losses: {losses}",
        f"- noise floor: half of the races within {_percentile(races, 50):.2%}, "
        f"95% within {_percentile(races, 95):.2%}",
        f"- not measured: {sum('failure' in row for row in rows)}",
    ]


def planted_lines(rows: Sequence[Row], gate: str, share: float) -> list[str]:
    """Return how many planted gains were found."""
    races = [r for row in rows for r in row.get("races", ())]
    long = [r for r in races if r[3] > LONG]
    found, found_long = (sum(r[4] and r[0] > 1 for r in group) for group in (races, long))
    summary = summarise(_speedups(rows))
    return [
        f"The default plan against itself, with a delay of {share:.0%} of its time in the default, on "
        f"{summary.programs} programs ({len(races)} races). A gain counts {gate}.",
        "",
        f"- found: {found} of {len(races)}; of those longer than {LONG * 1e6:.0f} us {found_long} of {len(long)} "
        f"({found_long / max(1, len(long)):.0%}; goal: 90%)",
        f"- geometric mean of the measured gain: {_shown(summary)} (planted: {1 + share:.3f})",
        f"- not measured: {sum('failure' in row for row in rows)}",
    ]


def race_table(rows: Sequence[Row]) -> list[list[str]]:
    """Return a table with one row per program; the first row is the header."""
    body = []
    for row in sorted(rows, key=lambda row: str(row["program"])):
        if "races" not in row:
            body.append([row["program"], "", row["failure"][:80], "", ""])
            continue
        first = row["races"][0]
        speedups = ", ".join(f"{r[0]:.4f} [{r[1]:.3f}, {r[2]:.3f}]" for r in row["races"])
        verdicts = ", ".join("counts" if r[4] else "-" for r in row["races"])
        body.append([row["program"], f"{first[3] * 1e6:.1f}", speedups, verdicts, str(first[5])])
    return [["program", "default, us", "speedup", "gate", "blocks"], *body]


def _speedups(rows: Sequence[Row]) -> dict[str, list[list[float]]]:
    return {row["program"]: [[r[0]] for r in row["races"]] for row in rows if "races" in row}


def _shown(summary: SpeedupSummary) -> str:
    m = summary.mean
    return f"{m.value:.4f} [{m.low:.4f}, {m.high:.4f}], median {summary.median.value:.4f}, worst {summary.worst:.3f}"


def _percentile(races: Sequence[Sequence[float]], share: float) -> float:
    ordered = sorted(abs(r[0] - 1) for r in races)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]
