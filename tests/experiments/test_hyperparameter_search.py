"""The search of hyperparameters with Optuna."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    assert len({t.data.params["learning_rate"] for t in trials}) == 2, "a continued study repeats no trial"
    (parent,) = client.search_runs([experiment.experiment_id], "run_name = 'study'")
    assert {t.data.tags["mlflow.parentRunId"] for t in trials} == {parent.info.run_id}
    for trial in trials:
        assert [m.step for m in client.get_metric_history(trial.info.run_id, "eval.mean_reward")] == [16, 32]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    pytest.importorskip("optuna")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    suite = str(write_suite(tmp_path / "suite"))
    return TrainConfig(env="hlogym/Fusion-v0", backend="cpu", suite=suite, eval_suite=suite, total_timesteps=32)


def train_by_rate(trial: Any, base: TrainConfig, fixed: Any, *_: object) -> float:
    del fixed
    found = sampled(trial, base.agent, True)
    return float(found["learning_rate"])


def test_a_study_is_continued_with_its_own_settings_only(
    tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.hyperparameter_search._train", train_by_rate)
    search_hyperparameters(config, ("rollout=16",), 1, 2, tmp_path / "h.yaml", "study", tmp_path / "runs")
    assert read_hyperparameters(tmp_path / "h.yaml", config).n_steps == 16
    others: list[tuple[TrainConfig, tuple[str, ...], str]] = [
        (replace(config, total_timesteps=64), ("n_steps=16",), r"total_timesteps=64 \(it has 32\)"),
        (replace(config, env="hlogym/Unroll-v0"), ("n_steps=16",), "env=hlogym/Unroll-v0"),
        (config, (), "fixed="),
    ]
    for other, fixed, named in others:
        with pytest.raises(SearchError, match=f"begun with other settings.*{named}.*--name"):
            search_hyperparameters(other, fixed, 1, 2, tmp_path / "h.yaml", "study", tmp_path / "runs")
    search_hyperparameters(replace(config, seed=5), ("n_steps=16",), 1, 2, tmp_path / "h", "study", tmp_path / "runs")


def test_an_interrupted_search_keeps_the_best_settings_so_far(
    tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trial: Any, *arguments: Any) -> float:
        if trial.number == 2:
            raise KeyboardInterrupt
        return train_by_rate(trial, *arguments)

    monkeypatch.setattr("experiments.hyperparameter_search._train", interrupted)
    output = tmp_path / "h.yaml"
    with pytest.raises(
        KeyboardInterrupt, match=r"best settings so far are in .*h.yaml; to continue it, .*--name study"
    ):
        search_hyperparameters(config, FIXED, 9, 2, output, "study", tmp_path / "runs")
    assert read_hyperparameters(output, config).learning_rate != config.learning_rate


def test_a_damaged_file_of_studies_is_one_error(tmp_path: Path, config: TrainConfig) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "optuna.db").write_bytes(b"no database" * 100)
    with pytest.raises(SearchError, match=r"cannot use the studies in .*optuna.db: .*; if the file is damaged, move"):
        search_hyperparameters(config, FIXED, 1, 2, tmp_path / "h.yaml", "study", tmp_path / "runs")


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
