"""What there is to gain over the default plan, and by which decisions: a local search for each group of them.

    python -m experiments.headroom [--suite validation] [--budget 300] [--group all,kernels,...] [--programs N]

For each program and each group of decisions, alone and all together, a local search from the default plan measures
`--budget` plans. Its best plans are measured again in fresh processes, beside the default plan; a gain that does not
pass the gate there is none. Writes results/headroom/SUITE.md and .svg, and .jsonl, from which an interrupted run
continues.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.deviations import GROUPS, PlanBuilder
from agents.finalists import confirm
from agents.plan_space import ALL_GROUPS
from agents.search_run import Budget, run_search
from agents.searches import Local
from compiler.analysis.cost_model import module_cost
from compiler.support.safe_names import plot_label
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import ManifestError, Program, load_suite
from env.summaries import SpeedupSummary, summarise
from experiments.module_command import plain_errors
from experiments.yardstick.rows import Row, collect, failure_lines, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawn_by_family", "headroom_row", "main", "no_larger", "refuse_test_programs", "summaries"]

FOLDER = Path("results/headroom")


def headroom_row(
    measurer: Measurer, program: Program, groups: Sequence[str], budget: int, seed: int, shortest: float = 0.0
) -> Row:
    """Search each group of decisions, and return the confirmed gains; programs faster than `shortest` are skipped.

    Raises:
        HlogymError: the program cannot be measured.
    """
    module = parse(program.text(), filename=str(program.path))
    default = measurer.measure_reference(program)
    if default.time.value < shortest:
        return {"skipped": f"takes {default.time.value * 1e6:.2g} us", "seconds": default.time.value}
    found: dict[str, Any] = {}
    for group in groups:
        builder = PlanBuilder(module, measurer.options.backend)
        run = run_search(Local(groups=group, seed=seed), builder, program, measurer, Budget(budget))
        best = confirm(measurer, program, run.finalists)
        speedup = [1.0, 1.0, 1.0]
        if best is not None and best.measurement.verdict is not None:
            speedup = [float(v) for v in best.measurement.verdict.speedup.to_json() if v is not None]
        plan = None if best is None else best.plan.to_json()
        counts = {"measurements": run.measurements, "failures": run.failures}
        found[group] = {"speedup": speedup, "plan": plan, **counts}
    return {"seconds": default.time.value, "groups": found}


def summaries(rows: Sequence[Row], groups: Sequence[str]) -> dict[str, SpeedupSummary]:
    """Return the summary of the confirmed speedups of each group; programs without a gain count as 1."""
    whole = [r for r in rows if "groups" in r]
    return {g: summarise({r["program"]: [[r["groups"][g]["speedup"][0]]] for r in whole}) for g in groups if whole}


def _lines(rows: Sequence[Row], groups: Sequence[str], budget: int, gate: str) -> list[str]:
    lines = [
        f"Speedup over the default plan that a local search with {budget} measurements finds by each group of "
        "decisions. "
        f"The best plans were measured again in two fresh processes; a gain counts {gate}, and is 1 otherwise.",
        "",
        "| decisions | geometric mean | median | best | programs with a gain | measurements | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for group, s in summaries(rows, groups).items():
        mine = [r["groups"][group] for r in rows if "groups" in r]
        counts = [sum(m[k] for m in mine) for k in ("measurements", "failures")]
        mean = f"{s.mean.value:.3f}x [{s.mean.low:.3f}, {s.mean.high:.3f}]"
        lines.append(
            f"| {group} | {mean} | {s.median.value:.3f}x | {s.best:.2f}x | {s.faster:.0%} of {s.programs} "
            f"| {counts[0]} | {counts[1]} |"
        )
    failed = failure_lines(rows)
    return [*lines, "", *failed]


def _table(rows: Sequence[Row], groups: Sequence[str]) -> list[list[str]]:
    def cell(found: Mapping[str, Any]) -> str:
        value, low, high = found["speedup"]
        return "-" if found["plan"] is None else f"{value:.2f}x [{low:.2f}, {high:.2f}]"

    body = [
        [r["program"], f"{r['seconds'] * 1e6:.1f}", *(cell(r["groups"][g]) for g in groups)]
        for r in sorted(rows, key=lambda r: str(r["program"]))
        if "groups" in r
    ]
    return [["program", "default, us", *groups], *body]


def plot(rows: Sequence[Row], groups: Sequence[str]) -> Figure:
    """Plot the geometric mean of each group with its interval, and the programs as points."""
    from matplotlib.figure import Figure as NewFigure

    found = summaries(rows, groups)
    figure = NewFigure(figsize=(9, 1.2 + 0.5 * len(found)), layout="constrained")
    axes = figure.subplots()
    for place, (group, s) in enumerate(found.items()):
        each = [r["groups"][group]["speedup"][0] for r in rows if "groups" in r]
        axes.plot(each, [place] * len(each), "o", color="#9fceb5", markersize=4)
        below, above = max(0.0, s.mean.value - s.mean.low), max(0.0, s.mean.high - s.mean.value)
        bars = [[below], [above]] if s.mean.is_known else None
        axes.errorbar([s.mean.value], [place], xerr=bars, fmt="D", color="#145c39", capsize=3)
    axes.axvline(1.0, color="#555555", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}x")
    axes.set_yticks(range(len(found)), [plot_label(g) for g in found])
    axes.invert_yaxis()
    axes.set_xlabel("confirmed speedup over the default plan: programs, geometric mean with 95% interval")
    return figure


def drawn_by_family(
    programs: Sequence[Program], per_family: int | None, longest: float = math.inf, seed: int = 0
) -> list[Program]:
    """Return programs in a random order, at most `per_family` of each family; all in their own order for None.

    Each family occurs once before any occurs twice, so that an interrupted run has seen as many families as possible.
    Programs whose estimated time is above `longest` seconds are left out.
    """
    if per_family is None:
        return [p for p in programs if longest == math.inf or _estimate(p) <= longest]
    shuffled = list(programs)
    random.Random(seed).shuffle(shuffled)
    drawn: dict[str, list[Program]] = {}
    for program in shuffled:
        mine = drawn.setdefault(program.family or program.name, [])
        if len(mine) < per_family and (longest == math.inf or _estimate(program) <= longest):
            mine.append(program)
    return [mine[n] for n in range(per_family) for mine in drawn.values() if n < len(mine)]


def no_larger(programs: Iterable[Program], instructions: int) -> list[Program]:
    """Return the programs that have at most so many instructions."""
    return [p for p in programs if parse(p.text(), filename=str(p.path)).instruction_count <= instructions]


def refuse_test_programs(suite: str, programs: Iterable[Program]) -> None:
    """Raise ManifestError if some programs of a suite are held out for tests, because learning may not see them."""
    if any(p.split == "test" for p in programs):
        raise ManifestError(f"{suite} has programs held out for tests, which must not guide what is learned")


def _estimate(program: Program) -> float:
    """Return the time that the cost model gives the program before any pass, in seconds."""
    return module_cost(parse(program.text(), filename=str(program.path))).seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--suite", default="validation", help="comma-separated suites (default: %(default)s)")
    add("--budget", type=int, default=300, help="measurements per program and group (default: %(default)s)")
    add("--group", default=",".join((*GROUPS, ALL_GROUPS)), help="comma-separated groups (default: %(default)s)")
    add("--programs", type=int, default=None, help="number of programs (default: all)")
    add("--per-family", type=int, default=None, help="draw this many programs of each family (default: all)")
    add("--longest", type=float, default=math.inf, help="leave out programs estimated above these seconds")
    add("--shortest", type=float, default=0.0, help="skip programs that run in fewer seconds by default")
    add("--rounds", type=int, default=25, help="ABBA blocks at most (default: %(default)s)")
    add("--seconds", type=float, default=0.5, help="time limit of the blocks (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the searches (default: %(default)s)")
    add(
        "--real-time", action="store_true", help="time at real-time priority, on a machine that does other work as well"
    )
    add(
        "--end-after",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="measure no further program later",
    )
    add("--out", type=Path, default=None, help="page to write (default: results/headroom/SUITE.md)")
    o = parser.parse_args(arguments)
    groups = tuple(o.group.split(","))
    if unknown := set(groups) - {*GROUPS, ALL_GROUPS}:
        parser.error(f"unknown group {', '.join(sorted(unknown))}; groups are {', '.join((*GROUPS, ALL_GROUPS))}")
    programs = drawn_by_family(load_suite(o.suite).programs, o.per_family, o.longest, o.seed)[: o.programs]
    refuse_test_programs(o.suite, programs)
    out = o.out or FOLDER / f"{o.suite.replace(',', '-').replace('/', '-')}.md"
    settings = {n: getattr(o, n) for n in ("suite", "budget", "group", "rounds", "seconds", "seed")}
    if o.per_family is not None:
        settings["per-family"] = o.per_family
    for name in ("longest", "shortest"):
        if getattr(o, name) != parser.get_default(name):
            settings[name] = getattr(o, name)
    options = MeasurerOptions(rounds=o.rounds, seconds=o.seconds, seed=o.seed, real_time=o.real_time)
    with Measurer(PlanStore(":memory:"), options) as measurer:
        rows = collect(
            out.with_suffix(".jsonl"), settings, programs,
            lambda p: headroom_row(measurer, p, groups, o.budget, o.seed, o.shortest), len(programs),
            o.end_after,
        )  # fmt: skip
        gate = str(measurer.options.gate)
    command = "python -m experiments.headroom " + " ".join(f"--{n} {v}" for n, v in settings.items())
    command += " --real-time" if o.real_time else ""
    lines = _lines(rows, groups, o.budget, gate)
    if len(rows) < len(programs):
        lines = [f"The run ended after {len(rows)} of {len(programs)} programs.", "", *lines]
    if any("groups" in r for r in rows):
        from experiments.plots import save_figure

        save_figure(plot(rows, groups), out.with_suffix(".svg"))
        lines.append(f"![headroom]({out.with_suffix('.svg').name})")
    sys.stdout.write(
        write_page(
            out, "Headroom over the default plan", command, lines, _table(rows, groups), out.with_suffix(".jsonl")
        )
    )


if __name__ == "__main__":
    with plain_errors():
        main()
