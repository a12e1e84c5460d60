"""`hlogym export`: a run's policy as a policy folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from agents.checkpoint import latest_checkpoint, load_checkpoint
from compiler.errors import PolicyError, UnknownNameError
from compiler.policy_folder import is_policy_folder
from experiments.console import stdout
from experiments.learned import load_learned
from experiments.learners import make_learner
from experiments.run_folder import RunFolder, find_run
from experiments.tracking import download_policy
from experiments.train import policy_provenance

__all__ = ["export_run"]


def export_run(name: str, output: Path, runs: Path) -> None:
    """Write the policy of a run: of its end, of its last checkpoint when it has not ended, or from MLflow by id.

    Raises:
        UnknownNameError: no such run, here or in MLflow.
        PolicyError: the output is in the way, or cannot be written.
    """
    if output.exists() and not is_policy_folder(output):
        raise PolicyError(f"{output} is there and is no policy folder; name another one")
    try:
        run = find_run(runs, name)
    except UnknownNameError:
        if len(name) != 32:  # no MLflow id
            raise
        _from_mlflow(name, output, runs)
    else:
        _from_folder(run, output)
    policy = load_learned(output)
    stdout.print(f"policy    {output} (after {policy.provenance.get('timesteps', '?')} steps)", soft_wrap=True)


def _from_folder(run: RunFolder, output: Path) -> None:
    if run.state().get("finished") and is_policy_folder(run.policy):
        _copy(run.policy, output)
        return
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise PolicyError(f"run {run.name} has neither a policy nor a checkpoint yet")
    config = run.config()
    learner = make_learner(config)
    try:
        load_checkpoint(learner.model, checkpoint)
        learner.export(output, policy_provenance(config, learner.model.num_timesteps))
    finally:
        learner.close()


def _from_mlflow(run_id: str, output: Path, runs: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _copy(download_policy(runs, run_id, Path(folder)), output)


def _copy(source: Path, output: Path) -> None:
    if source.resolve() == output.resolve():
        return
    try:
        if output.exists():
            shutil.rmtree(output)
        shutil.copytree(source, output)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {output}: {error.strerror}") from error
