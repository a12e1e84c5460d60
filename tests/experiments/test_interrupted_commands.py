"""An interrupted command keeps what it has found, says where, and ends with status 130 and no traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import experiments
from agents.export import export_policy
from agents.network import TorchPointerNetwork
from compiler import CompilationPlan, compile, parse
from compiler.learned.fusion_policy import network_shape
from env.measurement import Measurer
from env.suites import load_suite
from tests.env.small_programs import write_suite
from tests.experiments.shell import Reply, Shell
from tests.support.distribution import install


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Shell(capsys, monkeypatch)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite")


def interrupting(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return a function that is interrupted when it is called for the `calls`-th time, once."""
    made = 0

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal made
        made += 1
        if made == calls:
            raise KeyboardInterrupt
        return function(*arguments, **named)

    return called


def kept(reply: Reply) -> str:
    assert reply.status == 130, reply.err
    assert "Traceback" not in reply.err
    return " ".join(reply.err.split())


def test_tune_writes_the_best_plan_so_far(hlogym: Shell, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measurer, "measure", interrupting(Measurer.measure, 4))
    said = kept(hlogym("tune", suite / "chain.hlo", "--budget", "8", "--backend", "cpu", "-o", "plan.json"))
    assert "plan.json" in said
    text = (suite / "chain.hlo").read_text()
    x = np.full((64, 48), 0.5, np.float32)
    (out,) = compile(text, plan=CompilationPlan.load("plan.json"), backend="cpu")(x, x)
    np.testing.assert_allclose(out, np.full((64, 48), 1 / 48), rtol=1e-5)


def test_tune_writes_the_default_plan_if_none_was_faster(
    hlogym: Shell, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.tune.run_search", interrupting(lambda: None, 1))
    said = kept(hlogym("tune", suite / "chain.hlo", "--backend", "cpu", "-o", "plan.json"))
    assert "the default plan is written to plan.json" in said
    default = compile((suite / "chain.hlo").read_text(), backend="cpu").plan
    assert CompilationPlan.load("plan.json") == default


def test_reduce_writes_the_smallest_program_so_far(
    hlogym: Shell, suite: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = """
    from dataclasses import dataclass
    from typing import ClassVar

    @dataclass(frozen=True)
    class Afraid:
        name: ClassVar[str] = "afraid"
        def run(self, module):
            if any(i.opcode.text == "tanh" for i in module.entry.instructions):
                raise RuntimeError("tanh")
            return False
    """
    install(monkeypatch, tmp_path, source, {"hlogym.passes": {"afraid": "Afraid"}})
    import experiments.reduce

    monkeypatch.setattr(experiments.reduce, "_passes_fault", interrupting(experiments.reduce._passes_fault, 8))
    said = kept(hlogym("reduce", suite / "chain.hlo", "--passes", "dce,afraid", "-o", "small.hlo"))
    small = Path("small.hlo").read_text()
    assert small.startswith("// passes: ")
    module = parse(small)
    assert "tanh" in small
    assert module.instruction_count < parse((suite / "chain.hlo").read_text()).instruction_count
    assert f"{module.instruction_count} instructions" in said


def test_evaluate_writes_the_programs_it_has_compared(
    hlogym: Shell, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    export_policy(TorchPointerNetwork(network_shape(hidden=8, rounds=1)), Path("policy"), {"timesteps": 0})
    import experiments.evaluate

    monkeypatch.setattr(
        experiments.evaluate, "compare_strategies", interrupting(experiments.evaluate.compare_strategies, 2)
    )
    said = kept(
        hlogym("evaluate", "policy", "--suite", suite, "--baselines", "none", "--budget", "1", "--rounds", "2",
               "--backend", "cpu")
    )  # fmt: skip
    (file,) = Path("results").glob("evaluation-*.json")
    assert str(file) in said
    assert "1 of 2 programs" in said
    (row,) = json.loads(file.read_text())["programs"]
    assert row["program"] == load_suite(suite).programs[0].name


def test_suites_build_says_where_it_continues(hlogym: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.suites.build_suite", interrupting(lambda: None, 1))
    assert "kept in built; the same command continues" in kept(hlogym("suites", "build", "-o", "built"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_ends_upon_a_signal_and_keeps_its_rows(suite: Path, tmp_path: Path, number: signal.Signals) -> None:
    root = Path(experiments.__file__).parents[1]
    command = [sys.executable, "-m", "experiments.cli", "bench", "quickstart", "--json", "rows.json"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + 120
        while not (tmp_path / "rows.json").exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert 1 <= len(rows) < len(load_suite("quickstart").programs)
    assert "rows.json" in err
    assert "Time per call" in out
