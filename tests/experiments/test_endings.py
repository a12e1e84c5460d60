"""A training run ends with before and after and the next command; other commands take the run as a policy."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from compiler.api import decide_all
from compiler.errors import PolicyError
from compiler.learned.fusion_policy import load_policy
from compiler.policy import HEURISTIC, resolve_policy
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import load_suite
from experiments.config import TrainConfig
from experiments.policy_arguments import find_policy
from experiments.run_folder import RunFolder, new_run
from experiments.train_command import what_starts
from experiments.validation_results import Outcome, ValidationResult, read_validation
from tests.env.small_programs import CHAIN, write_suite
from tests.experiments.shell import Shell

SMALL = ("--set", "n_steps=16", "--set", "batch_size=16", "--set", "hidden=8", "--set", "n_epochs=1",
         "--set", "eval_suite=suite", "--backend", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the current folder of the tests, which has a suite, and later a run."""
    folder, before = tmp_path_factory.mktemp("home"), Path.cwd()
    write_suite(folder / "suite")
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> Shell:
    monkeypatch.chdir(home)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Shell(capsys, monkeypatch)


def train(hlogym: Shell, *more: str) -> Any:
    reply = hlogym("train", "--suite", "suite", "--env", "hlogym/Fusion-v0", "--timesteps", "32", "--name", "first",
                   "-o", "exported", *SMALL, *more)  # fmt: skip
    assert reply.status == 0, reply.err
    return reply


@pytest.fixture
def first(hlogym: Shell) -> RunFolder:
    """Return a finished run; the first test that asks for it trains it."""
    train(hlogym, "--resume", "--json")
    return RunFolder(Path("runs/first"))


def test_resuming_a_run_that_does_not_exist_says_which_one_does(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    new_run(runs, "measured", TrainConfig())
    said = what_starts(runs, "mesured")
    assert "'mesured'" in said
    assert "'measured'" in said


def test_a_run_ends_with_before_and_after_and_the_next_command(hlogym: Shell) -> None:
    facts = json.loads(train(hlogym, "--json").out)
    best = facts["validation"]["best"]
    assert set(best["programs"]) == {"chain", "loop"}
    text = load_suite("suite").find("chain").text()
    session = CompilationSession(parse(text), "cpu")
    decide_all(session, HEURISTIC)
    chain = best["programs"]["chain"]
    assert chain["rules"] == pytest.approx(session.cost().seconds)
    assert chain["speedup"] == pytest.approx(chain["rules"] / chain["policy"])
    assert facts["policy"] == "exported"
    assert resolve_policy("exported", "cpu").fusion is not None
    assert facts["registered"] == "models:/hlogym-fusion/1"

    said = train(hlogym, "--resume").out
    assert "estimated time before (the compiler's rules) and after (the policy)" in said
    assert "geometric mean" in said
    assert "hlogym evaluate exported --suite test" in said


def test_resuming_says_which_settings_it_does_not_take(hlogym: Shell, first: RunFolder) -> None:
    said = hlogym("train", "--resume", "--name", "first", "--timesteps", "64", *SMALL[:2], "--set", "gamma=0.5")
    assert said.status == 0
    (warning,) = [line for line in said.err.splitlines() if line.startswith("warning: ")]
    assert "total_timesteps=64 (it has 32)" in warning
    assert "gamma=0.5 (it has 1.0)" in warning
    assert "n_steps" not in warning
    assert "warning" not in train(hlogym, "--resume").err


def test_commands_that_are_printed_can_be_pasted(hlogym: Shell, home: Path) -> None:
    new_run(Path("runs"), "it's begun", TrainConfig())
    message = hlogym.fails("run", "suite/chain.hlo", "--policy", "it's begun")
    words = shlex.split(message.partition("finish it with ")[2].partition(", or")[0])
    assert words == ["hlogym", "train", "--resume", "--name", "it's begun"]
    (home / "my chain.hlo").write_text(CHAIN)
    reply = hlogym(
        "tune", "my chain.hlo", "--reward", "estimated-time", "--budget", "1", "-o", "it's.json", "--json", "--no-track"
    )
    assert reply.status == 0, reply.err
    assert shlex.split(json.loads(reply.out)["next"])[:5] == ["hlogym", "run", "my chain.hlo", "--plan", "it's.json"]


def test_the_best_policy_is_that_of_the_best_evaluation(first: RunFolder) -> None:
    found = read_validation(first.validation)
    assert found is not None
    best, last = found
    assert best.mean_return >= last.mean_return
    assert load_policy(first.best).provenance["validation"] == best.mean_return
    assert load_policy(first.best).provenance["timesteps"] == best.timesteps


def test_runs_are_policies(hlogym: Shell, first: RunFolder) -> None:
    run_id = first.state()["run_id"]
    for name in ("first", "runs/first", run_id):
        assert find_policy(name) == str(first.best)
    assert find_policy("priority") == "priority"
    assert find_policy("merger{transposed_share=0.3}") == "merger{transposed_share=0.3}"
    assert find_policy("exported") == "exported"
    assert find_policy("unknown") == "unknown"  # the compiler names those that there are
    assert find_policy("first:rules") == f"{first.best}:rules"
    for policy in ("first", "models:/hlogym-fusion/1"):
        assert hlogym("run", "suite/chain.hlo", "--backend", "cpu", "--policy", policy, "--check").status == 0
    assert "did you mean" in hlogym.fails("run", "suite/chain.hlo", "--policy", "prioritty")


def test_a_run_without_a_policy_says_what_to_do(hlogym: Shell) -> None:
    new_run(Path("runs"), "begun", TrainConfig())
    with pytest.raises(PolicyError, match="hlogym train --resume --name begun"):
        find_policy("begun")


def test_policies_are_exported_from_runs_and_from_the_registry(hlogym: Shell, first: RunFolder) -> None:
    steps: dict[tuple[str, tuple[str, ...]], int] = {}
    for name, more in (("first", ()), ("first", ("--last",)), ("models:/hlogym-fusion/1", ()), ("exported", ())):
        reply = hlogym("export", name, "-o", f"copy-{len(steps)}", "--json", *more)
        assert reply.status == 0, reply.err
        facts = json.loads(reply.out)
        steps[name, more] = facts["timesteps"]
        assert resolve_policy(facts["policy"], "cpu").fusion is not None
    best, last = load_policy(first.best).provenance["timesteps"], load_policy(first.policy).provenance["timesteps"]
    assert list(steps.values()) == [best, last, best, best]
    assert "is the policy that is to be exported" in hlogym.fails("export", "exported", "-o", "exported")


def test_searches_and_benchmarks_are_recorded_where_there_is_a_store(hlogym: Shell, first: RunFolder) -> None:
    reply = hlogym("tune", "suite/chain.hlo", "--budget", "3", "--backend", "cpu", "-o", "plan.json", "--json")
    assert reply.status == 0, reply.err
    confirmed = json.loads(reply.out)["seconds"][0]
    assert hlogym("bench", "suite/chain.hlo", "--rounds", "2").status == 0
    assert hlogym("bench", "suite/loop.hlo", "--rounds", "2", "--no-track").status == 0
    client = MlflowClient(f"sqlite:///{Path('runs').resolve() / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hlogym")
    assert experiment is not None
    runs = {r.data.tags.get("kind", r.info.run_name): r for r in client.search_runs([experiment.experiment_id])}
    tuned, bench = runs["tune"], runs["bench"]
    assert tuned.data.params["program"] == "chain"
    assert tuned.data.metrics["confirmed.seconds"] == confirmed
    assert {a.path for a in client.list_artifacts(tuned.info.run_id)} == {"plan.json"}
    assert "seconds.chain" in bench.data.metrics
    assert runs["chain"].data.tags["mlflow.parentRunId"] == bench.info.run_id
    assert "loop" not in runs


def test_a_summary_shows_the_programs_that_differ_most() -> None:
    outcomes = {f"p{n}": Outcome(2.0, 2.0, 1.0) for n in range(10)}
    outcomes |= {"fast": Outcome(3e-3, 1e-3, 3.0), "slow": Outcome(1e-3, 2e-3, 0.5)}
    outcomes["wrong"] = Outcome(None, None, None, "it crashed")
    said = str(ValidationResult(64, 0.5, "measured time", outcomes))
    assert "fast            3.00 ms -> 1.00 ms: 3.00x" in said
    assert "slow            1.00 ms -> 2.00 ms: 0.50x" in said
    assert "... and 4 programs that differ less" in said
    assert "wrong           failed: it crashed" in said
    assert "geometric mean  1.03x" in said  # (3 * 0.5) ** (1 / 12)
    assert said.endswith("1 of 12 programs better, 1 worse")
