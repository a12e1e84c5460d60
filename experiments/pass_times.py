"""Pass orders in time and in op counts: agents and searches that make one of them small, compared by both.

    python -m experiments.pass_times [--config experiments/configs/pass_times.yaml] [--out results/passes/times.md]

An agent of `hlogym/PassOrder-v0` is trained for each reward and seed; a search looks for the order with the fewest ops,
or with the least estimated time, on each program. What each order leaves is compiled as `compile` continues: default
passes, loops inside one kernel, default fusion. Op counts, estimated and measured times are relative to those of the
default compilation of the same program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agents.pass_agents import PASS_AGENTS, learned_order, make_pass_agent
from agents.pass_search import PASS_SEARCHES, Score, search_order
from compiler.analysis.cost_model import CostModel, module_cost
from compiler.backends.registry import find_backend
from compiler.errors import UnknownNameError
from compiler.ir import HloModule
from compiler.learned.pass_order import LearnedPassOrder
from compiler.learned.pass_states import PassState, default_pass_actions
from compiler.passes.infrastructure.base import op_count
from compiler.passes.pipelines.given import Pipeline
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.pass_order import PassOrderEnv
from env.rewards import REWARDS
from env.store import PlanStore
from env.suites import ManifestError, Program, load_suite
from env.summaries import SpeedupSummary, summarise
from experiments.config import TrainConfig
from experiments.module_command import plain_errors
from experiments.settings_file import read_experiment
from experiments.yardstick.rows import Row, collect, write_page

if TYPE_CHECKING:
    from env.statistics import Interval

__all__ = ["PassTimeSettings", "main", "order_row", "scores", "trained"]

PAGE = Path("results/passes/times.md")
FIGURES = ("ops", "estimated", "measured")
"""What is compared, each as how many times less than that of the default compilation."""


@dataclass(frozen=True)
class PassTimeSettings:
    """The settings of the experiment, as its configuration file has them.

    Attributes:
        train: comma-separated suites that agents learn on.
        suite: suites on which orders are compared.
        programs: number of programs of these; 0: all.
        rewards: names of rewards, for each of which agents are trained.
        agent: maskable-ppo, a2c or dqn.
        timesteps: of each training.
        seeds: number of trainings per reward, and of runs of each search.
        applications: passes that an agent applies per program.
        searches: names in PASS_SEARCHES.
        search_budget: passes that a search applies per program.
        measure: whether the programs are timed.
        backend: the backend to compile for.
    """

    train: str = "jax/train"
    suite: str = "jax/validation"
    programs: int = 0
    rewards: tuple[str, ...] = ("op-count", "estimated-time")
    agent: str = "maskable-ppo"
    timesteps: int = 50_000
    seeds: int = 3
    applications: int = 150
    searches: tuple[str, ...] = ("random", "greedy", "beam")
    search_budget: int = 300
    measure: bool = True
    backend: str = "cpu"


def trained(settings: PassTimeSettings, reward: str, seed: int) -> LearnedPassOrder:
    """Train an agent for a reward and return its pass order."""
    env = PassOrderEnv(settings.train, reward=reward, max_steps=settings.applications, backend=settings.backend)
    config = replace(TrainConfig.defaults_for("hlogym/PassOrder-v0"), seed=seed, agent=settings.agent)
    agent = make_pass_agent(settings.agent, [env], config)
    agent.learn(settings.timesteps)
    order = learned_order(agent, env, {})
    env.close()
    return order


def scores(settings: PassTimeSettings) -> Mapping[str, Score]:
    """Return what searches make small, by name."""
    model = CostModel(find_backend(settings.backend).device_model())

    def seconds(state: PassState) -> float:
        return module_cost(state.module, model).seconds

    return {"op-count": lambda state: state.ops, "estimated-time": seconds}


def _compiled(module: HloModule, backend: str, order: Pipeline) -> tuple[CompilationSession, int]:
    """Return a compilation that begins with an order, and the op count before fusion."""
    session = CompilationSession(module, backend=backend)
    if order is not None:
        session.run_passes(order)
    session.run_passes()
    ops = op_count(session.module)
    session.run_loop_policy()
    session.run_fusion_policy()
    return session, ops


def order_row(
    measurer: Measurer | None,
    program: Program,
    settings: PassTimeSettings,
    orders: Mapping[str, Sequence[LearnedPassOrder]],
) -> Row:
    """Return for each contender a list of gains per seed; those of the default compilation are 1.

    Raises:
        HlogymError: the program cannot be compiled or measured.
    """
    module = parse(program.text(), filename=str(program.path))
    default, default_ops = _compiled(module, settings.backend, None)
    if measurer is not None:
        measurer.measure_reference(program)
    contenders: dict[str, list[Pipeline]] = {f"agent, {name}": list(each) for name, each in orders.items()}
    actions = default_pass_actions()
    for search in settings.searches:
        for what, score in scores(settings).items():
            for seed in range(settings.seeds):
                found = search_order(search, module, actions, score, settings.search_budget, seed)
                passes = [actions[a] for a in found.actions]
                contenders.setdefault(f"{search} search, {what}", []).append(passes)
    row: dict[str, list[dict[str, float]]] = {}
    for name, each in contenders.items():
        for order in each:
            session, ops = _compiled(module, settings.backend, order)
            gains = {"ops": max(default_ops, 1) / max(ops, 1)}
            gains["estimated"] = max(default.cost().seconds, 1e-12) / max(session.cost().seconds, 1e-12)
            if measurer is not None:
                found_time = measurer.measure(program, session.plan)
                if found_time.seconds is not None:
                    gains["measured"] = found_time.speedup
            row.setdefault(name, []).append(gains)
    return {"orders": row}


def summaries(rows: Sequence[Row]) -> dict[str, dict[str, SpeedupSummary]]:
    """Return for each contender the summary of each figure that is known for some programs."""
    whole = [r for r in rows if "orders" in r]
    found: dict[str, dict[str, SpeedupSummary]] = {}
    for name in dict.fromkeys(n for r in whole for n in r["orders"]):
        for figure in FIGURES:
            by_program = {r["program"]: [[g[figure]] for g in r["orders"].get(name, ()) if figure in g] for r in whole}
            known = {p: seeds for p, seeds in by_program.items() if seeds}
            if known:
                found.setdefault(name, {})[figure] = summarise(known)
    return found


def _shown(value: Interval) -> str:
    return f"{value.value:.3f}x [{value.low:.3f}, {value.high:.3f}]"


def _table(rows: Sequence[Row]) -> list[list[str]]:
    table = [["order", "fewer ops", "estimated speedup", "measured speedup", "slower, measured"]]
    for name, figures in summaries(rows).items():
        cells = [_shown(figures[f].mean) if f in figures else "-" for f in FIGURES]
        slower = f"{figures['measured'].slower:.0%}" if "measured" in figures else "-"
        table.append([name, *cells, slower])
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    run = read_experiment("pass_times", __doc__ or "", PassTimeSettings, lambda _: PAGE, arguments)
    settings = run.settings
    for what, names, known in (
        ("reward", settings.rewards, REWARDS), ("search", settings.searches, PASS_SEARCHES),
        ("agent", (settings.agent,), PASS_AGENTS),
    ):  # fmt: skip
        for name in names:
            if name not in known:
                raise UnknownNameError(what, name, known)
    programs = load_suite(settings.suite).programs[: settings.programs or None]
    if any(p.split == "test" for p in programs):
        held_out = f"{settings.suite} has programs held out for tests"
        raise ManifestError(f"{held_out}; `hlogym evaluate` compares orders on them")
    orders: dict[str, list[LearnedPassOrder]] = {}
    for reward in settings.rewards:
        for seed in range(settings.seeds if settings.timesteps else 0):
            orders.setdefault(reward, []).append(trained(settings, reward, seed))
            sys.stderr.write(f"trained for {reward}, seed {seed}\n")
    measurer = Measurer(PlanStore(":memory:"), MeasurerOptions(backend=settings.backend)) if settings.measure else None
    try:
        rows = collect(
            run.rows_file, run.stored_settings, programs,
            partial(order_row, measurer, settings=settings, orders=orders), len(programs),
        )  # fmt: skip
    finally:
        if measurer is not None:
            measurer.close()
    failed = [f"- left out: {r['program']}: {r['failure']}" for r in rows if "failure" in r]
    learned = f"agents ({settings.agent}) learned on {settings.train} for {settings.timesteps:,} steps; "
    lines = [
        f"{sum('orders' in r for r in rows)} programs of {settings.suite}, {settings.seeds} seeds; "
        f"{learned if settings.timesteps else ''}searches applied {settings.search_budget} passes per program. "
        "Geometric means with 95% intervals over programs and seeds of how many times less than by the default "
        "compilation: op count before fusion, estimated time, measured time (a difference that does not pass the gate "
        "is 1).",
        "",
        *failed,
    ]
    sys.stdout.write(
        write_page(run.out, "Pass orders in time and in op counts", run.command, lines, _table(rows), run.rows_file)
    )


if __name__ == "__main__":
    with plain_errors():
        main()
