"""`hlogym train`: MaskablePPO, tracked in MLflow, checkpointed, continued after a kill."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

import env as environments
from agents.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from agents.export import export_policy
from agents.ppo import PPOSettings, baseline_of, make_ppo, network_of
from compiler.api import resolve_backend
from compiler.errors import UnknownNameError
from env.decision import DecisionEnv
from env.suites import load_suite
from experiments.config import TrainConfig
from experiments.console import error_console, progress, stdout
from experiments.plots import learning_curve, save_figure
from experiments.provenance import provenance
from experiments.report import read_progress
from experiments.run_folder import RunFolder, new_run, unfinished_run
from experiments.tracking import TrackedRun
from experiments.training_callback import TrainingCallback

__all__ = ["make_env", "policy_provenance", "settings_of", "start_or_resume", "train"]

AGENTS = ("maskable-ppo",)


def start_or_resume(config: TrainConfig, runs: Path, name: str | None, resume: bool) -> RunFolder:
    """See `hlogym train --help`; says where everything is when done."""
    if config.agent not in AGENTS:
        raise UnknownNameError("agent", config.agent, AGENTS)
    config = config.with_backend(resolve_backend(config.backend))
    run = unfinished_run(runs, name) if resume else None
    if resume and run is None:
        error_console.print("nothing to resume, so a new run starts")
    if run is None:
        make_env(config).close()  # names that are wrong are found before anything is written
        run = new_run(runs, name, config)
    else:
        config = run.config()
        error_console.print(f"resuming run {run.name}")
    uri, run_id = train(run, config)
    stdout.print(f"run       {run.path}\npolicy    {run.policy}\nMLflow    run {run_id} in {uri}", soft_wrap=True)
    return run


def make_env(config: TrainConfig, **more: Any) -> DecisionEnv:
    """The environment of a run.

    Raises:
        UnknownNameError: no such environment, or no such suite.
    """
    known = {f"{n}{m}-v0" for n in environments.ENVIRONMENTS for m in ("", "Measured")}
    short = config.env.removeprefix("env:").removeprefix("hlogym/")
    if short not in known:
        raise UnknownNameError("environment", config.env, (f"hlogym/{n}" for n in known))
    made = gym.make(f"hlogym/{short}", suite=config.suite, backend=config.backend, **more)
    return cast(DecisionEnv, made.unwrapped)


def settings_of(config: TrainConfig) -> PPOSettings:
    """The part of a run's settings that the agent takes."""
    return PPOSettings(
        config.rollout, config.batch, config.epochs, config.learning_rate, config.gamma, config.gae_lambda, config.clip,
        config.entropy, config.value, config.max_grad_norm, config.hidden, config.rounds, config.prior, config.seed,
    )  # fmt: skip


def train(run: RunFolder, config: TrainConfig) -> tuple[str, str]:
    """Train until the run's end, from its last checkpoint if it has one; the MLflow store and the run's id there."""
    environment = make_env(config)
    try:
        model = make_ppo(environment, settings_of(config))
        extra: dict[str, Any] = {}
        checkpoint = latest_checkpoint(run.checkpoints)
        if checkpoint is not None:
            extra = load_checkpoint(model, checkpoint)
            environment.np_random.bit_generator.state = extra["env_rng"]
            baseline_of(model).means.update(extra["means"])
            model.get_env()._reset_seeds()  # type: ignore[union-attr]  # else the first reset seeds it anew
        run.cut_progress(model.num_timesteps)
        with progress() as bar, TrackedRun(run.path.parent, run.name, run.state().get("run_id")) as tracked:
            run.write_state({"run_id": tracked.run_id, "finished": False})
            tracked.params(config.to_json())
            tracked.tags(provenance())
            task = bar.add_task(f"training {run.name}", total=config.timesteps, completed=model.num_timesteps)
            callback = TrainingCallback(
                run, config, environment, tracked, extra, lambda n: bar.update(task, completed=n)
            )
            left = config.timesteps - model.num_timesteps
            if left > 0 and not callback.out_of_time():
                model.learn(left, callback=callback, reset_num_timesteps=False)
            callback.finish(model)
            save_checkpoint(model, run.checkpoints, callback.extra())
            export_policy(network_of(model), run.policy, policy_provenance(config, model.num_timesteps))
            _log_artifacts(run, tracked)
            run.write_state({"run_id": tracked.run_id, "finished": True})
        return tracked.uri, tracked.run_id
    finally:
        environment.close()


def policy_provenance(config: TrainConfig, timesteps: int) -> dict[str, Any]:
    """What an exported policy says of its making."""
    facts = provenance()
    return {
        "trained": time.strftime("%Y-%m-%d"),
        "environment": config.env,
        "suite": config.suite,
        "programs": sorted(p.name for p in load_suite(config.suite).programs),
        "backend": config.backend,
        "timesteps": timesteps,
        "seed": config.seed,
        "commit": facts["commit"],
        "machine": facts["machine"],
    }


def _log_artifacts(run: RunFolder, tracked: TrackedRun) -> None:
    curve = learning_curve(read_progress(run.progress))
    if curve is not None:
        save_figure(curve, run.path / "learning.png")
        tracked.artifacts(run.path / "learning.png", "plots")
    for path, under in ((run.policy, "policy"), (run.plans, "plans"), (run.progress, "tables")):
        if path.exists():
            tracked.artifacts(path, under)
