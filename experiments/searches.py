"""Searches over all decisions at equal budgets: the speedup over the default plan by measurements and by seconds.

    python -m experiments.searches [--config experiments/configs/searches.yaml] [--out results/searches/SUITE.md]

Each search, with and without a cost model, measures plans of each program with each seed. The best plan within each
part of the budget is measured again in a fresh process, beside the default plan; a gain that does not pass the gate
there is none. Writes a page, a plot, and rows in .jsonl from which an interrupted run continues.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agents.deviations import PlanBuilder
from agents.plan_search import NO_MODEL, PREDICTORS, PlanSearch
from agents.plan_space import ALL_GROUPS
from agents.search import draws_of
from agents.search_run import Budget, SearchRun, run_search
from agents.searches import SEARCHES, Local, PolicySamples, make_search
from compiler.errors import UnknownNameError
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.learned.whole_folder import SHIPPED
from compiler.plan import CompilationPlan
from compiler.policy import LEARNED as SHIPPED_NAME
from compiler.policy import Policy, load_policy
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import ManifestError, Program, load_suite
from env.summaries import SpeedupSummary, summarise
from experiments.estimated_search import EstimatedPlans, EstimatingMeasurer
from experiments.headroom import drawn_by_family, no_larger
from experiments.module_command import plain_errors
from experiments.settings_file import read_experiment
from experiments.yardstick.rows import Row, collect, failure_lines, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SearchSettings", "advantages", "contenders", "main", "search_row", "summaries"]

SAMPLES, IMPROVED = "learned policy, samples", "learned policy, then local"
"""Contenders with a learned policy: its plan and plans that it draws; its plan, improved by local search."""
ESTIMATED = "estimated-time"
REWARDS = ("measured-time", ESTIMATED)
_ESTIMATES = {"analytic": "analytic cost model", "learned": "learned cost model of kernels"}


@dataclass(frozen=True)
class SearchSettings:
    """The settings of the experiment, as its configuration file has them.

    Attributes:
        suite: comma-separated suites.
        programs: number of programs, drawn at random; 0: all.
        per_family: draw from at most so many programs of each family, every family once before any twice; 0: from all.
        longest: leave out programs that the cost model estimates above so many seconds, if families are drawn.
        instructions: leave out programs with more instructions; 0: none.
        searches: searches with options, as `hlogym tune --search` takes them.
        models: cost models with which each of them runs; none: without one.
        reward: measured-time, or estimated-time: no plan is timed, and speedups are those of `estimates`.
        estimates: the cost model whose times count as measurements with estimated-time.
        policy: folder of a learned policy, or `learned` for the one that ships: its samples, and local search from its
            plan, are compared too; empty: none.
        policy_groups: the decisions that this local search may change.
        measurements, seconds: parts of the budget at which results are read.
        seeds: number of seeds of each search.
        seed: the first of them; also draws the programs.
        shortest: skip programs that run in fewer seconds by default, in which hardly a gain can count.
        share_times: plans that several searches propose are measured once; a measurement counts for each of them.
        ahead: a search that every other one is compared with; empty: none.
        backend: the backend to compile for.
        rounds: ABBA blocks of a measurement at most.
        block_seconds: time limit of the blocks of a measurement.
        real_time: time at real-time priority, on a machine that does other work as well.
    """

    suite: str = "validation"
    programs: int = 0
    per_family: int = 0
    longest: float = float("inf")
    instructions: int = 0
    searches: tuple[str, ...] = ("random", "greedy", "local", "beam", "annealing", "evolution")
    models: tuple[str, ...] = (NO_MODEL, "analytic")
    reward: str = "measured-time"
    estimates: str = "analytic"
    policy: str = ""
    policy_groups: str = ALL_GROUPS
    measurements: tuple[int, ...] = (10, 30, 100, 300)
    seconds: tuple[float, ...] = (30.0, 120.0)
    seeds: int = 3
    seed: int = 0
    shortest: float = 0.0
    share_times: bool = False
    ahead: str = ""
    backend: str = "cpu"
    rounds: int = 25
    block_seconds: float = 0.5
    real_time: bool = False

    @property
    def parts(self) -> list[tuple[str, int | None, float]]:
        """The parts of the budget: label, measurements and seconds."""
        counted = [(f"{n} measurements", n, float("inf")) for n in self.measurements]
        return [*counted, *((f"{s:g} s", None, s) for s in self.seconds)]


def contenders(settings: SearchSettings, seed: int) -> dict[str, PlanSearch]:
    """Return the searches by label.

    Raises:
        UnknownNameError, OptionError: a search or a cost model that does not exist.
    """
    found: dict[str, PlanSearch] = {}
    for text in settings.searches:
        name, _, options = text.partition("{")
        takes_model = SEARCHES.get(name, PlanSearch).takes_model
        for model in settings.models if takes_model else (NO_MODEL,):
            given = ",".join(filter(None, [options.removesuffix("}"), f"model={model}"]))
            found[text if model == NO_MODEL else f"{text} + {model}"] = make_search(f"{name}{{{given}}}", seed)
    if settings.policy:
        found[SAMPLES] = PolicySamples(seed=seed)
        found[IMPROVED] = Local(groups=settings.policy_groups, seed=seed)
    return found


def search_row(
    make_measurer: Callable[[], Measurer],
    program: Program,
    settings: SearchSettings,
    policy: LearnedFusionPolicy | Policy | None = None,
) -> Row:
    """Run every search on a program and return the confirmed speedups: by search, then one list per seed.

    Raises:
        HlogymError: the program cannot be measured.
    """
    module = parse(program.text(), filename=str(program.path))
    estimated = EstimatedPlans(module, settings.backend, settings.estimates) if settings.reward == ESTIMATED else None

    def started() -> Measurer:
        return make_measurer() if estimated is None else EstimatingMeasurer(estimated)

    def builder(name: str) -> PlanBuilder:
        by_policy = name in (SAMPLES, IMPROVED)
        draws = draws_of(policy, settings.backend) if policy is not None and by_policy else None
        return estimated.builder(draws) if estimated else PlanBuilder(module, settings.backend, draws)

    with started() as shared:
        if settings.shortest:
            seconds = shared.measure_reference(program).time.value
            if seconds < settings.shortest:
                return {"skipped": f"it takes {seconds * 1e6:.1f} us"}
        runs = _runs(program, settings, builder, (lambda: nullcontext(shared)) if settings.share_times else started)
    with started() as measurer:
        return _confirmed(measurer, program, settings, runs)


def _runs(
    program: Program,
    settings: SearchSettings,
    builder: Callable[[str], PlanBuilder],
    measuring: Callable[[], AbstractContextManager[Measurer]],
) -> dict[str, list[SearchRun]]:
    """Run every search with each seed, by name.

    Args:
        program: the program.
        settings: of the experiment.
        builder: returns what builds the plans of the search with a name.
        measuring: returns what measures them; searches for which it returns the same share their times.
    """
    budget = Budget(max(settings.measurements, default=1 << 30), _limit(settings))
    runs: dict[str, list[SearchRun]] = {}
    for seed in range(settings.seed, settings.seed + settings.seeds):
        order = list(contenders(settings, seed).items())
        # Compiled code is kept between searches, so none of them should always be the first.
        random.Random(f"{program.name} {seed}").shuffle(order)
        for name, search in order:
            with measuring() as measurer:
                measurer.measure_reference(program)  # outside the seconds of the search
                runs.setdefault(name, []).append(run_search(search, builder(name), program, measurer, budget))
    return runs


def _confirmed(
    measurer: Measurer, program: Program, settings: SearchSettings, runs: Mapping[str, Sequence[SearchRun]]
) -> Row:
    default = measurer.measure_reference(program)
    confirmed: dict[str, float] = {}

    def speedup(plan: CompilationPlan | None) -> float:
        if plan is None:
            return 1.0
        text = plan.to_json()
        if text not in confirmed:
            found = measurer.measure(program, plan, remeasure=True)
            confirmed[text] = 1.0 if found.seconds is None else found.speedup
        return confirmed[text]

    found = {
        name: {
            "speedups": [[speedup(run.best(n, s)) for _, n, s in settings.parts] for run in mine],
            "measurements": [run.measurements for run in mine],
            "failures": [run.failures for run in mine],
            "seconds": [run.trials[-1].seconds if run.trials else 0.0 for run in mine],
        }
        for name, mine in runs.items()
    }
    return {"seconds": default.time.value, "searches": found}


def _limit(settings: SearchSettings) -> float:
    """Return the seconds after which a search ends; no limit if measurements are counted, which may take longer."""
    return float("inf") if settings.measurements else max(settings.seconds)


def summaries(rows: Sequence[Row], parts: int) -> dict[str, list[SpeedupSummary]]:
    """Return for each search the summary of the speedups at each part of the budget."""
    whole = [r for r in rows if "searches" in r]
    names = dict.fromkeys(n for r in whole for n in r["searches"])
    found: dict[str, list[SpeedupSummary]] = {}
    for name in names:
        mine = {r["program"]: r["searches"][name]["speedups"] for r in whole if name in r["searches"]}
        found[name] = [summarise({p: [[s[k]] for s in seeds] for p, seeds in mine.items()}) for k in range(parts)]
    return found


def advantages(rows: Sequence[Row], settings: SearchSettings) -> dict[str, list[SpeedupSummary]]:
    """Return how much faster the plans of `settings.ahead` are than those of each other search, seed by seed."""
    whole = [r["searches"] for r in rows if settings.ahead in r.get("searches", {})]
    found: dict[str, list[SpeedupSummary]] = {}
    for name in dict.fromkeys(n for r in whole for n in r if n != settings.ahead):
        found[name] = []
        for k in range(len(settings.parts)):
            ratios: dict[str, list[list[float]]] = {}
            for n, r in enumerate(whole):
                pairs = zip(r[settings.ahead]["speedups"], r[name]["speedups"], strict=True)
                ratios[str(n)] = [[mine[k] / other[k]] for mine, other in pairs]
            found[name].append(summarise(ratios))
    return found


def _advantage_lines(rows: Sequence[Row], settings: SearchSettings) -> list[str]:
    found = advantages(rows, settings)
    if not found:
        return []
    labels = [label for label, _, _ in settings.parts]
    lines = [
        f"Plans of *{settings.ahead}* beside those of each other search, by program and seed; above 1 they are faster.",
        "",
        f"| over | {' | '.join(labels)} | ahead | behind |",
        "|---|" + "---|" * (len(labels) + 2),
    ]
    for name, each in found.items():
        cells = [f"{s.mean.value:.3f}x [{s.mean.low:.3f}, {s.mean.high:.3f}]" for s in each]
        last = each[-1]
        lines.append(f"| {name} | {' | '.join(cells)} | {last.faster:.0%} | {last.slower:.0%} |")
    return [*lines, ""]


def _table(rows: Sequence[Row], settings: SearchSettings) -> list[list[str]]:
    labels = [label for label, _, _ in settings.parts]
    head = ["search", *labels, "median", "worst", "programs slower", "programs faster"]
    table = [[*head, "measurements", "failed", "seconds per measurement"]]
    for name, each in summaries(rows, len(labels)).items():
        mine = [r["searches"][name] for r in rows if "searches" in r]
        measured, failed, seconds = (sum(sum(m[k]) for m in mine) for k in ("measurements", "failures", "seconds"))
        cells = [f"{s.mean.value:.3f}x [{s.mean.low:.3f}, {s.mean.high:.3f}]" for s in each]
        last = each[-1]
        spread = [f"{last.median.value:.3f}x", f"{last.worst:.2f}x", f"{last.slower:.0%}", f"{last.faster:.0%}"]
        table.append([name, *cells, *spread, str(measured), str(failed), f"{seconds / max(1, measured):.2f}"])
    return table


def plot(rows: Sequence[Row], settings: SearchSettings) -> Figure:
    """Plot the geometric mean of each search by measurements and by seconds, with intervals."""
    from matplotlib.figure import Figure as NewFigure

    counted = len(settings.measurements)
    axes_of = (("measurements", settings.measurements, 0), ("seconds", settings.seconds, counted))
    panels = [p for p in axes_of if p[1]]
    found = summaries(rows, len(settings.parts))
    size = (max(8.0, 5.5 * len(panels)), 4 + 0.1 * len(found))
    figure = NewFigure(figsize=size, layout="constrained")
    for axes, (label, at, first) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for n, (name, each) in enumerate(found.items()):
            means = [s.mean for s in each[first : first + len(at)]]
            with_model = " + " in name
            color = f"C{list(dict.fromkeys(k.partition(' + ')[0] for k in found)).index(name.partition(' + ')[0])}"
            style = "--" if with_model else "-"
            axes.plot(at, [m.value for m in means], style, marker="o", markersize=3, color=color, label=name)
            if all(m.is_known for m in means):
                x = [a * (1 + 0.01 * n) for a in at]  # next to each other, so that all intervals can be seen
                axes.vlines(x, [m.low for m in means], [m.high for m in means], color=color, linewidth=0.8)
        axes.axhline(1.0, color="#555555", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_xticks(list(at), [f"{a:g}" for a in at])
        axes.minorticks_off()
        axes.set_ylabel("confirmed speedup, geometric mean")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    return figure


def drawn(settings: SearchSettings) -> list[Program]:
    """Return the programs of the experiment.

    Raises:
        ManifestError: some of them are held out for tests.
    """
    programs = list(load_suite(settings.suite).programs)
    if any(p.split == "test" for p in programs):
        raise ManifestError(
            f"{settings.suite} has programs held out for tests; `hlogym evaluate` compares searches on them"
        )
    if settings.instructions:
        programs = no_larger(programs, settings.instructions)
    if settings.per_family:
        programs = drawn_by_family(programs, settings.per_family, settings.longest, settings.seed)
    elif settings.programs:
        random.Random(settings.seed).shuffle(programs)
    return programs if settings.shortest else programs[: settings.programs or None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run = read_experiment("searches", __doc__ or "", SearchSettings, _page, arguments)
    settings, out = run.settings, run.out
    if settings.reward not in REWARDS:
        raise UnknownNameError("reward", settings.reward, REWARDS)
    if settings.estimates not in PREDICTORS:
        raise UnknownNameError("cost model", settings.estimates, tuple(PREDICTORS))
    contenders(settings, settings.seed)  # reports a wrong name before any work is done
    programs = drawn(settings)
    policy = load_policy(SHIPPED if settings.policy == SHIPPED_NAME else settings.policy) if settings.policy else None
    options = MeasurerOptions(
        backend=settings.backend,
        rounds=settings.rounds,
        seconds=settings.block_seconds,
        real_time=settings.real_time,
    )
    begin = time.monotonic()
    rows = collect(
        run.rows_file, run.stored_settings, programs,
        lambda p: search_row(lambda: Measurer(PlanStore(":memory:"), options), p, settings, policy),
        settings.programs or len(programs),
    )  # fmt: skip
    failed = failure_lines(rows)
    counted = (
        f"A measurement here is the prediction of the {_ESTIMATES.get(settings.estimates, settings.estimates)}; no "
        "plan was timed."
        if settings.reward == ESTIMATED
        else "The best plan within each part of the budget was measured again in a fresh process; a difference counts "
        f"{options.gate}, and is 1 otherwise."
    )
    if any(m != NO_MODEL for m in settings.models):
        counted += (
            " `+ analytic`, `+ learned`: of the proposed plans, eight unless the option `drawn` "
            "says otherwise, the one with the least time by that cost model is measured."
        )
    if settings.share_times:
        counted += " A plan that several searches propose was measured once, and counts in the budget of each."
    if settings.policy:
        counted += (
            f" *{SAMPLES}* measures the plan that the policy prefers and others that it draws, *{IMPROVED}* begins a "
            "local search at that plan; a policy that has nothing to draw ends after one measurement."
        )
    lines = [
        f"Speedup over the default plan, geometric mean over {sum('searches' in r for r in rows)} programs and "
        f"{settings.seeds} seeds with 95% intervals (bootstrap over programs and seeds). All searches start from the "
        f"default plan and may change the decisions of their groups, by default all. Median, worst, and the shares of "
        f"programs that are slower or faster by 1% are those of the whole budget. {counted}",
        "",
        *failed,
        *_advantage_lines(rows, settings),
    ]
    if any("searches" in r for r in rows):
        from experiments.plots import save_figure

        save_figure(plot(rows, settings), out.with_suffix(".svg"))
        lines.append(f"![speedup by budget]({out.with_suffix('.svg').name})")
    sys.stdout.write(
        write_page(out, "Searches at equal budgets", run.command, lines, _table(rows, settings), run.rows_file)
    )
    sys.stderr.write(f"{time.monotonic() - begin:.0f} s\n")


def _page(settings: SearchSettings) -> Path:
    return Path("results/searches") / f"{settings.suite.replace(',', '-').replace('/', '-')}.md"


if __name__ == "__main__":
    with plain_errors():
        main()
