"""Pass orders by PPO that begins with imitation of the best orders of a search, beside agents that begin untrained.

    python -m experiments.imitation [--config experiments/configs/imitation.yaml] [--out results/learning/imitation.md]

A greedy search finds orders for the training programs; a network learns to make the same decisions. PPO improves that
network, with lambda 1 and with returns relative to the mean of their program. The same steps are given to PPO, A2C and
DQN without imitation. Rewards are deterministic: predicted times, or op counts. Writes a page, a plot of the learning
curves, and rows in .jsonl, one per agent and seed, from which an interrupted run continues.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from agents.baseline import ProgramBaseline
from agents.pass_agents import PassAgent, make_pass_agent
from agents.pass_search import search_order
from agents.settings import LearningSettings
from agents.vectors import make_vector
from compiler.analysis.cost_model import CostModel, module_cost
from compiler.backends.registry import find_backend
from compiler.learned.pass_states import PassState
from env.pass_order import PassOrderEnv
from env.suites import Program, Suite, load_suite
from env.summaries import SpeedupSummary, summarise
from experiments.console import error_console
from experiments.headroom import drawn_by_family, no_larger, refuse_test_programs
from experiments.module_command import plain_errors
from experiments.settings_file import read_experiment
from experiments.yardstick.rows import read_rows, write_page, write_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AGENTS", "ImitationSettings", "demonstrations", "imitate", "main", "train_agent"]

IMITATION, WARM = "imitation", "imitation, then PPO"
AGENTS: Mapping[str, str] = {
    IMITATION: "maskable-ppo", WARM: "maskable-ppo", "PPO": "maskable-ppo", "A2C": "a2c", "DQN": "dqn",
}  # fmt: skip
"""What is compared, with the kind of each in `agents.pass_agents.PASS_AGENTS`."""
TEACHER = "greedy search on the program"
MOST_RANDOM = 6
"""Greatest number of random passes before the search begins."""


@dataclass(frozen=True)
class ImitationSettings:
    """The settings of the experiment, as its configuration file has them.

    Attributes:
        train, validation: suites.
        programs: number of programs of each.
        instructions: larger programs are left out.
        backend: the backend to compile for.
        reward: op-count or estimated-time.
        applications: passes per episode.
        teacher_budget: passes that the search may apply per start.
        starts: searches per training program: from its start, and after random passes.
        epochs: passes over the decisions of the search.
        imitation_rate: learning rate of imitation.
        timesteps: steps of each agent.
        every: steps between evaluations.
        learning_rate: of agents that begin untrained.
        tuning_rate: of PPO after imitation.
        n_steps: steps between updates.
        hidden: width of a layer.
        seeds: trainings of each agent.
    """

    train: str = "corpus/train"
    validation: str = "corpus/validation"
    programs: int = 24
    instructions: int = 60
    backend: str = "cpu"
    reward: str = "op-count"
    applications: int = 40
    teacher_budget: int = 800
    starts: int = 4
    epochs: int = 150
    imitation_rate: float = 0.001
    timesteps: int = 6144
    every: int = 1024
    learning_rate: float = 0.0005
    tuning_rate: float = 0.0001
    n_steps: int = 512
    hidden: int = 128
    seeds: int = 3

    def learning(self, name: str, seed: int) -> LearningSettings:
        """Return the hyperparameters of one agent."""
        rate = self.tuning_rate if name == WARM else self.learning_rate
        entropy = 0.0 if name == WARM else 0.01
        return LearningSettings(
            n_steps=self.n_steps, learning_rate=rate, ent_coef=entropy, hidden=self.hidden, seed=seed
        )


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Decisions of the teacher.

    Attributes:
        observations: [n, size of an observation] float32.
        actions: [n] what the teacher chose.
        masks: [n, actions] which actions were worth trying.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    masks: np.ndarray[Any, np.dtype[np.bool_]]


def small_programs(suite: str, settings: ImitationSettings) -> list[Program]:
    """Return the programs of a suite that the experiment uses.

    Raises:
        ManifestError: some of them are held out for tests.
    """
    programs = load_suite(suite).programs
    refuse_test_programs(suite, programs)
    return drawn_by_family(no_larger(programs, settings.instructions), settings.programs)[: settings.programs]


def make_environment(programs: Sequence[Program], settings: ImitationSettings, seed: int = 0) -> PassOrderEnv:
    """Return an environment over programs."""
    env = PassOrderEnv(
        Suite("imitation", tuple(programs)), reward=settings.reward, max_steps=settings.applications,
        backend=settings.backend,
    )  # fmt: skip
    env.reset(seed=seed)
    return env


def teacher_order(env: PassOrderEnv, settings: ImitationSettings, start: PassState) -> tuple[int, ...]:
    """Return the order that a greedy search finds from a state, in which passes that change nothing do not occur."""
    model = CostModel(find_backend(settings.backend).device_model())

    def seconds(state: PassState) -> float:
        return state.read(lambda m: module_cost(m, model).seconds)

    score = (lambda state: float(state.ops)) if settings.reward == "op-count" else seconds
    return start.read(lambda m: search_order("greedy", m, env.actions, score, settings.teacher_budget)).actions


def teacher_gains(env: PassOrderEnv, settings: ImitationSettings) -> dict[str, float]:
    """Return by program the gain over the default of what the search finds from the start, at least 1."""
    found = {}
    for program in env.suite.programs:
        order = teacher_order(env, settings, env.graph(program).root)
        found[program.name] = max(1.0, follow(env, program.name, order)[0])
    return found


def follow(env: PassOrderEnv, program: str, actions: Sequence[int]) -> tuple[float, list[tuple[Any, Any, int]]]:
    """Return the gain over the default of an order that ends with a stop, and its decisions.

    A decision is an observation, the mask of actions and the action.
    """
    observation, info = env.reset(options={"program": program})
    decisions = []
    for action in (*actions, len(env.actions)):
        decisions.append((observation, env.action_masks(), action))
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    return float(info["speedup"]), decisions


def demonstrations(env: PassOrderEnv, settings: ImitationSettings) -> Demonstrations:
    """Return the decisions of the search, from the start of each program and after a few random passes.

    Agents come to states that the best orders never see; the later starts show what to do there.
    """
    rng = np.random.default_rng(0)
    decisions = []
    for program in env.suite.programs:
        for start in range(settings.starts):
            state = env.graph(program).root
            before = rng.integers(0, len(env.actions), int(rng.integers(1, MOST_RANDOM + 1))) if start else ()
            for action in map(int, before):
                state = env.graph(program).apply(state, action)
            order = (*map(int, before), *teacher_order(env, settings, state))
            decisions += follow(env, program.name, order)[1][len(before) :]
    observations, masks, actions = zip(*decisions, strict=True)
    return Demonstrations(
        torch.as_tensor(np.stack(observations)), torch.as_tensor(actions), np.stack(masks).astype(np.bool_)
    )


def imitate(agent: MaskablePPO, shown: Demonstrations, epochs: int, rate: float, seed: int) -> list[float]:
    """Train the actor of an agent on decisions; return the mean negative log-probability of each epoch."""
    policy = agent.policy
    optimizer, losses = torch.optim.Adam(policy.parameters(), rate), []
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        total = 0.0
        for part in torch.split(torch.randperm(len(shown.actions), generator=order), 64):
            _, log_probability, _ = policy.evaluate_actions(
                shown.observations[part], shown.actions[part], shown.masks[part.numpy()]
            )
            loss = -log_probability.mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(part)
        losses.append(total / len(shown.actions))
    return losses


def speedups_of(agent: PassAgent, env: PassOrderEnv) -> dict[str, float]:
    """Return the speedup over the default by program, where an agent takes its best action each time."""
    found = {}
    for program in env.suite.programs:
        observation, info = env.reset(options={"program": program.name})
        ended = False
        while not ended:
            masks = {"action_masks": env.action_masks()} if isinstance(agent, MaskablePPO) else {}
            action, _ = cast(Any, agent).predict(observation, deterministic=True, **masks)
            observation, _, terminated, truncated, info = env.step(int(action))
            ended = terminated or truncated
        found[program.name] = float(info["speedup"])
    return found


def train_agent(
    name: str,
    seed: int,
    train: PassOrderEnv,
    validation: PassOrderEnv,
    shown: Demonstrations,
    settings: ImitationSettings,
) -> dict[str, Any]:
    """Train one agent and return its row: its curve on the programs of both environments, and its final speedups."""
    agent = make_pass_agent(AGENTS[name], ProgramBaseline(make_vector([lambda: train])), settings.learning(name, seed))
    if name in (IMITATION, WARM):
        imitate(cast(MaskablePPO, agent), shown, settings.epochs, settings.imitation_rate, seed)
    curve = []

    def note(steps: int) -> dict[str, dict[str, float]]:
        both = {"train": speedups_of(agent, train), "validation": speedups_of(agent, validation)}
        curve.append([steps, *(_mean(s) for s in both.values())])
        return both

    found = note(0)
    if name != IMITATION:
        for steps in range(settings.every, settings.timesteps + 1, settings.every):
            agent.learn(settings.every, reset_num_timesteps=steps == settings.every)
            found = note(steps)
    return {"agent": name, "seed": seed, "curve": curve, **found}


def _mean(speedups: Mapping[str, float]) -> float:
    return math.exp(sum(map(math.log, speedups.values())) / len(speedups))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run = read_experiment(
        "imitation", __doc__ or "", ImitationSettings, lambda _: Path("results/learning/imitation.md"), arguments
    )
    settings = run.settings
    rows = read_rows(run.rows_file, run.stored_settings, ("agent", "seed"))
    train, validation = (
        make_environment(small_programs(s, settings), settings) for s in (settings.train, settings.validation)
    )
    shown = demonstrations(train, settings)
    error_console.print(f"{len(shown.actions)} decisions of the search on {len(train.suite.programs)} programs")
    known = {(r["agent"], r["seed"]) for r in rows}
    for seed in range(settings.seeds):
        for name in AGENTS:
            if (name, seed) not in known:
                rows.append(train_agent(name, seed, train, validation, shown, settings))
                write_rows(run.rows_file, run.stored_settings, rows)
                error_console.print(f"{name}, seed {seed}: {rows[-1]['curve'][-1]}")
    teacher = {"train": teacher_gains(train, settings), "validation": teacher_gains(validation, settings)}
    from experiments.plots import save_figure

    save_figure(plot(rows, _mean(teacher["validation"])), run.out.with_suffix(".svg"))
    lines = [*_about(settings, train, validation, shown), "", f"![curves]({run.out.with_suffix('.svg').name})"]
    sys.stdout.write(
        write_page(
            run.out, "Pass orders: imitation, then PPO", run.command, lines, _table(rows, teacher), run.rows_file
        )
    )


def _about(
    settings: ImitationSettings, train: PassOrderEnv, validation: PassOrderEnv, shown: Demonstrations
) -> list[str]:
    what = "op count" if settings.reward == "op-count" else "time that the analytic cost model predicts"
    return [
        f"`hlogym/PassOrder-v0`, backend {settings.backend}, reward {settings.reward}: the {what} of the default "
        "compilation over that of the agent's order. No program was timed. Agents are trained on "
        f"{len(train.suite.programs)} programs of training families and evaluated on "
        f"{len(validation.suite.programs)} of validation families, with at most {settings.instructions} instructions, "
        f"each {settings.timesteps} steps and {settings.seeds} seeds, lambda 1, returns relative to the mean of their "
        f"program. The teacher is a greedy search of {settings.teacher_budget} passes from {settings.starts} states "
        f"per program, from which {len(shown.actions)} decisions are imitated. Gains are those of the last network "
        "with its best action each time; means are geometric, with 95% intervals over programs and seeds. The search "
        "takes the better of its order and the default.",
    ]


def _table(rows: Sequence[Mapping[str, Any]], teacher: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    table = [["order of", "training programs", "validation programs", "median", "worst", "best", "slower by 1%"]]
    for name in AGENTS:
        mine = [r for r in rows if r["agent"] == name]
        table.append(_line(name, *(_summary([r[part] for r in mine]) for part in ("train", "validation"))))
    table.append(_line(TEACHER, *(_summary([teacher[part]]) for part in ("train", "validation"))))
    return table


def _summary(seeds: Sequence[Mapping[str, float]]) -> SpeedupSummary:
    return summarise({p: [[s[p]] for s in seeds] for p in seeds[0]})


def _line(name: str, train: SpeedupSummary, validation: SpeedupSummary) -> list[str]:
    means = [f"{s.mean.value:.3f}x [{s.mean.low:.3f}, {s.mean.high:.3f}]" for s in (train, validation)]
    v = validation
    return [name, *means, f"{v.median.value:.3f}x", f"{v.worst:.2f}x", f"{v.best:.2f}x", f"{v.slower:.1%}"]


def plot(rows: Sequence[Mapping[str, Any]], teacher: float) -> Figure:
    """Plot the mean speedup by step on training and on validation programs: the mean and the range of the seeds."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 3.6), layout="constrained")
    for column, (axes, title) in enumerate(zip(figure.subplots(1, 2), ("training", "validation"), strict=True), 1):
        for n, name in enumerate(AGENTS):
            curves = np.array([r["curve"] for r in rows if r["agent"] == name])
            if len(curves) and name == IMITATION:
                axes.axhline(curves[:, 0, column].mean(), color=f"C{n}", linestyle="--", label=name)
            elif len(curves):
                steps, values = curves[0, :, 0], curves[:, :, column]
                axes.plot(steps, values.mean(axis=0), color=f"C{n}", label=name)
                axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=f"C{n}", alpha=0.15)
        if title == "validation":
            axes.axhline(teacher, color="#555555", linestyle=":", label=TEACHER)
        axes.set_title(f"{title} programs")
        axes.set_xlabel("steps")
        axes.set_ylabel("over the default, geometric mean")
    figure.legend(*figure.axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


if __name__ == "__main__":
    with plain_errors():
        main()
