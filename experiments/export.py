"""`hlogym export`: write the policy of a training run to a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agents.checkpoint import latest_checkpoint, load_checkpoint
from compiler.errors import PolicyError, UnknownNameError
from compiler.learned.pass_order import FORMAT as ORDER_FORMAT
from compiler.learned.policy_folder import check_policy_target, describe_policy, is_policy_folder
from compiler.learned.whole_folder import FORMAT as WHOLE_FORMAT
from compiler.learned.whole_folder import copy_whole, write_whole
from compiler.support.safe_names import shell_command
from experiments.answer import give_answer, print_fields
from experiments.learned import load_learned
from experiments.learners import make_learner
from experiments.policy_arguments import SCHEME, find_policy
from experiments.run_folder import RunFolder, find_run
from experiments.tracking import download_policy
from experiments.train import policy_provenance

__all__ = ["export_run", "write_policy"]


def export_run(name: str, output: Path, runs: Path, best: bool | None = None, as_json: bool = False) -> None:
    """Write the policy of a run: the final one, that of its last checkpoint if it is unfinished, or one from MLflow.

    The folder is that of a policy for a whole compilation, which holds the run's as its part for fusion or for passes.

    Args:
        name: name or folder of a run, an MLflow run id, `models:/NAME/VERSION`, or the folder of a policy.
        output: the folder to write.
        runs: the folder of training runs and of the local MLflow store.
        best: write the policy with the best validation result, or the last one; None: the best, if there is one.
        as_json: print JSON instead of text.

    Raises:
        UnknownNameError: there is no run of that name.
        TrackingError: MLflow has no run of that id, or the run has no policy.
        PolicyError: the output folder exists and is not a policy, or cannot be written.
    """
    check_policy_target(output)
    if name.startswith(SCHEME) or is_policy_folder(Path(name)):
        _copy(Path(find_policy(name, runs)), output)
    else:
        try:
            run = find_run(runs, name)
        except UnknownNameError:
            if len(name) != 32:  # not an MLflow run id
                raise
            _from_mlflow(name, output, runs, "best" if best else "policy")
        else:
            finished = run.state().get("finished", False) and is_policy_folder(run.best)
            _best_of(run, output) if best or (best is None and finished) else _from_folder(run, output)
    policy = load_learned(output)
    steps = policy.provenance.get("timesteps", "?")
    command = shell_command("hlogym", "run", "PROGRAM", "--policy", output, "--check")
    facts = {"policy": str(output), "timesteps": steps, "next": command}
    shown = {"policy": f"{output} (after {steps} steps)", "next": command}
    give_answer(facts, lambda: print_fields(shown), as_json)


def _copy(policy: Path, output: Path) -> None:
    """Write a policy of any kind, which is at another place, as a policy for a whole compilation."""
    if output.exists() and output.samefile(policy):
        raise PolicyError(f"{output} is the policy that is to be exported; name another folder")
    if describe_policy(policy).get("format") == WHOLE_FORMAT:
        copy_whole(policy, output)
    else:
        write_policy(policy, output)


def _from_folder(run: RunFolder, output: Path) -> None:
    if run.state().get("finished") and is_policy_folder(run.policy):
        write_policy(run.policy, output)
        return
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise PolicyError(f"run {run.name} has neither a policy nor a checkpoint yet")
    config = run.config()
    learner = make_learner(config)
    try:
        load_checkpoint(learner.model, checkpoint, learner.features)
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "policy"
            learner.export(part, policy_provenance(config, learner))
            write_policy(part, output)
    finally:
        learner.close()


def _best_of(run: RunFolder, output: Path) -> None:
    if not is_policy_folder(run.best):
        raise PolicyError(
            f"run {run.name} was not evaluated on validation programs yet; leave out --best, or train with a smaller "
            "eval_freq"
        )
    write_policy(run.best, output)


def _from_mlflow(run_id: str, output: Path, runs: Path, which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_policy(download_policy(runs, run_id, Path(folder), which), output)


def write_policy(part: Path, output: Path) -> None:
    """Write a policy for a whole compilation that holds the policy of a run for the phase that it decides."""
    description = describe_policy(part)
    phase = "passes" if description.get("format") == ORDER_FORMAT else "fusion"
    provenance = description.get("provenance")
    provenance = provenance if isinstance(provenance, dict) else {}
    write_whole(output, "learned", str(provenance.get("timesteps", "")), {phase: part}, provenance=provenance)
