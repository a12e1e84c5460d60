"""Policies in MLflow's model registry, evaluations as nested runs, data sets and system metrics."""

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas
import pytest
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from compiler.api import compile as compile_hlo
from compiler.errors import ArgumentError
from compiler.plan import CompilationPlan
from compiler.support.safe_names import metric_name
from env.suites import load_suite
from experiments.cli import app
from experiments.config import TrainConfig
from experiments.mlflow_store import TrackingError
from experiments.pass_orders.evaluation import DEFAULT
from experiments.policy_model import PolicyModel
from experiments.program_dataset import describe_programs
from experiments.registry import local_policy, registered_name
from experiments.run_folder import find_run, new_run
from experiments.system_metrics import SystemMetrics
from experiments.tracking import download_policy
from experiments.train import train
from tests.env.small_programs import CHAIN, write_suite

MODEL = "models:/hlogym-fusion/1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which an agent for fusion and one for pass orders were trained."""
    folder = tmp_path_factory.mktemp("registry")
    suite = str(write_suite(folder / "suite"))
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        patched.setenv("HLOGYM_CACHE", str(folder / "cache"))
        patched.chdir(folder)
        small = TrainConfig(
            suite=suite, backend="cpu", total_timesteps=32, n_steps=16, batch_size=16, n_epochs=1, hidden=8, rounds=1,
            eval_freq=16, eval_suite=suite, budget=8,
        )  # fmt: skip
        for env, agent in (("hlogym/Fusion-v0", "maskable-ppo"), ("hlogym/PassOrder-v0", "a2c")):
            config = replace(small, env=env, agent=agent)
            train(new_run(folder / "runs", agent, config), config)
        yield folder


def client(folder: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{folder / 'runs' / 'mlflow.db'}")


def hlogym(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_registers_its_best_policy_with_a_signature(folder: Path) -> None:
    (version,) = client(folder).search_model_versions("name='hlogym-fusion'")
    assert version.tags == {
        "run": "maskable-ppo", "policy": "best", "environment": "hlogym/Fusion-v0", "suite": str(folder / "suite"),
    }  # fmt: skip
    run: Any = client(folder).get_run(str(version.run_id))
    (data,) = run.inputs.dataset_inputs
    assert json.loads(data.dataset.profile) == {"num_rows": 2, "num_elements": 12}
    assert {t.key: t.value for t in data.tags} == {"mlflow.data.context": "training"}
    assert run.data.metrics["system/process_memory_megabytes"] > 10
    model = local_policy("models:/hlogym-fusion/1", folder / "runs")
    files = {p.name for p in Path(model).parents[1].rglob("*") if p.is_file()}
    assert not {f for f in files if f.endswith((".pkl", ".pickle", ".pt", ".zip"))}
    assert {"MLmodel", "policy.json", "policy.safetensors"} <= files


@pytest.mark.parametrize("name", ["hlogym-fusion", "hlogym-passorder"])
def test_the_model_makes_plans_that_compile(folder: Path, name: str) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'runs' / 'mlflow.db'}")
    try:
        model = mlflow.pyfunc.load_model(f"models:/{name}/1")
    finally:
        mlflow.set_tracking_uri("")
    made = model.predict(pandas.DataFrame({"hlo": [CHAIN, CHAIN]}), params={"backend": "cpu"})
    assert list(made.columns) == ["plan"]
    assert made.plan[0] == made.plan[1]
    plan = CompilationPlan.from_json(made.plan[0])
    assert compile_hlo(CHAIN, backend="cpu", plan=plan).plan == plan
    with pytest.raises(mlflow.exceptions.MlflowException, match="schema"):
        model.predict(pandas.DataFrame({"text": [CHAIN]}))
    with pytest.raises(ArgumentError, match=r"row 1 of the column 'hlo': .*expected"):
        model.predict(pandas.DataFrame({"hlo": [CHAIN, "no HLO"]}))
    with pytest.raises(ArgumentError, match="row 0 of the column 'hlo' is a list"):
        model.predict({"hlo": [CHAIN]})
    with pytest.raises(ArgumentError, match="row 1 of the column 'hlo' is missing"):
        PolicyModel(Path(local_policy(f"models:/{name}/1", folder / "runs"))).predict(
            pandas.DataFrame({"hlo": [CHAIN, None]})
        )


def test_commands_read_policies_from_the_registry(folder: Path) -> None:
    client(folder).set_registered_model_alias("hlogym-fusion", "best", "1")
    (folder / "chain.hlo").write_text(CHAIN)
    for uri in ("models:/hlogym-fusion/1", "models:/hlogym-fusion/latest", "models:/hlogym-fusion@best"):
        assert "agree" in hlogym("run", "chain.hlo", "--backend", "cpu", "--policy", uri, "--check")
    with pytest.raises(TrackingError, match="no model models:/hlogym-fusion/7"):
        local_policy("models:/hlogym-fusion/7", folder / "runs")
    with pytest.raises(TrackingError, match="there is no version of other"):
        local_policy("models:/other/latest", folder / "runs")


def test_reading_a_model_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = tmp_path / "runs"
    with pytest.raises(TrackingError, match="there is no MLflow store"):
        local_policy(MODEL, runs)
    with pytest.raises(TrackingError, match="there is no MLflow store"):
        download_policy(runs, "0" * 32, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_cannot_be_reached_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingError, match=r"cannot read the model models:/hlogym-fusion/1 .*refused"):
        local_policy(MODEL, tmp_path)


def test_an_evaluation_is_a_run_with_a_nested_run_per_program(folder: Path) -> None:
    hlogym(
        "evaluate", "models:/hlogym-fusion/1", "--suite", str(folder / "suite"), "--backend", "cpu", "--budget", "1",
        "--rounds", "3", "--baselines", "none",
    )  # fmt: skip
    store = client(folder)
    experiment = store.get_experiment_by_name("hlogym")
    assert experiment is not None
    ids = [experiment.experiment_id]
    parent: Any
    (parent,) = store.search_runs(ids, "tags.kind = 'evaluation' and params.backend = 'cpu'")
    assert parent.data.params["policy"] == "models:/hlogym-fusion/1"
    assert parent.data.metrics["seen.none.speedup"] > 0
    assert {t.value for d in parent.inputs.dataset_inputs for t in d.tags} == {"evaluation"}
    assert {a.path for a in store.list_artifacts(parent.info.run_id)} >= {"plots", "tables"}
    children = store.search_runs(ids, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert {c.info.run_name for c in children} == {"chain", "loop"}
    for child in children:
        assert child.info.status == "FINISHED"
        assert child.data.metrics["learned.seconds"] > 0
        history = store.get_metric_history(child.info.run_id, "learned.round_speedup")
        assert sorted(m.step for m in history) == [0, 1, 2]
        plans = {a.path for a in store.list_artifacts(child.info.run_id, "plans")}
        assert {"plans/default.json", "plans/learned.json", "plans/none.json"} <= plans
        assert store.list_artifacts(child.info.run_id, "kernels")


def test_an_evaluation_of_a_pass_order_is_tracked_too(folder: Path) -> None:
    hlogym(
        "evaluate",
        "models:/hlogym-passorder/1",
        "--suite",
        str(folder / "suite"),
        "--budget",
        "5",
        "--baselines",
        "random",
    )
    store = client(folder)
    experiment = store.get_experiment_by_name("hlogym")
    assert experiment is not None
    (parent,) = store.search_runs([experiment.experiment_id], "tags.kind = 'evaluation' and params.budget = '5'")
    children = store.search_runs([experiment.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert {c.info.run_name for c in children} == {"chain", "loop"}
    assert all(c.data.metrics["ops.learned"] <= c.data.metrics["ops.written"] for c in children)
    default = metric_name(f"ops.{DEFAULT}")
    logs = [math.log(c.data.metrics["ops.learned"] / c.data.metrics[default]) for c in children]
    mean = math.exp(sum(logs) / len(logs))
    assert parent.data.metrics["ops_over_default.learned"] == pytest.approx(mean)


def test_equal_programs_have_equal_digests(tmp_path: Path) -> None:
    one, two = (load_suite(write_suite(tmp_path / n / "small")).programs for n in "ab")
    digest = describe_programs(one, "small")["digest"]
    assert describe_programs(two[::-1], "small")["digest"] == digest
    two[0].path.write_text(CHAIN.replace("tanh", "cosine"))
    assert describe_programs(two, "small")["digest"] != digest
    assert json.loads(describe_programs(one, "small")["source"]) == {"uri": str(tmp_path / "a" / "small")}


def test_a_run_that_was_killed_after_it_was_registered_keeps_its_version(folder: Path) -> None:
    run = find_run(folder / "runs", "a2c")
    done = run.state()
    run.write_state({**done, "finished": False})
    train(run, run.config())
    assert run.state() == done
    assert len(client(folder).search_model_versions("name='hlogym-passorder'")) == 1


def test_names_of_registered_models() -> None:
    assert registered_name("env:hlogym/FusionMeasured-v0") == registered_name("Fusion-v0") == "hlogym-fusion"


def test_system_metrics_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("100 50 1 1 0 1 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    (tmp_path / "stat").write_text("cpu 10 0 10 80 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    system = SystemMetrics(tmp_path, tmp_path)
    (tmp_path / "stat").write_text("cpu 30 0 40 110 20 0 0 0 0 0\ncpu0 1 1 1 1\n")
    found = system.read()
    assert found["system/cpu_utilization_percentage"] == pytest.approx(50)
    assert found["system/system_memory_usage_percentage"] == pytest.approx(75)
    assert found["system/system_memory_usage_megabytes"] == pytest.approx(0.768)
    assert found["system/process_cpu_percentage"] >= 0


def test_a_system_without_proc_has_fewer_metrics(tmp_path: Path) -> None:
    found = SystemMetrics(tmp_path, tmp_path / "none").read()
    assert "system/system_memory_usage_percentage" not in found
    assert found["system/disk_available_megabytes"] > 0


@pytest.mark.slow
def test_a_server_keeps_runs_and_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}",
        "--artifacts-destination", str(tmp_path / "artifacts"), "--serve-artifacts", "--host", "127.0.0.1",
        "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    uri = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not _answers(port):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
        suite = str(write_suite(tmp_path / "suite"))
        config = TrainConfig(
            suite=suite, backend="cpu", env="hlogym/Fusion-v0", total_timesteps=32, n_steps=16, batch_size=16,
            n_epochs=1, hidden=8, rounds=1, eval_freq=16, eval_suite=suite,
        )  # fmt: skip
        run = new_run(tmp_path / "runs", "r", config)
        _, run_id = train(run, config)
        found = MlflowClient(uri).get_run(run_id)
        assert found.info.status == "FINISHED"
        assert str(found.info.artifact_uri).startswith("mlflow-artifacts:")
        policy = (run.best / "policy.json").read_bytes()
        downloaded = download_policy(tmp_path / "runs", run_id, tmp_path / "to", "best")
        assert (downloaded / "policy.json").read_bytes() == policy
        assert (Path(local_policy(MODEL, tmp_path / "runs")) / "policy.json").read_bytes() == policy
        assert not (tmp_path / "runs" / "mlflow.db").exists()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
