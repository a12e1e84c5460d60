"""The search of hyperparameters with Optuna."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from compiler.errors import UnknownNameError
from experiments.config import ConfigError, TrainConfig
from experiments.hyperparameter_search import SearchError, sampled, search_hyperparameters
from experiments.hyperparameters import read_hyperparameters
from experiments.learners import AGENTS
from tests.env.small_programs import write_suite

FIXED = ("n_steps=16", "batch_size=16", "n_epochs=1", "hidden=8", "rounds=1")


def test_without_optuna_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SearchError, match=r"pip install 'hlogym\[tune\]'"):
        search_hyperparameters(TrainConfig(), (), 1, 1, tmp_path / "h.yaml", None, tmp_path)


def test_a_study_is_continued_and_its_best_settings_are_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    suite = str(write_suite(tmp_path / "suite"))
    config = TrainConfig(env="hlogym/Fusion-v0", backend="cpu", suite=suite, eval_suite=suite, total_timesteps=32)
    output = tmp_path / "h.yaml"
    for _ in range(2):
        best = search_hyperparameters(config, FIXED, 1, 2, output, "study", tmp_path / "runs")
    found = read_hyperparameters(output, config)
    assert (found.n_steps, found.hidden) == (16, 8)
    assert found.learning_rate == best["learning_rate"] != config.learning_rate
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hlogym")
    assert experiment is not None
    trials = client.search_runs([experiment.experiment_id], "run_name LIKE 'trial-%'")
    assert {t.info.run_name for t in trials} == {"trial-0", "trial-1"}
    for trial in trials:
        assert [m.step for m in client.get_metric_history(trial.info.run_id, "eval.mean_reward")] == [16, 32]


@pytest.mark.parametrize(
    ("wrong", "named"), [({"suite": "nope"}, "'nope'"), ({"agent": "dqn"}, "'dqn'"), ({"eval_suite": "nope"}, "'nope'")]
)
def test_what_every_training_would_refuse_is_refused_before_there_is_a_study(
    wrong: dict[str, str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    suite = str(write_suite(tmp_path / "suite"))
    config = TrainConfig(env="hlogym/Fusion-v0", backend="cpu", suite=suite, eval_suite=suite, total_timesteps=32)
    with pytest.raises(UnknownNameError, match=named):
        search_hyperparameters(replace(config, **wrong), FIXED, 1, 2, tmp_path / "h", "study", tmp_path / "runs")  # type: ignore[arg-type]
    assert not (tmp_path / "runs" / "optuna.db").exists()
    assert "Traceback" not in capfd.readouterr().err


def test_a_trial_that_cannot_run_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    suite = str(write_suite(tmp_path / "suite"))
    config = TrainConfig(env="hlogym/Fusion-v0", backend="cpu", suite=suite, eval_suite=suite, total_timesteps=32)

    def refuse(*_: object) -> float:
        raise ConfigError("these settings exclude each other")

    monkeypatch.setattr("experiments.hyperparameter_search._train", refuse)
    with pytest.raises(SearchError, match="none of 2 trials"):
        search_hyperparameters(config, FIXED, 2, 2, tmp_path / "h.yaml", "study", tmp_path / "runs")
    said = capfd.readouterr().err
    assert said.count("failed: these settings exclude each other") == 2
    assert "Traceback" not in said


@pytest.mark.parametrize("agent", AGENTS)
def test_suggestions_are_valid_settings(agent: str) -> None:
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(10):
        found = sampled(study.ask(), agent, agent == AGENTS[0])
        replace(TrainConfig(agent=agent), **found).check()
