"""Commands about learning: train, evaluate, export, report, demo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["register"]

Results = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path, typer.Option(help="Folder of training runs and of the local MLflow store.")]
Backend = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn.")]


def train(
    suite: Annotated[str | None, typer.Option(help="Suite or folder of HLO files; commas join several.")] = None,
    env: Annotated[str, typer.Option(help="Environment.")] = "hlogym/FusionMeasured-v0",
    agent: Annotated[str, typer.Option(help="maskable-ppo; pass orders also by a2c and dqn.")] = "maskable-ppo",
    timesteps: Annotated[
        int | None, typer.Option(help="Environment steps, rounded up to whole rollouts.", min=1)
    ] = None,
    minutes: Annotated[float, typer.Option(help="Stop after this time; 0: no limit.", min=0)] = 0,
    backend: Backend = "auto",
    seed: Seed = 0,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.", min=1)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the newest run that was cut short.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run; with --resume, which one.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting of experiments/config.py, as name=value.")
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Train an agent, tracked in MLflow.

    Example: hlogym train --suite train --env hlogym/FusionMeasured-v0 --timesteps 20000

    Pass orders: hlogym train --env hlogym/PassOrder-v0 --agent a2c --set reward=op-count
    """
    from experiments.config import TrainConfig
    from experiments.train import start_or_resume

    given: dict[str, Any] = {"suite": suite, "total_timesteps": timesteps, "checkpoint_every": checkpoint_every}
    config = replace(
        TrainConfig.defaults_for(env), agent=agent, minutes=minutes, backend=backend, seed=seed,
        **{key: value for key, value in given.items() if value is not None},
    )  # fmt: skip
    start_or_resume(config.changed(settings or []), runs, name, resume)


def evaluate(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of an exported policy.")],
    suite: Annotated[str | None, typer.Option(help="Suites, with commas between (default: test, or jax/test).")] = None,
    baselines: Annotated[str | None, typer.Option(help="Strategies to compare with.")] = None,
    budget: Annotated[
        int | None, typer.Option(help="Plans measured by each search (16), or passes it applies (300).", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Timings of the final comparison.", min=2)] = 15,
    backend: Backend = "auto",
    seed: Seed = 0,
    results: Results = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a policy with baselines at equal budgets, on programs it has not seen.

    A fusion policy is compared in measured time with none,priority,random; a pass order in op counts with
    random,greedy,beam and with fixed orders.

    Example: hlogym evaluate runs/my-run/policy --suite test
    """
    from compiler.learned.pass_order import LearnedPassOrder
    from experiments.learned import load_learned

    learned = load_learned(policy)
    names = None if baselines is None else baselines.split(",")
    if isinstance(learned, LearnedPassOrder):
        from experiments.pass_orders.command import evaluate_pass_order

        suites = (suite or "jax/test").split(",")
        evaluate_pass_order(learned, suites, names, budget or learned.budget + learned.finish, results, seed, as_json)
        return
    from experiments.evaluate import evaluate_policy

    names = ["none", "priority", "random"] if names is None else names
    evaluate_policy(policy, (suite or "test").split(","), names, budget or 16, rounds, backend, seed, results, as_json)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, its folder, or an MLflow run id.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the policy.")],
    runs: Runs = Path("runs"),
) -> None:
    """Write a run's policy as files that the compiler reads with NumPy alone.

    Example: hlogym export my-run -o policy
    """
    from experiments.export import export_run

    export_run(run, output, runs)


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("results/report.html"),
    results: Results = Path("results"),
    runs: Runs = Path("runs"),
) -> None:
    """Make one page with the tables and plots of the latest results.

    Example: hlogym report -o report.html
    """
    from experiments.report import report_latest

    report_latest(output, results, runs)


def demo(
    minutes: Annotated[float, typer.Option(help="Of training, at most.", min=0.05)] = 3.0,
    backend: Backend = "auto",
    folder: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
    seed: Seed = 0,
    budget: Annotated[int, typer.Option(help="Plans measured by each strategy that searches.", min=1)] = 12,
) -> None:
    """A tour in some minutes: compile, check, train on measured time, evaluate, export, and use the policy.

    Example: hlogym demo
    """
    from experiments.demo import run_demo

    run_demo(minutes, backend, folder, seed, budget)


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for name, function in (
        ("demo", demo), ("train", train), ("evaluate", evaluate), ("export", export), ("report", report),
    ):  # fmt: skip
        app.command(name, rich_help_panel="Learning")(function)
