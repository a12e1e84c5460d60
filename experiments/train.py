"""The training of one run: train an agent, track the run in MLflow, write checkpoints and resume from them."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint
from compiler.errors import HlogymError
from compiler.learned.policy_folder import check_policy_target, is_policy_folder
from env.store import PlanStore, default_store_path
from env.suites import load_suite
from experiments.config import TrainConfig
from experiments.console import progress
from experiments.interruption import Interruption
from experiments.learners import Learner, make_learner
from experiments.plots import learning_curve, save_figure
from experiments.provenance import provenance
from experiments.registry import registered_name
from experiments.report import meaning_of_speedup
from experiments.run_folder import (
    RunFolder,
    read_progress,
)
from experiments.run_lock import sole_trainer
from experiments.tracking import TrackedRun
from experiments.training_callback import TrainingCallback
from experiments.validation import Validation

__all__ = ["check_plan_store", "check_programs", "closed_on_error", "policy_provenance", "train"]


class EnvironmentLostError(HlogymError, RuntimeError):
    """A process of an environment that has ended, so that the training cannot continue."""


def check_programs(learner: Learner, config: TrainConfig) -> None:
    """Compile all programs and, if rewards are measured, time their reference plans, before training begins.

    The validation programs are only read.

    Raises:
        UnknownNameError, ManifestError: the suite of the validation programs cannot be used.
        ProgramError: some programs cannot be used; the message lists them with the reasons.
        MeasurementError: nothing can be measured on this machine.
    """
    if config.eval_freq > 0:
        load_suite(config.eval_suite)
    programs = learner.programs
    what = "measuring references" if learner.measured else "compiling programs"
    with progress() as bar:
        task = bar.add_task(what, total=len(programs))
        learner.check_programs(lambda program: bar.update(task, advance=1, description=f"{what}: {program.name}"))


@contextmanager
def closed_on_error(learner: Learner) -> Iterator[None]:
    """Close a learner if the block raises an error."""
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
        with closed_on_error(learner):
            check_programs(learner, config)
    try:
        check_plan_store(learner)
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
                run, config, learner, tracked, extra,
                lambda n: bar.update(task, completed=n, so_far=_so_far(callback, validation)), interruption,
                validation.extra,
            )  # fmt: skip
        with contextlib.closing(validation):
            _learn(learner, config, callback, run, interruption, validation)
            callback.finish(model)
            callback.check_measured()
            save_checkpoint(model, run.checkpoints, learner.features, callback.extra())
            bar.update(task, description=f"validating {run.name}")
            interruption.consistent = True  # what was learned is saved
            interruption.raise_pending()
            validation.finish()
            interruption.consistent = False
        learner.export(run.policy, policy_provenance(config, learner))
        _log_artifacts(run, tracked)
        _register(run, config, tracked)
    # Only after MLflow has recorded the end; a kill in between would leave the run unfinished in MLflow.
    registered = {} if tracked.registered is None else {"registered": tracked.registered}
    run.write_state({"run_id": tracked.run_id, "finished": True, **registered})
    return tracked.uri, tracked.run_id


def check_plan_store(learner: Learner) -> None:
    """Raise StoreError if times are to be measured and the store of kernel times cannot be opened."""
    if learner.measured:
        PlanStore(default_store_path()).close()


@contextmanager
def _damage_in(checkpoint: Path | None) -> Iterator[None]:
    """Convert errors caused by damaged state in a checkpoint to CheckpointError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if checkpoint is None or isinstance(error, HlogymError):  # it has another cause, and says so
            raise
        raise CheckpointError(
            f"cannot resume from {checkpoint}: {error!r} in its state; move it away to resume from the one before"
        ) from error


def _so_far(callback: TrainingCallback, validation: Validation) -> str:
    """Return what the progress bar says of the training: the latest speedups."""
    named = (("speedup", callback.speedup), ("validation", validation.speedup))
    return ", ".join(f"{name} {value:.2f}x" for name, value in named if value is not None)


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
    """Train for the remaining steps; if a signal or an error ends it in a consistent state, write a checkpoint.

    Raises:
        HlogymError: an environment has failed.
        KeyboardInterrupt: a signal stopped the training.
        EnvironmentLostError: a process of an environment has ended.
    """
    model = learner.model
    left = config.total_timesteps - model.num_timesteps
    if left <= 0 or callback.out_of_time():
        return

    def ends() -> bool:
        return model.num_timesteps >= config.total_timesteps or callback.out_of_time()

    try:
        model.learn(left, callback=[callback, *validation.callbacks(ends)], reset_num_timesteps=False)
    except KeyboardInterrupt:
        if interruption.consistent:
            _save(learner, callback, run)
        raise
    except (HlogymError, EOFError, ConnectionError) as error:
        if interruption.consistent and not callback.watch.doubtful:
            with contextlib.suppress(HlogymError):  # the first error is the cause
                _save(learner, callback, run)
        if config.vec_env != "subproc" or isinstance(error, HlogymError):
            raise
        raise EnvironmentLostError(
            "a process of an environment has ended, perhaps killed because memory ran out; use fewer environments"
        ) from error


def _save(learner: Learner, callback: TrainingCallback, run: RunFolder) -> None:
    callback.finish(learner.model)
    save_checkpoint(learner.model, run.checkpoints, learner.features, callback.extra())


def policy_provenance(config: TrainConfig, learner: Learner) -> dict[str, Any]:
    """Return the provenance to store in an exported policy."""
    facts = provenance()
    return {
        "trained": time.strftime("%Y-%m-%d"),
        "environment": config.env,
        "suite": config.suite,
        "programs": sorted(p.name for p in learner.programs),
        "backend": config.backend,
        "reward": config.plan_reward,
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
