"""The comparison on held-out families: test programs opened once, one page, one figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.learned.fusion_policy import LearnedFusionPolicy, load_policy
from compiler.learned.whole_folder import read_whole
from compiler.text import parse
from env.suites import Program, load_suite, open_test_programs
from env.summaries import summarise
from experiments.emulated_gpu.comparison import RESHAPES_FIRST, RULES, Times, predicted, speedups
from experiments.emulated_gpu.mapping import Searched, drawn, search_suite
from experiments.emulated_gpu.plans import search_plan
from experiments.emulated_gpu.settings import EmulatedSettings
from experiments.emulated_gpu.stages import CURVES, KINDS, WHOLE, policy_folder
from experiments.headroom import drawn_by_family
from experiments.results import write_text
from experiments.yardstick.rows import write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SEARCH", "compare", "evaluate", "headroom_lines"]

SEARCH = "search on the program"
"""What the local search with the settings of the teacher is called."""
EXPORTED = "exported"
"""What the whole policy is called, the one that is best on validation programs."""


def compare(
    programs: Sequence[Program],
    policies: Mapping[str, Sequence[LearnedFusionPolicy]],
    settings: EmulatedSettings,
) -> list[Times]:
    """Return the predicted times of programs by rules, search and policies; programs without any are left out."""
    found = []
    for program in programs:
        times = predicted(program, settings.backend, policies)
        if times is None:
            continue
        if settings.search_test:
            best = search_plan(parse(program.text()), settings).best
            times.seconds[SEARCH] = best or times.seconds[RULES[0]]  # too large to search
        found.append(times)
    return found


def evaluate(settings: EmulatedSettings, work: Path, out: Path, config: Path) -> None:
    """Open the test programs once, compare, and write the page and its rows.

    Raises:
        PolicyError: `learn` has not written the policies.
    """
    kinds = KINDS if settings.iterations else KINDS[:1]
    own = {k: [load_policy(policy_folder(work, k, s)) for s in range(settings.seeds)] for k in kinds}
    last = kinds[-1]
    other = f"{last}, {settings.other_completion}"
    policies = own | {other: [replace(p, completion=settings.other_completion) for p in own[last]]}
    policies[EXPORTED] = [load_policy(work / WHOLE / "fusion")]
    chosen = read_whole(work / WHOLE).provenance
    searched = {
        name: search_suite(drawn(suite, count), settings, work / f"{name}.jsonl")
        for name, suite, count in (
            ("train", settings.train, settings.train_per_family),
            ("validation", settings.validation, settings.validation_per_family),
        )
    }
    with open_test_programs("emulated GPU", str(work / WHOLE), [out.parent]):
        programs = drawn_by_family(load_suite(settings.test).programs, settings.test_per_family)
    times = compare(programs, policies, settings)
    write_text(out.with_suffix(".jsonl"), "\n".join(json.dumps(asdict(t)) for t in times) + "\n")
    curves = [json.loads(line) for line in (work / CURVES).read_text(encoding="utf-8").splitlines()[1:]]
    from experiments.plots import save_figure

    save_figure(plot(curves), out.with_suffix(".svg"))
    command = f"python -m experiments.emulated_gpu evaluate --config {config.name}"
    lines = [
        f"Predicted time of the kernels on the model of a GPU (`compiler.analysis.cost_model.gpu`), {len(times)} "
        f"programs of {len({t.family for t in times})} held-out families, {settings.seeds} seeds. The rules keep a "
        "loop or run it inside one kernel, and fuse by the default policy. *Reshapes first* is the fusion policy "
        f"`{RESHAPES_FIRST}`; *and unrolled* also unrolls loops that have no kernel by 8. Means are geometric, with "
        "95% intervals over programs and seeds.",
        "",
        *headroom_lines(searched),
        "",
        "The network decides loops and begins fusion; the default policy takes over where it stops, or the policies "
        f"that a row names. Exported is what is best on validation programs ({chosen.get('validation', 0):.3f}x): "
        f"{chosen.get('kind')} of seed {chosen.get('seed')}, completed by `{chosen.get('completion')}`.",
        "",
        "![learning curves](" + out.with_suffix(".svg").name + ")",
        "",
        _families(times),
    ]
    write_page(out, "Loops and fusion learned on the emulated GPU", command, lines, _table(times))


def headroom_lines(searched: Mapping[str, Sequence[Searched]]) -> list[str]:
    """Return a table of what the search finds over the rules."""
    lines = [
        "Headroom: what a local search finds over the rules on training and validation programs.", "",
        "| programs | fusions | loops and fusions | programs with a gain | plans tried |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, each in searched.items():
        f, b = (summarise({s.program.name: [[s.found.rules / v]] for s, v in zip(each, values, strict=True)})
                for values in ([s.found.fused for s in each], [s.found.best for s in each]))  # fmt: skip
        tried = sum(s.found.evaluations for s in each)
        cells = [f"{i.mean.value:.3f}x [{i.mean.low:.3f}, {i.mean.high:.3f}]" for i in (f, b)]
        lines.append(f"| {len(each)} of {name} | {cells[0]} | {cells[1]} | {b.faster:.0%} | {tried} |")
    return lines


def _table(times: Sequence[Times]) -> list[list[str]]:
    rows = [["plans of", "over the rules", "over reshapes first, unrolled", "median", "worst", "best", "slower by 1%"]]
    searched = [SEARCH] if SEARCH in times[0].seconds else []
    for name in (*RULES[1:], *times[0].learned, *searched):
        s, o = speedups(times, name), speedups(times, name, RULES[2])
        cells = [f"{i.mean.value:.3f}x [{i.mean.low:.3f}, {i.mean.high:.3f}]" for i in (s, o)]
        rows.append([name, *cells, f"{s.median.value:.3f}x", f"{s.worst:.2f}x", f"{s.best:.2f}x", f"{s.slower:.1%}"])
    return rows


def _families(times: Sequence[Times]) -> str:
    """Return the speedup of the exported policy by family."""
    by_family: dict[str, list[float]] = {}
    for t in times:
        by_family.setdefault(t.family, []).append(math.log(t.seconds[RULES[0]] / t.learned[EXPORTED][0]))
    shown = sorted(((math.exp(sum(v) / len(v)), f, len(v)) for f, v in by_family.items()), reverse=True)
    return "By family, exported policy over the rules: " + ", ".join(f"{f} {v:.2f}x ({n})" for v, f, n in shown) + "."


def plot(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot regret by epoch of imitation, and returns by iteration of policy gradient; one line per seed."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 3.2), layout="constrained")
    for axes, stage, value, label in zip(
        figure.subplots(1, 2), KINDS, ("regret", "return"),
        ("regret per decision, log of the speedup", "speedup over the rules, drawn plans"), strict=True,
    ):  # fmt: skip
        for seed in sorted({c["seed"] for c in curves}):
            points = [(c["step"], c[value]) for c in curves if c["seed"] == seed and c["stage"] == stage and value in c]
            axes.plot(*zip(*points, strict=True), label=f"seed {seed}") if points else None
        axes.set_title(stage)
        axes.set_xlabel("epoch" if stage == KINDS[0] else "iteration")
        axes.set_ylabel(label)
    return figure
