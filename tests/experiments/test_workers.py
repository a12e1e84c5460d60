"""`--workers`: several workers on this machine measure plans and evaluate programs at once."""

import json
from pathlib import Path

import pytest

from agents.export import export_policy
from agents.ppo import make_ppo, network_of
from agents.settings import PointerSettings
from compiler.plan import CompilationPlan
from env.environments import FusionEnv
from env.suites import load_suite
from env.workers import Workers
from experiments import train_command as training
from experiments.config import TrainConfig
from experiments.evaluate import evaluate_policy
from tests.env.small_programs import write_suite
from tests.experiments.shell import Shell


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return Shell(capsys, monkeypatch)


def test_tune_measures_with_several_workers(hlogym: Shell, tmp_path: Path) -> None:
    chain = write_suite(tmp_path / "suite") / "chain.hlo"
    options = "--budget", "4", "--backend", "cpu", "--workers", "local:2", "-o", "plan.json", "--json"
    reply = json.loads(hlogym("tune", chain, *options).out)
    assert 1 <= reply["measurements"] <= 4
    CompilationPlan.load("plan.json")


def test_evaluate_works_on_several_programs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    suite = write_suite(tmp_path / "suite")
    policy = tmp_path / "policy"
    export_policy(network_of(make_ppo(FusionEnv(suite), PointerSettings(hidden=8))), policy, {"programs": []})
    found = evaluate_policy(
        policy, [str(suite)], ["none"], 1, 2, "cpu", 0, tmp_path / "results", True, workers=Workers(count=2)
    )
    assert [p.program for p in found.programs] == [p.name for p in load_suite(suite).programs]
    assert not any(s.failure for p in found.programs for s in p.strategies.values())


def test_train_has_an_environment_per_worker(hlogym: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[TrainConfig] = []
    monkeypatch.setattr(training, "start_or_resume", lambda config, *_: started.append(config))
    hlogym("train", "--workers", "ray://head:10001#3")
    hlogym("train", "--workers", "local:2", "--set", "environments=5")
    hlogym("train", "--workers", "local")
    found = [(c.workers, c.environments, c.vec_env) for c in started]
    assert found == [("ray://head:10001", 3, "subproc"), ("local", 5, "subproc"), ("local", 1, "dummy")]


@pytest.mark.parametrize("command", [("train",), ("tune", "softmax", "-o", "p.json"), ("evaluate", "nowhere")])
def test_other_workers_are_refused(hlogym: Shell, command: tuple[str, ...]) -> None:
    assert "cannot read 'here' as workers" in hlogym.fails(*command, "--workers", "here")
