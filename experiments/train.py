"""`hlogym train`: an agent, tracked in MLflow, checkpointed, continued after a kill."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError, UnknownNameError
from compiler.learned.policy_folder import check_policy_target
from env.store import KernelStore, default_store_path
from experiments.config import TrainConfig
from experiments.console import error_console, progress, stdout
from experiments.interruption import Interruption
from experiments.learners import AGENTS, Learner, make_learner
from experiments.plots import learning_curve, save_figure
from experiments.provenance import provenance
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

__all__ = ["check_programs", "policy_provenance", "start_or_resume", "train"]


def start_or_resume(config: TrainConfig, runs: Path, name: str | None, resume: bool) -> RunFolder:
    """See `hlogym train --help`; says where everything is when done."""
    if config.agent not in AGENTS:
        raise UnknownNameError("agent", config.agent, AGENTS)
    check_run_name(name)
    config.check()
    config = config.with_backend(find_backend(config.backend).name)
    run = unfinished_run(runs, name) if resume else None
    if resume and run is None:
        done = None if name is None else finished_run(runs, name)
        if done is not None:  # so that whoever resumes until it succeeds comes to an end
            stdout.print(f"run {done.name} is finished\nrun       {done.path}\npolicy    {done.policy}", soft_wrap=True)
            return done
        error_console.print("nothing to resume, so a new run starts")
    if run is None:
        # What is wrong with names, programs, folders and servers is found before anything is written.
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
        error.add_note(f"When the cause is mended, {_how_to_resume(run)}.")
        raise
    stdout.print(f"run       {run.path}\npolicy    {run.policy}\nMLflow    run {run_id} in {uri}", soft_wrap=True)
    return run


def check_programs(learner: Learner) -> None:
    """Compile each program and measure what its plans will be compared with, before an agent learns from them.

    Raises:
        ProgramError: some cannot be used; each is named with its reason.
        MeasurementError: nothing can be measured here.
    """
    programs = learner.programs
    what = "measuring references" if learner.measured else "compiling programs"
    with progress() as bar:
        task = bar.add_task(what, total=len(programs))
        learner.check_programs(lambda program: bar.update(task, advance=1, description=f"{what}: {program.name}"))


def _how_to_resume(run: RunFolder) -> str:
    runs = "" if run.path.parent == Path("runs") else f" --runs {run.path.parent}"
    kept = latest_checkpoint(run.checkpoints)
    begins = "from its last checkpoint" if kept is not None else "from its beginning, as it has no checkpoint yet"
    return f"hlogym train --resume --name {run.name}{runs} continues it {begins}"


@contextmanager
def _closed_on_error(learner: Learner) -> Iterator[None]:
    try:
        yield
    except BaseException:
        learner.close()
        raise


def train(run: RunFolder, config: TrainConfig, learner: Learner | None = None) -> tuple[str, str]:
    """Train until the run's end, from its last checkpoint if it has one; the MLflow store and the run's id there.

    Args:
        run: where everything goes.
        config: its settings.
        learner: what learns, with its programs checked; it is closed at the end. None: one is made and checked.

    Raises:
        ProgramError: some of its programs cannot be used.
        MeasurementError: measurements fail, so that there is nothing to learn from. The last checkpoint stays.
        KeyboardInterrupt: stopped by a signal, whose number is its argument, after a checkpoint was written.
    """
    # Explored states are millions of objects that live long: looking through them all the time took a third of it.
    gc.set_threshold(200_000, 20, 100)
    # What is there now stays; a collection need not look through the modules of torch and MLflow each time.
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
        task = bar.add_task(f"training {run.name}", total=config.total_timesteps, completed=model.num_timesteps)
        with _damage_in(checkpoint):
            callback = TrainingCallback(
                run, config, learner, tracked, extra, lambda n: bar.update(task, completed=n), interruption
            )
        _learn(learner, config, callback, run, interruption)
        callback.finish(model)
        callback.check_measured()
        save_checkpoint(model, run.checkpoints, learner.features, callback.extra())
        learner.export(run.policy, policy_provenance(config, learner))
        _log_artifacts(run, tracked)
    # Not before MLflow knows it: a kill in between would leave a run there that nobody ends.
    run.write_state({"run_id": tracked.run_id, "finished": True})
    return tracked.uri, tracked.run_id


def _check_store(learner: Learner) -> None:
    """StoreError when times are to be measured and there is no place to keep them."""
    if learner.measured:
        KernelStore(default_store_path()).close()


@contextmanager
def _damage_in(checkpoint: Path | None) -> Iterator[None]:
    """What a checkpoint says that was changed raises CheckpointError instead of whatever it is that fails over it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"cannot resume from {checkpoint}: {error!r} in its state; move it away to resume from the one before"
        ) from error


def _tracked(run: RunFolder) -> TrackedRun:
    return TrackedRun(run.path.parent, run.name, run.state().get("run_id"))


def _learn(
    learner: Learner, config: TrainConfig, callback: TrainingCallback, run: RunFolder, interruption: Interruption
) -> None:
    """Learn what is left to learn; when a signal ends it, a checkpoint is written first.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """
    model = learner.model
    left = config.total_timesteps - model.num_timesteps
    if left <= 0 or callback.out_of_time():
        return
    try:
        model.learn(left, callback=callback, reset_num_timesteps=False)
    except KeyboardInterrupt:
        if interruption.whole:
            callback.finish(model)
            save_checkpoint(model, run.checkpoints, learner.features, callback.extra())
        raise


def policy_provenance(config: TrainConfig, learner: Learner) -> dict[str, Any]:
    """What an exported policy says of its making."""
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


def _log_artifacts(run: RunFolder, tracked: TrackedRun) -> None:
    curve = learning_curve(read_progress(run.progress), meaning_of_speedup(run.config()))
    if curve is not None:
        save_figure(curve, run.path / "learning.png")
        tracked.artifacts(run.path / "learning.png", "plots")
    for path, under in ((run.policy, "policy"), (run.plans, "plans"), (run.progress, "tables")):
        if path.exists():
            tracked.artifacts(path, under)
