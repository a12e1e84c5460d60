"""A training run writes its files, and can be resumed after a kill at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compiler.errors import UnknownNameError
from compiler.learned.fusion_policy import load_policy
from experiments.config import ConfigError, TrainConfig
from experiments.report import read_progress
from experiments.results import ResultError
from experiments.run_folder import RunFolder, find_run, new_run, unfinished_run
from tests.env.small_programs import write_suite

ROOT = Path(__file__).resolve().parents[2]
STEPS = 160


def command(folder: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "experiments.cli", "train", "--suite", str(folder / "suite"), "--env", "hlogym/Fusion-v0",
        "--timesteps", str(STEPS), "--checkpoint-every", "16", "--backend", "cpu", "--name", "run",
        "--set", "n_steps=16", "--set", "batch_size=16", "--set", "hidden=8", "--set", "n_epochs=1",
        "--runs", str(folder / "runs"), *more,
    ]  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "MLFLOW_TRACKING_URI": ""}


def test_kill_and_resume(tmp_path: Path) -> None:
    write_suite(tmp_path / "suite")
    run = RunFolder(tmp_path / "runs" / "run")
    first = subprocess.Popen(command(tmp_path), env=environment(tmp_path), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(kept := sorted(run.checkpoints.glob("step-*"))) < 2 and first.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept[-1].rename(tmp_path / "moved away")  # so that MLflow has steps after the checkpoint
    begun = run.state()
    assert begun["finished"] is False

    resumed = subprocess.run(
        command(tmp_path, "--resume"), env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming run run" in resumed.stderr
    assert run.state().items() >= {"run_id": begun["run_id"], "finished": True}.items()
    steps = [p["timesteps"] for p in read_progress(run.progress)]
    assert steps == sorted(set(steps))
    assert steps[-1] >= STEPS
    assert load_policy(run.policy).provenance["timesteps"] == steps[-1]

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    tracked = client.get_run(begun["run_id"])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["total_timesteps"] == str(STEPS)
    for name in tracked.data.metrics:
        logged = [m.step for m in client.get_metric_history(begun["run_id"], name)]
        assert logged == sorted(set(logged)), name
    assert len(client.get_metric_history(begun["run_id"], "speedup")) >= 2
    assert tracked.inputs is not None and len(tracked.inputs.dataset_inputs) == 1
    assert {a.path for a in client.list_artifacts(begun["run_id"])} >= {"policy", "plans", "tables"}


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    new_run(tmp_path, "r", TrainConfig())
    with pytest.raises(ResultError, match="there is already a run 'r'"):
        new_run(tmp_path, "r", TrainConfig())


def test_settings_are_changed_by_name() -> None:
    changed = TrainConfig().changed(["n_steps=32", "learning_rate=0.1", "suite=test"])
    assert (changed.n_steps, changed.learning_rate, changed.suite) == (32, 0.1, "test")
    with pytest.raises(UnknownNameError, match="'n_steps'"):
        TrainConfig().changed(["n_stepps=1"])
    with pytest.raises(ConfigError, match="takes an integer"):
        TrainConfig().changed(["n_steps=many"])


def test_progress_after_a_checkpoint_is_removed(tmp_path: Path) -> None:
    run = new_run(tmp_path, "r", TrainConfig())
    for n in (256, 512, 768):
        run.add_progress({"timesteps": n})
    with run.progress.open("a") as file:
        file.write('{"timesteps": 10')  # killed in the middle of a line
    run.cut_progress(512)
    assert [p["timesteps"] for p in read_progress(run.progress)] == [256, 512]


def test_runs_are_found_by_name_folder_and_id(tmp_path: Path) -> None:
    run = new_run(tmp_path, "r", TrainConfig(seed=5))
    run.write_state({"run_id": "abc", "finished": False})
    assert find_run(tmp_path, "r") == find_run(tmp_path, "abc") == find_run(tmp_path, str(run.path)) == run
    assert unfinished_run(tmp_path, None) == run
    assert unfinished_run(tmp_path, "other") is None
    run.write_state({"run_id": "abc", "finished": True})
    assert unfinished_run(tmp_path, None) is None
    assert run.config() == TrainConfig(seed=5)


def test_settings_of_another_version_are_read(tmp_path: Path) -> None:
    run = new_run(tmp_path, "r", TrainConfig())
    data = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**data, "gone": 1, "seed": 3}))
    assert run.config().seed == 3


def test_runs_and_commands_from_before_settings_were_renamed_are_read(tmp_path: Path) -> None:
    former = {"rollout": 32, "batch": 8, "epochs": 3, "clip": 0.3, "entropy": 0.1, "value": 0.7, "exploration": 0.2,
              "timesteps": 99}  # fmt: skip
    want = TrainConfig(
        n_steps=32, batch_size=8, n_epochs=3, clip_range=0.3, ent_coef=0.1, vf_coef=0.7, exploration_fraction=0.2,
        total_timesteps=99,
    )  # fmt: skip
    others = {"suite": "train", "env": "hlogym/FusionMeasured-v0", "agent": "maskable-ppo", "checkpoint_every": 512}
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_text(json.dumps({**former, **others}))
    assert find_run(tmp_path, "r").config() == want
    assert TrainConfig().changed([f"{name}={value}" for name, value in former.items()]) == want


@pytest.mark.parametrize("name", ["hlogym/FusionMeasured-v0", "Fusion-v0", "env:hlogym/PassOrder-v0"])
def test_environment_ids_with_and_without_prefixes(tmp_path: Path, name: str) -> None:
    from experiments.learners import make_env

    made = make_env(TrainConfig(suite=str(write_suite(tmp_path)), env=name, backend="cpu"))
    assert made.measured is ("Measured" in name)
    made.close()
