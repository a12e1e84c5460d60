"""Training stops if nothing can be measured, reports why, keeps its checkpoints, and can be resumed after a fix."""

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agents.checkpoint import latest_checkpoint
from env import worker_process
from env.environments import FusionEnv
from env.isolated import python_command
from env.measurement import MeasurementError
from env.worker_process import WorkerStartError
from experiments import failure_watch
from experiments.cli import main
from experiments.config import TrainConfig
from experiments.report import read_progress
from experiments.results import ResultError
from experiments.run_folder import RunFolder
from experiments.run_lock import sole_trainer
from experiments.train_command import start_or_resume
from tests.env.small_programs import write_suite
from tests.experiments.test_training import command, environment

FAILING_PLANS = """
import json, os
import env.worker as w
real = w.Worker._prepare
def faulty(self, request):
    if os.path.exists({flag!r}) and request["plan"] and json.loads(request["plan"])["fusions"]:
        return {{"error": "wrong", "message": "output 0: all wrong"}}
    return real(self, request)
w.Worker._prepare = faulty
w.main()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow store for all tests of this module, because creating its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def tracking(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file exists, plans with fusions fail."""
    path = tmp_path / "flag"
    code = FAILING_PLANS.format(flag=str(path))
    monkeypatch.setattr(worker_process, "python_command", lambda _: python_command(code))
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


def config(tmp_path: Path, **changes: Any) -> TrainConfig:
    suite = write_suite(tmp_path / "suite")
    (suite / "loop.hlo").unlink(missing_ok=True)
    settings: dict[str, Any] = {
        "suite": str(suite), "env": "hlogym/FusionMeasured-v0", "backend": "cpu", "total_timesteps": 48, "n_steps": 16,
        "batch_size": 16, "hidden": 8, "n_epochs": 1, "checkpoint_every": 16, **changes,
    }  # fmt: skip
    return TrainConfig(**settings)


def tracked_status(store: str, run: RunFolder) -> str:
    from mlflow.tracking import MlflowClient

    return str(MlflowClient(store).get_run(run.state()["run_id"]).info.status)


def test_no_run_starts_if_a_reference_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import env.worker as w; w.difference = lambda *_: 'output 0: all wrong'; w.main()"
    monkeypatch.setattr(worker_process, "python_command", lambda _: python_command(code))
    monkeypatch.setenv("HOME", str(tmp_path))
    suite, runs = write_suite(tmp_path / "suite"), tmp_path / "runs"
    monkeypatch.setattr(sys, "argv", ["hlogym", "train", "--suite", str(suite), "--runs", str(runs), "--name", "r"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: 2 of 2 programs")
    for name in ("chain", "loop"):
        assert f"'{name}' ({suite / name}.hlo): wrong: output 0: all wrong" in said
    assert "Traceback" not in said
    assert not (runs / "r").exists()


def test_failures_stop_a_run_that_can_be_resumed_after_a_fix(
    flag: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_watch, "MAX_CONSECUTIVE", 3)
    run = RunFolder(tmp_path / "runs" / "r")
    start_or_resume(config(tmp_path, total_timesteps=16), tmp_path / "runs", "r", resume=False)
    longer = (run.path / "config.json").read_text().replace('"total_timesteps": 16', '"total_timesteps": 400')
    (run.path / "config.json").write_text(longer)
    run.write_state({**run.state(), "finished": False})
    for file in run.policy.iterdir():
        file.unlink()
    kept = latest_checkpoint(run.checkpoints)

    flag.touch()
    reason = r"3 measurements in a row[^$]*chain: wrong: output 0: all wrong"
    with pytest.raises(MeasurementError, match=reason) as caught:
        start_or_resume(config(tmp_path), tmp_path / "runs", "r", resume=True)
    assert any("hlogym train --resume --name r" in note for note in caught.value.__notes__)
    assert tracked_status(store, run) == "FAILED"
    assert run.state()["finished"] is False
    assert list(run.policy.iterdir()) == []
    # Rollouts that ended before the third failure in a row have checkpoints; the stop itself writes none.
    written = latest_checkpoint(run.checkpoints)
    assert kept is not None
    assert written is not None
    assert written.name in {f"step-{n:010}" for n in range(16, 400, 16)}

    flag.unlink()
    before = run.state()["run_id"]
    start_or_resume(config(tmp_path), tmp_path / "runs", "r", resume=True)
    assert run.state().items() >= {"run_id": before, "finished": True}.items()
    assert tracked_status(store, run) == "FINISHED"
    assert (run.policy / "policy.json").is_file()
    steps = [p["timesteps"] for p in read_progress(run.progress)]
    assert steps == sorted(set(steps))
    assert steps[-1] >= 400

    checkpoint = latest_checkpoint(run.checkpoints)
    assert start_or_resume(config(tmp_path), tmp_path / "runs", "r", resume=True) == run  # already finished
    assert latest_checkpoint(run.checkpoints) == checkpoint


@pytest.mark.parametrize("error", [WorkerStartError("no worker can be started"), EOFError()])
def test_an_error_in_the_middle_of_a_run_loses_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = config(tmp_path, env="hlogym/Fusion-v0", total_timesteps=96, checkpoint_every=10_000, eval_freq=0)
    run, steps = RunFolder(tmp_path / "runs" / "r"), itertools.count()
    real = FusionEnv.step

    def step(self: FusionEnv, action: Any) -> Any:
        if next(steps) == 40:
            raise error
        return real(self, action)

    monkeypatch.setattr(FusionEnv, "step", step)
    with pytest.raises(type(error)):
        start_or_resume(settings, tmp_path / "runs", "r", resume=False)
    kept = latest_checkpoint(run.checkpoints)
    assert kept is not None
    assert kept.name == f"step-{40:010}"
    start_or_resume(settings, tmp_path / "runs", "r", resume=True)
    assert [p["timesteps"] for p in read_progress(run.progress)][-3:] == [72, 88, 104]


def test_a_run_without_measurements_writes_no_policy(flag: Path, tmp_path: Path) -> None:
    flag.touch()
    with pytest.raises(MeasurementError, match=r"all .* measurements of this run have failed|no episode has ended"):
        # With this prior the agent always fuses, so no episode ends with the reference plan.
        start_or_resume(config(tmp_path, total_timesteps=16, prior=1e4), tmp_path / "runs", "r", resume=False)
    assert not (tmp_path / "runs" / "r" / "policy").exists()


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_signal_stops_a_run_with_a_checkpoint(tmp_path: Path, store: str, name: str) -> None:
    write_suite(tmp_path / "suite")
    run = RunFolder(tmp_path / "runs" / "run")
    begun = command(tmp_path, "--set", "total_timesteps=1000000", "--set", "checkpoint_every=1000000")
    variables = {**environment(tmp_path), "MLFLOW_TRACKING_URI": store}
    process = subprocess.Popen(begun, env=variables, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while not read_progress(run.progress) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.Signals[name])
    _, said = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.Signals[name], said
    assert "hlogym train --resume --name run" in said
    assert "Traceback" not in said
    assert latest_checkpoint(run.checkpoints) is not None
    assert tracked_status(store, run) == "KILLED"
    assert run.state()["finished"] is False


def test_a_run_has_one_trainer_at_a_time(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with sole_trainer(run), pytest.raises(ResultError, match="another process"), sole_trainer(run):
        pass
    with sole_trainer(run):
        pass
