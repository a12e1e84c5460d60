"""Training, evaluation and export with unusual names, bad inputs and broken stores succeed or fail before any work."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import compiler
import experiments.mlflow_store
from compiler.learned.fusion_policy import load_policy, network_shape
from compiler.support.safe_names import metric_name
from experiments.config import TrainConfig
from experiments.results import ResultError
from experiments.run_folder import RunFolder
from experiments.train_command import start_or_resume
from experiments.training_callback import TrainingCallback
from tests.env.small_programs import CHAIN, write_suite
from tests.experiments.shell import Shell

AWKWARD = ("a[b]|c<d>$x$", "con", "é", "a b", "../up"[3:] + "/deeper", "[red]x[/red]", "_hidden", "x" * 250, "plain")
SHORT = ("n_steps=64", "batch_size=16", "hidden=8", "rounds=1", "n_epochs=1", "total_timesteps=128", "backend=cpu")


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_TIMEOUT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Shell(capsys, monkeypatch)


def awkward_suite(folder: Path) -> Path:
    folder.mkdir()
    programs = []
    for n, name in enumerate(AWKWARD):
        (folder / f"p{n}.hlo").write_text(CHAIN.replace("48", str(20 + n)))
        programs.append({"name": name, "file": f"p{n}.hlo", "split": "train"})
    (folder / "manifest.json").write_text(json.dumps({"programs": programs}))
    return folder


def files_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_awkward_names_train_track_export_and_report(hlogym: Shell, tmp_path: Path) -> None:
    suite = awkward_suite(tmp_path / "suite [1]")
    before = files_in(tmp_path)
    settings = [part for s in SHORT if not s.startswith("backend") for part in ("--set", s)]
    name = "run [1] $x$"
    reply = hlogym(
        "train", "--suite", suite, "--env", "hlogym/Fusion-v0", "--name", name, "--backend", "cpu", *settings
    )  # fmt: skip
    assert reply.status == 0, reply.err
    assert name in reply.out
    run = RunFolder(tmp_path / "runs" / name)
    written = files_in(tmp_path) - before
    assert all(f.startswith(("runs/", "home/")) for f in written), written
    plans = [f for f in written if "/plans/" in f and "mlartifacts" not in f]
    assert plans
    assert all(Path(f).parent == Path("runs") / name / "plans" for f in plans)

    from mlflow.tracking import MlflowClient

    tracked = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}").get_run(run.state()["run_id"])
    seen = {p for line in run.progress.read_text().splitlines() for p in json.loads(line)["programs"]}
    assert len(seen) > len(AWKWARD) / 2
    assert {metric_name(f"speedup.{p}") for p in seen} <= tracked.data.metrics.keys()
    assert tracked.info.status == "FINISHED"

    exported = hlogym("export", name, "-o", "exported [1]")
    assert exported.status == 0, exported.err
    assert sorted(compiler.load_policy(tmp_path / "exported [1]").provenance["programs"]) == sorted(AWKWARD)


def test_validation_programs_that_do_not_exist_are_named_before_a_run_is_made(hlogym: Shell, tmp_path: Path) -> None:
    write_suite(tmp_path / "suite")
    message = hlogym.fails(
        "train", "--suite", "suite", "--env", "hlogym/Fusion-v0", "--set", "eval_suite=nope", "--name", "r"
    )
    assert message.startswith("error: unknown suite")
    assert "'nope'" in message
    assert not (tmp_path / "runs" / "r").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "/root/x", ".hidden", "x" * 300, "a\x1b[2Jb", "nul"])
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_invalid_run_name_is_rejected_before_anything_is_written(
    hlogym: Shell, tmp_path: Path, name: str, resume: tuple[str, ...]
) -> None:
    write_suite(tmp_path / "suite")
    before = files_in(tmp_path)
    folders = set(tmp_path.rglob("*"))
    message = hlogym.fails("train", "--suite", "suite", "--env", "hlogym/Fusion-v0", f"--name={name}", *resume)
    assert "--name" in message
    assert message.count("\n") == 1
    assert "\x1b" not in message
    assert files_in(tmp_path) == before
    assert set(tmp_path.rglob("*")) == folders


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    import torch

    from agents.export import export_policy
    from agents.network import TorchPointerNetwork

    torch.manual_seed(0)
    export_policy(TorchPointerNetwork(network_shape(hidden=8, rounds=1)), tmp_path / "policy", {"timesteps": 0})
    return tmp_path / "policy"


def test_a_broken_suite_gives_the_same_message_in_all_commands(hlogym: Shell, tmp_path: Path, policy: Path) -> None:
    suite = write_suite(tmp_path / "suite")
    (suite / "broken.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0\n}\n")
    (suite / "idle.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n")
    before = files_in(tmp_path)
    messages = {
        hlogym.fails(*command)
        for command in (
            ("train", "--suite", "suite"), ("train", "--suite", "suite", "--env", "hlogym/PassOrder-v0"),
            ("evaluate", policy, "--suite", "suite"), ("bench", "suite", "--json", "figures.json"),
        )
    }  # fmt: skip
    assert len(messages) == 1
    (message,) = messages
    assert "suite has 2 problems" in message
    assert "broken.hlo:4:" in message
    assert "'idle': it computes nothing" in message
    assert files_in(tmp_path) == before


def test_a_name_that_is_in_two_suites_is_an_error(hlogym: Shell, tmp_path: Path, policy: Path) -> None:
    for name in ("one", "two"):
        write_suite(tmp_path / name)
    assert "several programs called 'chain'" in hlogym.fails("evaluate", policy, "--suite", "one,two")


def test_an_unresponsive_server_fails_before_training(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.mlflow_store, "REQUEST_SECONDS", 1)
    write_suite(tmp_path / "suite")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(20)
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        message = hlogym.fails("train", "--suite", "suite", "--env", "hlogym/Fusion-v0", "--name", "r")
    assert uri in message
    assert "does not answer" in message
    assert not (tmp_path / "runs").exists()


def test_a_damaged_store_of_kernel_times_fails_before_training(hlogym: Shell, tmp_path: Path) -> None:
    write_suite(tmp_path / "suite")
    store = tmp_path / "home" / ".cache" / "hlogym" / "plan_times.sqlite"
    store.parent.mkdir(parents=True)
    store.write_bytes(b"no database" * 1000)
    message = hlogym.fails("train", "--suite", "suite", "--name", "r")
    assert "move it away" in message
    assert store.read_bytes() == b"no database" * 1000
    assert not (tmp_path / "runs").exists()


def test_an_invalid_output_fails_before_any_work(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = write_suite(tmp_path / "suite") / "chain.hlo"
    (tmp_path / "file").write_text("mine")

    def worked(*_: object, **__: object) -> None:
        raise AssertionError("work was started")

    work = (
        "bench.drawn_reference", "run.compile_program", "view.decided_session", "tune.PlanBuilder", "reduce.Measurer",
    )  # fmt: skip
    for place in work:
        monkeypatch.setattr(f"experiments.{place}", worked)
    plain = {"bench": "--json", "run": "--output", "view": "-o", "tune": "-o", "reduce": "-o"}
    for output in ("file/deeper", "suite"):
        assert "cannot write" in hlogym.fails("report", "-o", output)
        for command, option in plain.items():
            assert "cannot write" in hlogym.fails(command, chain, option, output)
    for command, option in plain.items():
        if command != "bench":
            assert "would be overwritten" in hlogym.fails(command, chain, option, chain)
    assert "would be overwritten" in hlogym.fails("run", chain, "--inputs", "file", "--output", "file")
    assert chain.read_text() == CHAIN
    assert (tmp_path / "file").read_text() == "mine"


def test_a_policy_is_exported_even_if_the_suite_was_deleted(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = write_suite(tmp_path / "suite")
    real = TrainingCallback.finish

    def finish(self: TrainingCallback, model: object) -> None:
        shutil.rmtree(suite, ignore_errors=True)
        real(self, model)  # type: ignore[arg-type]

    monkeypatch.setattr(TrainingCallback, "finish", finish)
    config = TrainConfig(suite=str(suite), env="hlogym/Fusion-v0").changed(SHORT)
    run = start_or_resume(config, tmp_path / "runs", "r", False)
    assert load_policy(run.policy).provenance["programs"] == ["chain", "loop"]


def test_a_damaged_checkpoint_is_reported_with_advice(hlogym: Shell, tmp_path: Path) -> None:
    config = TrainConfig(suite=str(write_suite(tmp_path / "suite")), env="hlogym/Fusion-v0").changed(SHORT)
    run = start_or_resume(config, tmp_path / "runs", "r", False)
    run.write_state({**run.state(), "finished": False})
    (checkpoint,) = run.checkpoints.glob("step-*")
    state = json.loads((checkpoint / "state.json").read_text())
    changes: tuple[dict[str, Any], ...] = (
        {"means": 3}, {"env_rngs": ["x"]}, {"env_rngs": []}, {"best": [3]}, {"episodes": []}, {"validation_best": "x"},
    )  # fmt: skip
    for damaged in changes:
        (checkpoint / "state.json").write_text(json.dumps({**state, "extra": {**state["extra"], **damaged}}))
        reply = hlogym("train", "--resume", "--name", "r")
        assert reply.status == 1
        assert "error: cannot resume from" in reply.err
        assert "move it away" in reply.err
        assert "Traceback" not in reply.err
    with pytest.raises(ResultError, match="there is already a run"):
        start_or_resume(config, tmp_path / "runs", "r", False)
