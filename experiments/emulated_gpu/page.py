"""The comparison on held-out families: test programs opened once, one page, one figure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.analysis.cost_model import device_model
from compiler.learned.fusion_policy import LearnedFusionPolicy, load_policy
from compiler.learned.whole_folder import read_whole
from compiler.text import parse
from env.suites import Program, load_suite, open_test_programs
from env.summaries import summarise
from experiments.emulated_gpu.comparison import RULES, UNTRAINED, Times, predicted, speedups
from experiments.emulated_gpu.learning import make_network, numpy_network
from experiments.emulated_gpu.mapping import Searched, drawn, search_suite
from experiments.emulated_gpu.plans import search_plan
from experiments.emulated_gpu.settings import EmulatedSettings
from experiments.emulated_gpu.stages import CURVES, DEVICE, KINDS, WHOLE, policy_folder
from experiments.headroom import drawn_by_family
from experiments.results import write_text
from experiments.yardstick.rows import Row, collect, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
_LEAST_LOG = 1e-4
"""A search that gains less has found nothing of which there could be a share."""
__all__ = ["SEARCH", "compare", "evaluate", "headroom_lines"]

SEARCH = "search on the program"
"""What the local search with the settings of the teacher is called."""
EXPORTED = "exported"
"""What the whole policy is called, the one that is best on validation programs."""


def compare(
    programs: Sequence[Program],
    policies: Mapping[str, Sequence[LearnedFusionPolicy]],
    settings: EmulatedSettings,
    path: Path,
) -> list[Times]:
    """Return the predicted times of programs by rules, search and policies; programs without any are left out.

    A file keeps the times, from which an interrupted run with the same policies and settings continues.
    """

    def row(program: Program) -> Row:
        times = predicted(program, settings.backend, policies, settings.seeds)
        if times is None:
            return {"skipped": "takes no time, or cannot be compiled"}
        if settings.search_test:
            best = search_plan(parse(program.text()), settings).best
            times.seconds[SEARCH] = best or times.seconds[RULES[0]]  # too large to search
        return asdict(times)

    digest = hashlib.sha256()
    for p in (p for seeds in policies.values() for p in seeds):
        digest.update(p.completion.encode())
        for _, weights in sorted(p.network.weights.items()):
            digest.update(weights.tobytes())
    rows = collect(path, {**asdict(settings), "policies": digest.hexdigest()}, programs, row, len(programs))
    return [Times(r["program"], r["family"], r["seconds"], r["learned"]) for r in rows if "seconds" in r]


def evaluate(settings: EmulatedSettings, work: Path, out: Path, config: Path, held_out: bool = True) -> None:
    """Compare on programs of other families than those of training, and write the page and its rows.

    Args:
        settings: of the experiment.
        work: the folder that `learn` has written.
        out: the page.
        config: the file of the settings, which the page names.
        held_out: open the test programs, which is recorded; else those by which policies were chosen.

    Raises:
        PolicyError: `learn` has not written the policies.
    """
    kinds = KINDS if settings.iterations else KINDS[:1]
    own = {k: [load_policy(policy_folder(work, k, s)) for s in range(settings.seeds)] for k in kinds}
    last = kinds[-1]
    other = f"{last}, {settings.other_completion}"
    policies = own | {other: [replace(p, completion=settings.other_completion) for p in own[last]]}
    policies[UNTRAINED] = [_untrained(settings, s) for s in range(settings.seeds)]
    policies[EXPORTED] = [load_policy(work / WHOLE / "fusion")]
    chosen = read_whole(work / WHOLE).provenance
    searched = {
        name: search_suite(drawn(suite, count), settings, work / f"{name}.jsonl")
        for name, suite, count in (
            ("train", settings.train, settings.train_per_family),
            ("validation", settings.validation, settings.validation_per_family),
        )
    }
    if held_out:
        with open_test_programs("emulated GPU", str(work / WHOLE), [out.parent]):
            programs = drawn_by_family(load_suite(settings.test).programs, settings.test_per_family)
    else:
        programs = drawn(settings.validation, settings.validation_per_family)
    rows_file = work / f"times-{'test' if held_out else 'validation'}.jsonl"
    times = compare(programs, policies, settings, rows_file)
    write_text(out.with_suffix(".jsonl"), "\n".join(json.dumps(asdict(t)) for t in times) + "\n")
    curves = [json.loads(line) for line in (work / CURVES).read_text(encoding="utf-8").splitlines()[1:]]
    from experiments.plots import save_figure

    save_figure(plot(curves), out.with_suffix(".svg"))
    stages = ("learn", "evaluate" if held_out else "validate")
    options = f"--config {_shown(config)} --work {_shown(work)}"
    command = "` and then `".join(f"python -m experiments.emulated_gpu {stage} {options}" for stage in stages)
    lines = [
        f"Predicted time of the kernels on the model of a GPU (`compiler.analysis.cost_model.gpu`), {len(times)} "
        f"programs of {len({t.family for t in times})} {'held-out' if held_out else 'validation'} families, "
        f"{settings.seeds} seeds. The rules are those of the backend: they run a loop inside one kernel or unroll it, "
        "and fuse reshapes first. The *former rules* do neither. *Greedy* and *priority* are fusion policies, *random* "
        "plans have random loops and fusions, and *untrained* is the network before training. Means are geometric, "
        "with 95% intervals over programs and seeds.",
        "",
        *headroom_lines(searched),
        "",
        f"The network decides loops and begins fusion; `{settings.completion}` takes over where it stops, or the "
        f"policies that a row names. Exported is what is best on validation programs "
        f"({chosen.get('validation', 0):.3f}x): {chosen.get('kind')} of seed {chosen.get('seed')}, completed by "
        f"`{chosen.get('completion')}`.",
        "",
        "![learning curves](" + out.with_suffix(".svg").name + ")",
        "",
        _families(times),
        *_share(times),
    ]
    write_page(out, "Loops and fusion learned on the emulated GPU", command, lines, _table(times), rows_file)


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
    rows = [["plans of", "over the rules", "over the former rules", "median", "worst", "best", "slower by 1%"]]
    for name in (*RULES[1:], *times[0].learned, *_searched(times)):
        s, o = speedups(times, name), speedups(times, name, RULES[1])
        cells = [f"{i.mean.value:.3f}x [{i.mean.low:.3f}, {i.mean.high:.3f}]" for i in (s, o)]
        rows.append([name, *cells, f"{s.median.value:.3f}x", f"{s.worst:.2f}x", f"{s.best:.2f}x", f"{s.slower:.1%}"])
    return rows


def _searched(times: Sequence[Times]) -> list[str]:
    return [SEARCH] if SEARCH in times[0].seconds else []


def _share(times: Sequence[Times]) -> list[str]:
    """Return what the exported policy reaches of what the search on the programs gains, as a line; none without."""
    if not _searched(times):
        return []
    found, learned = (math.log(speedups(times, n).mean.value) for n in (SEARCH, EXPORTED))
    share = f"{learned / found:.0%}" if found > _LEAST_LOG else "no share"
    return ["", f"Of the gain that a search on each program finds (log of the mean), the exported policy has {share}."]


def _untrained(settings: EmulatedSettings, seed: int) -> LearnedFusionPolicy:
    network = numpy_network(make_network(settings, seed))
    return LearnedFusionPolicy(network, device=device_model(DEVICE), completion=settings.completion)


def _shown(path: Path) -> str:
    """Return a path from the root of the repository, or the name of the file or folder if it lies elsewhere."""
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else path.name


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
