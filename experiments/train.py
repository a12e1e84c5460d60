"""`hlogym train`: train an agent, track the run in MLflow, write checkpoints and resume from them."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint
from compiler.backends.registry import find_backend
from compiler.errors import ArgumentError, HlogymError, UnknownNameError
from compiler.learned.policy_folder import check_policy_target, is_policy_folder
from env.store import PlanStore, default_store_path
from experiments.config import TrainConfig
from experiments.console import error_console, progress, stdout
from experiments.interruption import Interruption
from experiments.learners import AGENTS, Learner, make_learner
from experiments.plots import learning_curve, save_figure
from experiments.provenance import provenance
from experiments.registry import registered_name
from experiments.report import meaning_of_speedup
from experiments.results import check_writable
from experiments.run_folder import (
    RunFolder,
    check_run_name,
    finished_run,
    new_run,
    read_progress,
    unfinished_run,
)
from experiments.run_lock import sole_trainer
from experiments.tracking import TrackedRun, check_store
from experiments.training_callback import TrainingCallback
from experiments.validation import Validation

__all__ = ["check_programs", "policy_provenance", "start_or_resume", "train"]


class EnvironmentLostError(HlogymError, RuntimeError):
    """A process of an environment that has ended, so that the training cannot continue."""


def start_or_resume(config: TrainConfig, runs: Path, name: str | None, resume: bool) -> RunFolder:
    """Run `hlogym train`; see its `--help`. Return the run's folder and print where its files are."""
    if config.agent not in AGENTS:
        raise UnknownNameError("agent", config.agent, AGENTS)
    check_run_name(name)
    config.check()
    backend = find_backend(config.backend)
    if backend.language is None:
        raise ArgumentError(f"backend {backend.name!r} compiles no kernels, so an agent cannot learn on it; use cpu")
    config = config.with_backend(backend.name)
    run = unfinished_run(runs, name) if resume else None
    if resume and run is None:
        done = None if name is None else finished_run(runs, name)
        if done is not None:  # a success, so that a script that resumes until success terminates
            stdout.print(f"run {done.name} is finished\nrun       {done.path}\npolicy    {done.policy}", soft_wrap=True)
            return done
        error_console.print("there is no run to resume; starting a new one")
    if run is None:
        # Check names, programs, folders and servers before creating the run's folder.
        check_writable(runs)
        learner = make_learner(config)
        with _closed_on_error(learner):
            _check_store(learner)
            check_store(runs)
            check_programs(learner)
            run = new_run(runs, name, config)
    else:
        config = run.config()
        config.check()
        check_writable(run.path)
        error_console.print(f"resuming run {run.name}")
        learner = make_learner(config)
        with _closed_on_error(learner):
            check_programs(learner)
    try:
        uri, run_id = train(run, config, learner)
    except KeyboardInterrupt as error:
        error_console.print(f"stopped; {_how_to_resume(run)}", soft_wrap=True)
        number = error.args[0] if error.args else signal.SIGINT
        raise SystemExit(128 + number) from None
    except HlogymError as error:
        error.add_note(f"After fixing the cause, {_how_to_resume(run)}.")
        raise
    stdout.print(f"run       {run.path}\npolicy    {run.policy}\nMLflow    run {run_id} in {uri}", soft_wrap=True)
    stdout.print(f"training  {_summary(run)}", soft_wrap=True)
    return run


def _summary(run: RunFolder) -> str:
    """Return how long the agent was trained, and the speedup of its last rollout with complete episodes."""
    points = read_progress(run.progress)
    if not points:
        return "no rollouts"
    done = f"{points[-1].get('episodes', 0)} episodes, {points[-1]['timesteps']} steps"
    speedups = [p["speedup"] for p in points if p["speedup"] is not None]
    return f"{done}; speedup in the last rollout: {speedups[-1]:.2f}x" if speedups else f"{done}; no complete episode"


def check_programs(learner: Learner) -> None:
    """Compile all programs and, if rewards are measured, time their reference plans, before training begins.

    Raises:
        ProgramError: some programs cannot be used; the message lists them with the reasons.
        MeasurementError: nothing can be measured on this machine.
    """
    programs = learner.programs
    what = "measuring references" if learner.measured else "compiling programs"
    with progress() as bar:
        task = bar.add_task(what, total=len(programs))
        learner.check_programs(lambda program: bar.update(task, advance=1, description=f"{what}: {program.name}"))


def _how_to_resume(run: RunFolder) -> str:
    runs = "" if run.path.parent == Path("runs") else f" --runs {run.path.parent}"
    kept = latest_checkpoint(run.checkpoints)
    where = "from its last checkpoint" if kept is not None else "from the beginning, because it has no checkpoint yet"
    return f"hlogym train --resume --name {run.name}{runs} continues it {where}"


@contextmanager
def _closed_on_error(learner: Learner) -> Iterator[None]:
    try:
        yield
    except BaseException:
        learner.close()
        raise


def train(run: RunFolder, config: TrainConfig, learner: Learner | None = None) -> tuple[str, str]:
    """Train a run to its end, starting from its last checkpoint if there is one.

    Args:
        run: the folder of the run.
        config: the settings of the run.
        learner: the learner, with its programs checked; it is closed at the end. None: it is made and checked here.

    Returns:
        The URI of the MLflow store and the id of the run there.

    Raises:
        ProgramError: some of the programs cannot be used.
        MeasurementError: measurements fail, so that there is nothing to learn from. The last checkpoint is kept.
        KeyboardInterrupt: a signal stopped the training; its number is the argument. A checkpoint was written if the
            agent's parameters were consistent.
    """
    # Explored states are millions of long-lived objects; scanning them took a third of the training time.
    gc.set_threshold(200_000, 20, 100)
    # Exclude the objects that exist now, such as those of torch and MLflow, from garbage collection.
    gc.freeze()
    if learner is None:
        learner = make_learner(config)
        with _closed_on_error(learner):
            check_programs(learner)
    try:
        _check_store(learner)
        with sole_trainer(run):
            return _train(run, config, learner)
    finally:
        learner.close()
        gc.unfreeze()


def _train(run: RunFolder, config: TrainConfig, learner: Learner) -> tuple[str, str]:
    check_policy_target(run.policy)
    model = learner.model
    extra: dict[str, Any] = {}
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint is not None:
        extra = load_checkpoint(model, checkpoint, learner.features)
        with _damage_in(checkpoint):
            learner.restore(extra)
            for name, kind in (("episodes", int), ("seconds", int | float), ("timesteps", int)):
                if not isinstance(extra.get(name, 0), kind):
                    raise ValueError(f"{name} is {extra[name]!r:.80}")
    run.cut_progress(model.num_timesteps)
    with progress() as bar, Interruption() as interruption, _tracked(run) as tracked:
        run.write_state({"run_id": tracked.run_id, "finished": False})
        tracked.params(config.to_json())
        tracked.tags(provenance())
        tracked.dataset(learner.programs, config.suite, "training")
        task = bar.add_task(f"training {run.name}", total=config.total_timesteps, completed=model.num_timesteps)
        with _damage_in(checkpoint):
            validation = Validation(
                run, config, learner, tracked, extra, interruption, lambda: policy_provenance(config, learner)
            )
            callback = TrainingCallback(
                run, config, learner, tracked, extra, lambda n: bar.update(task, completed=n), interruption,
                validation.extra,
            )  # fmt: skip
        with contextlib.closing(validation):
            _learn(learner, config, callback, run, interruption, validation)
        callback.finish(model)
        callback.check_measured()
        save_checkpoint(model, run.checkpoints, learner.features, callback.extra())
        learner.export(run.policy, policy_provenance(config, learner))
        _log_artifacts(run, tracked)
        _register(run, config, tracked)
    # Only after MLflow has recorded the end; a kill in between would leave the run unfinished in MLflow.
    run.write_state({"run_id": tracked.run_id, "finished": True})
    return tracked.uri, tracked.run_id


def _check_store(learner: Learner) -> None:
    """Raise StoreError if times are to be measured and the store of kernel times cannot be opened."""
    if learner.measured:
        PlanStore(default_store_path()).close()


@contextmanager
def _damage_in(checkpoint: Path | None) -> Iterator[None]:
    """Convert errors caused by damaged state in a checkpoint to CheckpointError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"cannot resume from {checkpoint}: {error!r} in its state; move it away to resume from the one before"
        ) from error


def _tracked(run: RunFolder) -> TrackedRun:
    return TrackedRun(run.path.parent, run.name, run.state().get("run_id"))


def _learn(
    learner: Learner,
    config: TrainConfig,
    callback: TrainingCallback,
    run: RunFolder,
    interruption: Interruption,
    validation: Validation,
) -> None:
    """Train for the remaining steps; if a signal interrupts it in a consistent state, write a checkpoint.

    Raises:
        KeyboardInterrupt: a signal stopped the training.
        EnvironmentLostError: a process of an environment has ended.
    """
    model = learner.model
    left = config.total_timesteps - model.num_timesteps
    if left <= 0 or callback.out_of_time():
        return
    try:
        evaluation = () if validation.callback is None else (validation.callback,)
        model.learn(left, callback=[callback, *evaluation], reset_num_timesteps=False)
    except (EOFError, ConnectionError) as error:
        if config.vec_env != "subproc":
            raise
        raise EnvironmentLostError(
            "a process of an environment has ended, perhaps killed because memory ran out; use fewer environments"
        ) from error
    except KeyboardInterrupt:
        if interruption.consistent:
            callback.finish(model)
            save_checkpoint(model, run.checkpoints, learner.features, callback.extra())
        raise


def policy_provenance(config: TrainConfig, learner: Learner) -> dict[str, Any]:
    """Return the provenance to store in an exported policy."""
    facts = provenance()
    return {
        "trained": time.strftime("%Y-%m-%d"),
        "environment": config.env,
        "suite": config.suite,
        "programs": sorted(p.name for p in learner.programs),
        "backend": config.backend,
        "timesteps": learner.model.num_timesteps,
        "seed": config.seed,
        "commit": facts["commit"],
        "machine": facts["machine"],
    }


def _register(run: RunFolder, config: TrainConfig, tracked: TrackedRun) -> None:
    """Register the policy with the best validation result, or the last one if there was no evaluation."""
    name = registered_name(config.env) if config.registered_model == "auto" else config.registered_model
    if name == "none":
        return
    which = run.best if is_policy_folder(run.best) else run.policy
    tags = {"run": run.name, "policy": which.name, "environment": config.env, "suite": config.suite}
    tracked.model(which, name, tags)


def _log_artifacts(run: RunFolder, tracked: TrackedRun) -> None:
    curve = learning_curve(read_progress(run.progress), meaning_of_speedup(run.config()))
    if curve is not None:
        save_figure(curve, run.path / "learning.png")
        tracked.artifacts(run.path / "learning.png", "plots")
    for path, under in ((run.policy, "policy"), (run.best, "best"), (run.plans, "plans"), (run.progress, "tables")):
        if path.exists():
            tracked.artifacts(path, under)
