"""The ladder of *Operator Fusion in XLA*, found by an agent from the unedited Cartpole program.

    python -m experiments.ladder [--config experiments/configs/ladder.yaml] [--out results/learning/ladder.md]

Nothing runs by itself: the passes of the default pipeline (inlining, the lowering of random numbers, unrolling, the
removal of concatenates), expansions, and how each loop runs are actions of `hlogym/Compile-v0` with `automatic=False`.
Each seed is an agent of its own. The fast plan is found by an episode whose speedup is within a share of the best that
any of them, or the default compilation, has reached. Writes a page, a plot and rows in .jsonl from which an interrupted
run continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from agents.bandit import GradientBandit
from compiler.errors import UnknownNameError
from compiler.passes.pipelines.default import LOOPS, SIMPLIFICATION, STRUCTURE
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.environments import CompileEnv
from env.measurement import Comparison, Measurer, MeasurerOptions
from env.statistics import Interval
from env.store import PlanStore
from env.suites import Program, Suite, find_program
from experiments.module_command import plain_errors
from experiments.settings_file import read_experiment
from experiments.yardstick.rows import Row, read_rows, write_page, write_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AGENTS", "Episodes", "LadderSettings", "found_at", "main", "play"]

PAGE = Path("results/learning/ladder.md")
PAPER = 10.56
"""Speedup that the paper reports for manual edits of the program and of XLA."""
LAST = 10
"""Number of episodes at the end whose mean speedup is reported."""


@dataclass(frozen=True)
class LadderSettings:
    """The settings of the experiment, as its configuration file has them.

    Attributes:
        program: name of a program in the suites.
        reward: estimated-time, or measured-time.
        agents: names in AGENTS.
        seeds: number of seeds of each agent.
        episodes: number of episodes of each.
        phases: what is decided, joined by +; the default fusion follows unless fusion is among them.
        passes: the passes to choose from; none: those of the default pipeline.
        within: share of the best speedup that an episode may lack to have found it.
        rate: step size of the bandit.
        backend: the backend to compile for.
    """

    program: str = "cartpole_naive"
    reward: str = "estimated-time"
    agents: tuple[str, ...] = ("random", "bandit", "ppo")
    seeds: int = 5
    episodes: int = 100
    phases: str = "passes+expansions+loops"
    passes: tuple[str, ...] = ()
    within: float = 0.05
    rate: float = 0.1
    backend: str = "cpu"


@dataclass
class Episodes:
    """The episodes of one agent with one seed.

    Attributes:
        speedups: of each episode, over the program as it is.
        seconds: since the start, after each episode.
        plan: the plan of the best episode, as JSON.
        decisions: its decisions as text.
    """

    speedups: list[float]
    seconds: list[float]
    plan: str = ""
    decisions: tuple[str, ...] = ()

    def note(self, info: Mapping[str, Any], begin: float, scale: float) -> None:
        """Note the end of an episode; its speedup is multiplied by `scale`."""
        speedup = float(info["speedup"]) * scale
        if speedup > max(self.speedups, default=0.0):
            self.plan, self.decisions = info["plan_json"], tuple(info["plan"])
        self.speedups.append(speedup)
        self.seconds.append(time.monotonic() - begin)


Play = Callable[[CompileEnv, LadderSettings, int, float], Episodes]
"""Plays episodes with a seed; the last argument is the factor from reported speedups to those over the program."""


def _bandit(rate: float | None) -> Play:
    def run(env: CompileEnv, settings: LadderSettings, seed: int, scale: float) -> Episodes:
        agent = GradientBandit(settings.rate if rate is None else rate, seed)
        played, begin = Episodes([], []), time.monotonic()
        for _ in range(settings.episodes):
            env.reset()
            total, done, truncated = 0.0, False, False
            info: Mapping[str, Any] = {}
            while not (done or truncated):
                _, reward, done, truncated, info = env.step(agent.draw(env.names))
                total += reward
            agent.learn(total)
            if done:
                played.note(info, begin, scale)
        return played

    return run


def _ppo(env: CompileEnv, settings: LadderSettings, seed: int, scale: float) -> Episodes:
    from stable_baselines3.common.callbacks import BaseCallback

    from agents.ppo import make_ppo
    from agents.settings import PointerSettings

    played, begin = Episodes([], []), time.monotonic()

    class Note(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "plan_json" in info:
                    played.note(info, begin, scale)
            return len(played.speedups) < settings.episodes

    agent = make_ppo(env, PointerSettings(seed=seed, ent_coef=0.01, learning_rate=1e-3))
    agent.learn(settings.episodes * env.max_steps, callback=Note())
    return played


AGENTS: Mapping[str, Play] = {"random": _bandit(0.0), "bandit": _bandit(None), "ppo": _ppo}
"""Random search, a gradient bandit, and MaskablePPO with the graph network."""


def make_environment(settings: LadderSettings, measurer: Measurer | None = None) -> CompileEnv:
    """Return the environment in which nothing runs by itself."""
    default = tuple(dict.fromkeys((*STRUCTURE, *SIMPLIFICATION, *LOOPS)))
    return CompileEnv(
        Suite(settings.program, (find_program(settings.program),)),
        phases=settings.phases, passes=settings.passes or default, automatic=False, max_steps=200,
        reward=settings.reward, measurer=measurer, backend=settings.backend,
    )  # fmt: skip


def play(env: CompileEnv, settings: LadderSettings, agent: str, seed: int) -> Episodes:
    """Let an agent play its episodes.

    Raises:
        UnknownNameError: there is no such agent.
    """
    if agent not in AGENTS:
        raise UnknownNameError("agent", agent, AGENTS)
    program = env.suite.programs[0]
    scale = env.measurer.measure(program, env.baseline(program).plan).relative if env.measured else 1.0
    return AGENTS[agent](env, settings, seed, scale)


def found_at(speedups: Sequence[float], best: float, within: float) -> int | None:
    """Return the number of the first episode, from 1, within a share of the best speedup; None: there is none."""
    return next((n + 1 for n, s in enumerate(speedups) if s >= (1 - within) * best), None)


def default_speedup(env: CompileEnv, program: Program) -> float:
    """Return the speedup of the default compilation over the program as it is, as the reward measures it."""
    baseline = env.baseline(program)
    if env.measured:
        return env.measurer.measure(program, baseline.plan).relative
    from compiler.api import decide
    from compiler.fusion.policies import DEFAULT_POLICY, make_policy

    session = CompilationSession(parse(program.text()), backend=env.backend)
    decide(session, make_policy(DEFAULT_POLICY))
    return baseline.seconds / session.cost().seconds


def known_rows(path: Path, settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows of an earlier run, whose agents and number of seeds may have been others.

    Raises:
        ResultError: the file cannot be read, or was written with other settings.
    """
    return read_rows(path, settings, ("agent",), ignored=("agents", "seeds"))


def _lines(rows: Sequence[Row], settings: LadderSettings, default: float, compared: Comparison) -> list[str]:
    def measured(name: str) -> str:
        if name not in compared.samples or "as written" not in compared.samples:
            return "-"
        return _shown(compared.speedup(name, "as written"))

    best = max([default, *(s for r in rows for s in r["speedups"])])
    kind = "measured" if settings.reward == "measured-time" else "by the cost model"
    lines = [
        f"`{settings.program}`, phases {settings.phases}; speedups are over the program as it is written, with the "
        f"default fusion and nothing else. Reward: {settings.reward}. An episode has found the fast plan if its "
        f"speedup is at least {1 - settings.within:.0%} of the best known ({best:.3g}x {kind}).",
        "",
        f"| agent | seeds that found it | episodes until then: median, range | seconds | best, {kind} "
        f"| mean of the last {LAST} | best plan, measured end to end |",
        "|---|---|---|---|---|---|---|",
    ]
    for agent in settings.agents:
        mine = [r for r in rows if r["agent"] == agent]
        at = [found_at(r["speedups"], best, settings.within) for r in mine]
        known = sorted(n for n in at if n is not None)
        seconds = [r["seconds"][n - 1] for r, n in zip(mine, at, strict=True) if n is not None]
        shown = f"{median(known):g}, {known[0]} to {known[-1]}" if known else "-"
        top = max((max(r["speedups"], default=0.0) for r in mine), default=0.0)
        last = [s for r in mine for s in r["speedups"][-LAST:]]
        mean = sum(last) / max(1, len(last))
        took = f"{median(seconds):.0f}" if seconds else "-"
        found = f"{len(known)} of {len(mine)} | {shown} | {took}"
        lines.append(f"| {agent} | {found} | {top:.3g}x | {mean:.3g}x | {measured(agent)} |")
    lines += [
        f"| default of `compile` | | | | {default:.3g}x | | {measured('default')} |",
        f"| the paper: manual edits of program and XLA, on a GPU | | | | | | {PAPER}x |",
        "",
    ]
    for agent in settings.agents:
        decisions = [r["decisions"] for r in rows if r["agent"] == agent and r["decisions"]]
        if decisions:
            shortest = min(decisions, key=len)
            lines.append(f"- best plan of one seed of {agent}: {'; '.join(shortest)}")
    return lines


def _shown(speedup: Interval) -> str:
    return f"{speedup.value:.3g}x [{speedup.low:.3g}, {speedup.high:.3g}]"


def plot(rows: Sequence[Row], settings: LadderSettings, default: float) -> Figure:
    """Plot the best speedup so far by episode: a line per seed, a colour per agent."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for n, agent in enumerate(settings.agents):
        for k, r in enumerate(r for r in rows if r["agent"] == agent):
            best = [max(r["speedups"][: i + 1]) for i in range(len(r["speedups"]))]
            label = agent if k == 0 else None
            axes.step(range(1, len(best) + 1), best, where="post", color=f"C{n}", alpha=0.7, label=label)
    axes.axhline(default, color="#555555", linestyle="--", linewidth=1, label="default of compile")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
    axes.set_xlabel("episode")
    axes.set_ylabel("best speedup so far")
    axes.legend(fontsize=8)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run = read_experiment("ladder", __doc__ or "", LadderSettings, lambda _: PAGE, arguments)
    settings, out, rows_file = run.settings, run.out, run.rows_file
    for agent in settings.agents:
        if agent not in AGENTS:
            raise UnknownNameError("agent", agent, AGENTS)
    rows = known_rows(rows_file, run.stored_settings)
    with Measurer(PlanStore(":memory:"), MeasurerOptions(backend=settings.backend)) as measurer:
        env = make_environment(settings, measurer)
        program = env.suite.programs[0]
        for seed in range(settings.seeds):
            for agent in settings.agents:
                if any((r["agent"], r["seed"]) == (agent, seed) for r in rows):
                    continue
                rows.append({"agent": agent, "seed": seed, **asdict(play(env, settings, agent, seed))})
                sys.stderr.write(f"{agent}, seed {seed}: {max(rows[-1]['speedups'], default=0.0):.3g}x\n")
                write_rows(rows_file, run.stored_settings, rows)
        default = default_speedup(env, program)
        plans: dict[str, CompilationPlan | None] = {"as written": env.baseline(program).plan, "default": None}
        for agent in settings.agents:
            mine = [r for r in rows if r["agent"] == agent and r["plan"]]
            if mine:
                plans[agent] = CompilationPlan.from_json(max(mine, key=lambda r: max(r["speedups"]))["plan"])
        compared = measurer.compare(program, plans)
    from experiments.plots import save_figure

    save_figure(plot(rows, settings, default), out.with_suffix(".svg"))
    lines = [*_lines(rows, settings, default, compared), "", f"![best speedup so far]({out.with_suffix('.svg').name})"]
    table = [["agent", "seed", "episodes", "found after", "best"]]
    best = max([default, *(s for r in rows for s in r["speedups"])])
    for r in rows:
        at = found_at(r["speedups"], best, settings.within)
        top = f"{max(r['speedups'], default=0.0):.3g}x"
        table.append([r["agent"], str(r["seed"]), str(len(r["speedups"])), "-" if at is None else str(at), top])
    sys.stdout.write(write_page(out, "The ladder found by agents", run.command, lines, table, rows_file))


if __name__ == "__main__":
    with plain_errors():
        main()
