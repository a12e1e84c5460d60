"""Training on several environments: in this process and in others, with validation and with linear schedules."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

import compiler
from agents.checkpoint import latest_checkpoint
from compiler.learned.fusion_policy import load_policy
from compiler.learned.pass_order import load_pass_order
from experiments.config import TrainConfig
from experiments.export import export_run
from experiments.learners import make_learner
from experiments.run_folder import RunFolder, new_run, read_progress
from experiments.train import EnvironmentLostError, train
from experiments.validation_results import read_validation
from tests.env.small_programs import write_suite

SMALL = TrainConfig(
    env="hlogym/Fusion-v0", backend="cpu", total_timesteps=64, n_steps=32, batch_size=16, n_epochs=1, hidden=8,
    rounds=1, environments=2, checkpoint_every=32, eval_freq=32, learning_rate_schedule="linear",
    clip_range_schedule="linear",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    suite = str(write_suite(tmp_path / "suite"))
    return replace(SMALL, suite=suite, eval_suite=suite)


def trained(tmp_path: Path, config: TrainConfig) -> tuple[RunFolder, str]:
    run = new_run(tmp_path / "runs", "run", config)
    return run, train(run, config)[1]


def test_an_agent_can_be_saved_after_a_signal_has_ended_its_environments(config: TrainConfig) -> None:
    learner = make_learner(replace(config, vec_env="subproc"))
    saved = learner.extra()
    assert len(saved["env_rngs"]) == 2
    for process in learner.model.get_env().unwrapped.processes:  # type: ignore[union-attr]
        process.terminate()
        process.join()
    assert learner.extra() == saved
    learner.close()


@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_several_environments_learn_and_the_best_agent_is_kept(
    tmp_path: Path, config: TrainConfig, vec_env: str
) -> None:
    run, run_id = trained(tmp_path, replace(config, vec_env=vec_env))
    assert read_progress(run.progress)[-1]["timesteps"] == 64
    best = load_policy(run.best).provenance
    assert best["timesteps"] in (32, 64)
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    history = client.get_metric_history(run_id, "eval.mean_reward")
    assert [m.step for m in history] == [32, 64]  # the last one after the last update
    assert best["validation"] == pytest.approx(max(m.value for m in history))
    assert client.get_metric_history(run_id, "rollout.ep_len_mean")
    assert {a.path for a in client.list_artifacts(run_id)} >= {"policy", "best"}
    checkpoint = latest_checkpoint(run.checkpoints)
    assert checkpoint is not None
    extra = json.loads((checkpoint / "state.json").read_text())["extra"]
    assert extra["validation_best"] <= best["validation"]
    assert len(extra["env_rngs"]) == 2
    export_run("run", tmp_path / "exported", tmp_path / "runs", best=True)
    assert compiler.load_policy(tmp_path / "exported").provenance == best


def test_a_resumed_run_keeps_its_best_result_and_its_schedules(tmp_path: Path, config: TrainConfig) -> None:
    run = new_run(tmp_path / "runs", "run", config)
    learner = make_learner(config)
    rates: list[float] = []
    train(run, config, learner)
    first = load_policy(run.best).provenance["validation"]
    longer = replace(config, total_timesteps=128)
    learner = make_learner(longer)
    model = learner.model
    schedule = model.lr_schedule

    def noted(remaining: float) -> float:
        rates.append(remaining)
        return schedule(remaining)

    model.lr_schedule = noted
    train(run, longer, learner)
    assert list(dict.fromkeys(rates)) == pytest.approx([1 - 96 / 128, 0.0])
    assert load_policy(run.best).provenance["validation"] >= first


def test_measured_environments_in_several_processes(
    tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    run, _ = trained(tmp_path, replace(config, env="hlogym/UnrollMeasured-v0", vec_env="subproc", total_timesteps=32))
    points = read_progress(run.progress)
    assert points[-1]["episodes"] > 0
    assert points[-1]["failures"] == 0
    validation = read_validation(run.validation)
    assert validation is not None
    assert validation[0].unit == "measured time"
    assert all(o.speedup is not None and o.speedup > 0 for o in validation[0].programs.values())


def test_killed_and_stopped_measuring_workers_cost_the_agent_nothing(
    tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    config = replace(config, env="hlogym/UnrollMeasured-v0", vec_env="subproc", eval_freq=0)
    run, learner = new_run(tmp_path / "runs", "run", config), make_learner(config)
    signals = [signal.SIGKILL, signal.SIGSTOP]
    ended = threading.Event()

    def disturb() -> None:
        """Send each environment's first worker a signal."""
        waiting = list(zip([p.pid for p in learner.vector.unwrapped.processes], signals, strict=True))  # type: ignore[attr-defined]
        while waiting and not ended.wait(0.01):
            pid, number = waiting.pop(0)
            workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if workers:
                os.kill(int(workers[0]), number)
                signals.remove(number)
            else:
                waiting.append((pid, number))

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    train(run, config, learner)
    ended.set()
    disturbing.join()
    assert signals == []
    points = read_progress(run.progress)
    assert points[-1]["timesteps"] == 64
    assert [p["failures"] for p in points] == [0] * len(points)
    assert run.state()["finished"]


def test_an_off_policy_agent_is_evaluated_and_resumed_with_its_buffer(tmp_path: Path, config: TrainConfig) -> None:
    dqn = replace(config, env="hlogym/PassOrder-v0", agent="dqn", budget=6)
    run, _ = trained(tmp_path, dqn)
    assert load_pass_order(run.best).actions
    longer = make_learner(replace(dqn, total_timesteps=96))
    train(run, replace(dqn, total_timesteps=96), longer)
    buffer = longer.model.replay_buffer  # type: ignore[attr-defined]
    assert buffer.size() * 2 == 96


def test_a_killed_process_of_an_environment_is_replaced(
    tmp_path: Path, config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(config, vec_env="subproc")
    run, learner = new_run(tmp_path / "runs", "run", config), make_learner(config)
    vector: Any = learner.vector.unwrapped
    vector.processes[0].kill()
    vector.processes[0].join()
    train(run, config, learner)
    assert read_progress(run.progress)[-1]["timesteps"] == 64
    assert capsys.readouterr().err.count("the process of environment 0 was lost (SIGKILL)") == 1


def test_an_environment_that_is_ended_is_one_clear_error(tmp_path: Path, config: TrainConfig) -> None:
    config = replace(config, vec_env="subproc")
    run, learner = new_run(tmp_path / "runs", "run", config), make_learner(config)
    vector: Any = learner.vector.unwrapped
    vector.processes[0].terminate()
    vector.processes[0].join()
    with pytest.raises(EnvironmentLostError, match="a process of an environment has ended"):
        train(run, config, learner)
