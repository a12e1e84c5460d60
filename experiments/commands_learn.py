"""Commands for learning: train, evaluate, export, policies, report, demo, suites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.command_options import (
    POLICIES,
    SUITES,
    WORKERS,
    AnswerFile,
    Backend,
    Command,
    Json,
    Results,
    Runs,
    Seed,
    Workers,
    output_option,
)

__all__ = ["register"]


def train(
    suite: Annotated[
        str | None,
        typer.Option(
            help=f"Programs to train on, separated by commas: {SUITES}. Default: train; for PassOrder, jax/train,train."
        ),
    ] = None,
    env: Annotated[str, typer.Option(help="Environment id.")] = "hlogym/FusionMeasured-v0",
    agent: Annotated[
        str | None, typer.Option(help="maskable-ppo (the default); for PassOrder also a2c or dqn.")
    ] = None,
    timesteps: Annotated[
        int | None,
        typer.Option(
            help="Total environment steps, rounded up to whole rollouts. Default: 20000; for PassOrder, 300000.", min=1
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time limit in minutes; 0, the default, means no limit.", min=0)
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="cpu, cuda, or auto (the default: cuda if there is a GPU, otherwise cpu).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of all random numbers. Default: 0.", min=0, max=2**32 - 1)
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(help="Environment steps between checkpoints. Default: 512; for PassOrder, 16384.", min=1),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the newest unfinished run, or the one given by --name.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the run. Default: the environment's name and the time.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change another setting, such as learning_rate=1e-4; may be repeated. The settings are the fields of "
            "TrainConfig in experiments/config.py.",
        ),
    ] = None,
    hyperparameters: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with settings by environment id, as in RL Zoo. Options of the command line precede it."
        ),
    ] = None,
    workers: Annotated[str | None, typer.Option(metavar="WHERE", help=WORKERS)] = None,
    runs: Runs = Path("runs"),
    output: Annotated[
        Path | None, output_option("Also export the policy to this folder, as `hlogym export` does.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train an agent and track the run in MLflow.

    The run ends with the results of its best policy on validation programs, beside those of the compiler's rules, and
    with the command to type next.

    Example: hlogym train --suite train --env hlogym/FusionMeasured-v0 --timesteps 20000

    Example: hlogym train --env hlogym/PassOrder-v0 --agent a2c --set reward=op-count

    Example: hlogym train --env hlogym/Fusion-v0 --hyperparameters hyperparameters.yaml --set vec_env=subproc

    Example: hlogym train --env hlogym/FusionMeasured-v0 --workers ray://head:10001#8

    With N workers there are N environments, each in a process of its own, with a worker of its own.
    """
    from env.workers import parse_workers
    from experiments.config import TrainConfig
    from experiments.hyperparameters import read_hyperparameters
    from experiments.train_command import start_or_resume

    config = TrainConfig.defaults_for(env)
    if hyperparameters is not None:
        config = read_hyperparameters(hyperparameters, config)
    given: dict[str, Any] = {
        "suite": suite, "agent": agent, "total_timesteps": timesteps, "minutes": minutes, "backend": backend,
        "seed": seed, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    if workers is not None:
        where = parse_workers(workers)
        given["workers"] = str(replace(where, count=1))
        if where.count > 1:
            given |= {"environments": where.count, "vec_env": "subproc"}
    config = replace(config, **{key: value for key, value in given.items() if value is not None})
    start_or_resume(config.changed(settings or []), runs, name, resume, output, as_json)


def tune_agent(
    env: Annotated[str, typer.Option(help="Environment id.")] = "hlogym/Fusion-v0",
    agent: Annotated[str, typer.Option(help="maskable-ppo; for PassOrder also a2c or dqn.")] = "maskable-ppo",
    suite: Annotated[
        str | None, typer.Option(help=f"Programs to train on: {SUITES}. Default: as in `hlogym train`.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of trainings.", min=1)] = 20,
    timesteps: Annotated[int, typer.Option(help="Environment steps of each training.", min=1)] = 10_000,
    evaluations: Annotated[
        int, typer.Option(help="Evaluations per training, after each of which it may be stopped.", min=1)
    ] = 4,
    output: Annotated[Path, output_option("Write the best settings to this file (YAML).")] = Path(
        "hyperparameters.yaml"
    ),
    name: Annotated[
        str | None, typer.Option(help="Name of the study; one that exists is continued. Default: a new one.")
    ] = None,
    backend: Backend = "auto",
    seed: Seed = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting that is not searched.")
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Search for good hyperparameters with Optuna, by the mean return on the validation programs.

    Example: hlogym tune-agent --env hlogym/Fusion-v0 --trials 20 -o best.yaml

    Example: hlogym train --env hlogym/Fusion-v0 --hyperparameters best.yaml
    """
    from experiments.config import TrainConfig
    from experiments.hyperparameter_search import search_hyperparameters

    config = TrainConfig.defaults_for(env)
    config = replace(
        config, agent=agent, total_timesteps=timesteps, backend=backend, seed=seed, suite=suite or config.suite
    )
    search_hyperparameters(config, settings or [], trials, evaluations, output, name, runs, as_json)


def evaluate(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help=f"Policy: {POLICIES}",
        ),
    ],
    suite: Annotated[
        str | None,
        typer.Option(help=f"Programs, separated by commas: {SUITES}. Default: test; for a pass order, jax/test."),
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated strategies to compare with: fusion policies, and searches with options as in "
            "'local{model=analytic}'. Default: none,priority,random; for a pass order, random,greedy,beam."
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            help="Plans that each search measures per program. Default: 16. For a pass order, the passes that it and "
            "each search apply per program. Default: the limit stored with the pass order.",
            min=1,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Number of interleaved timings per strategy; not used for a pass order.", min=2)
    ] = 15,
    backend: Backend = "auto",
    seed: Seed = 0,
    reward: Annotated[
        str,
        typer.Option(
            help="What plans are compared by: measured-time, estimated-time (the cost model), emulated-time (predicted "
            "for a GPU, without one), or auto (emulated-time if the policy was trained by it, otherwise "
            "measured-time); not used for a pass order."
        ),
    ] = "auto",
    workers: Workers = "local",
    results: Results = Path("results"),
    runs: Runs = Path("runs"),
    output: Annotated[
        Path | None, output_option("Also write the results to this file: Markdown if it ends in .md, else JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a policy with baselines that have the same budget, on held-out programs.

    A fusion policy is compared by measured time per call, or by predicted times of a GPU if it was trained by these; a
    pass order is compared by op counts, also with fixed pass orders.

    The sealed test programs of the suite corpus are opened; each opening is recorded in test_openings.jsonl in the
    folder of results, in the run's folder and in the user's cache folder.

    Example: hlogym evaluate my-run --suite test

    Example: hlogym evaluate runs/my-run/policy --suite corpus/test -o table.md

    Example: hlogym evaluate models:/hlogym-fusion/1

    Example: hlogym evaluate runs/my-run/policy --suite test --workers ray#4
    """
    from compiler.learned.pass_order import LearnedPassOrder
    from compiler.support.options import split_specs
    from env.workers import parse_workers
    from experiments.learned import load_learned, policy_folder
    from experiments.opening import opened_for_evaluation
    from experiments.policy_arguments import find_policy

    where = parse_workers(workers)
    given = find_policy(policy, runs)
    folder = policy_folder(given)
    learned = None if folder is None else load_learned(folder)
    names = None if baselines is None else split_specs(baselines)
    if isinstance(learned, LearnedPassOrder):
        from experiments.pass_orders.command import evaluate_pass_order

        suites, most = (suite or "jax/test").split(","), budget or learned.budget + learned.finish
        with opened_for_evaluation(Path(given), results):
            evaluate_pass_order(learned, suites, names, most, results, seed, as_json, runs, policy, output)
        return
    from experiments.evaluate import evaluate_policy, reward_of_policy

    if reward == "auto":
        reward = reward_of_policy({} if learned is None else learned.provenance, backend)
    names = ["none", "priority", "random"] if names is None else names
    suites = (suite or "test").split(",")
    with opened_for_evaluation(Path(given) if folder is None else folder, results):
        evaluate_policy(
            given if folder is None else folder, suites, names, budget or 16, rounds, backend, seed, results, as_json,
            runs, policy, where, output, reward,
        )  # fmt: skip


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Name or folder of a run, an MLflow run id, models:/NAME/VERSION of MLflow's registry, or the folder "
            "of a policy.",
        ),
    ],
    output: Annotated[Path, output_option("Folder to write the policy to.")],
    best: Annotated[
        bool | None,
        typer.Option(
            "--best/--last",
            help="The policy with the best validation result, or the last one. Default: the best, if the run has one.",
        ),
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Export the policy of a run to a folder that the compiler loads without PyTorch.

    Example: hlogym export my-run -o policy
    """
    from experiments.export import export_run

    export_run(run, output, runs, best, as_json)


def policies(output: AnswerFile = None, as_json: Json = False) -> None:
    """List the policies that --policy accepts by name, with their parts and versions.

    Example: hlogym policies
    """
    from experiments.policies import list_policies

    list_policies(as_json, output)


def report(
    output: Annotated[Path, output_option("Write the page to this file (HTML).")] = Path("results/report.html"),
    results: Results = Path("results"),
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write one HTML page with tables and plots of the latest evaluation and training run.

    Example: hlogym report -o report.html
    """
    from experiments.report import report_latest

    report_latest(output, results, runs, as_json)


def demo(
    minutes: Annotated[float, typer.Option(help="Maximum training time in minutes.", min=0.05)] = 3.0,
    backend: Backend = "auto",
    folder: Annotated[Path, typer.Option(help="Folder for all files that the demo writes.")] = Path("runs/demo"),
    seed: Seed = 0,
    budget: Annotated[int, typer.Option(help="Plans that each search measures per program.", min=1)] = 12,
    output: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """Run every step once, in about ten minutes: compile, check, train on measured time, evaluate, export, report.

    Example: hlogym demo
    """
    from experiments.demo import run_demo

    run_demo(minutes, backend, folder, seed, budget, output, as_json)


def suites(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, build or check.")] = "list",
    output: Annotated[
        Path | None,
        output_option(
            "list, check: also write the table to this file, Markdown if it ends in .md, else JSON. build: folder to "
            "write to; default: the user's cache folder."
        ),
    ] = None,
    families: Annotated[str, typer.Option(help="build: comma-separated families; needs --output. Default: all.")] = "",
    sample: Annotated[int, typer.Option(help="check: number of programs, 0 for all.", min=0)] = 120,
    shard: Annotated[str, typer.Option(metavar="I/N", help="check: take every N-th program from the I-th on.")] = "0/1",
    longest: Annotated[
        float, typer.Option(help="check: leave out programs whose estimated time is longer, in seconds.", min=0)
    ] = 1.0,
    state: Annotated[
        Path | None, typer.Option(help="check: file to which results are added; a later check continues from it.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="check: write the table to this file.", hidden=True)] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """List the suites, build the suite corpus, or check its programs against the interpreter.

    Building lowers thousands of programs from JAX and PyTorch into the user's cache folder, which takes some minutes.
    An interrupted build continues where it stopped.

    Example: hlogym suites build

    Example: hlogym suites check --sample 0 --shard 0/4 --state checked.jsonl
    """
    from experiments import suites as command

    if action == "list":
        command.list_suites(as_json, output)
    elif action == "build":
        if families and output is None:
            raise typer.BadParameter("--families makes a part of the suite; name a folder for it with --output")
        command.build_programs(output, [f for f in families.split(",") if f], as_json)
    elif action == "check":
        number, slash, count = shard.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise typer.BadParameter(f"--shard is I/N with I below N, such as 0/4, not {shard!r}")
        command.check_programs(sample, (int(number), int(count)), longest, output or markdown, state, seed, as_json)
    else:
        raise typer.BadParameter(f"there is no action {action!r}; use list, build or check")


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    for name, function in (
        ("demo", demo), ("train", train), ("tune-agent", tune_agent), ("evaluate", evaluate), ("export", export),
        ("policies", policies), ("report", report), ("suites", suites),
    ):  # fmt: skip
        app.command(name, rich_help_panel="Learning", cls=Command)(function)
