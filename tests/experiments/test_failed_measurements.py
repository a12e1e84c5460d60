"""Commands that measure report each failure with its reason, and exit with an error if everything failed."""

import json
from pathlib import Path
from typing import Any

import pytest

from agents.export import export_policy
from agents.ppo import make_ppo, network_of
from agents.settings import PointerSettings
from compiler.errors import UnsupportedError
from compiler.ir import HloModule
from compiler.session import CompilationSession
from env import worker_process
from env.environments import FusionEnv
from env.isolated import python_command
from experiments.run import compile_program
from tests.env.small_programs import CHAIN, LOOP, write_suite
from tests.experiments.shell import Shell


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, monkeypatch)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    env = FusionEnv(write_suite(tmp_path / "learned-on"))
    export_policy(network_of(make_ppo(env, PointerSettings(hidden=8))), tmp_path / "policy", {"programs": []})
    return tmp_path / "policy"


def always_wrong(monkeypatch: pytest.MonkeyPatch, condition: str = "True") -> None:
    code = f"""
import env.worker as w
real = w.difference
w.difference = lambda got, *more: "output 0: all wrong" if {condition} else real(got, *more)
w.main()
"""
    monkeypatch.setattr(worker_process, "python_command", lambda _: python_command(code))


def suite(folder: Path, **programs: str) -> Path:
    folder.mkdir()
    for name, text in programs.items():
        (folder / f"{name}.hlo").write_text(text)
    return folder


def test_tune_fails_if_the_program_cannot_be_measured(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_wrong(monkeypatch)
    folder = suite(tmp_path / "suite", chain=CHAIN)
    said = hlogym.fails("tune", folder / "chain.hlo", "--budget", "2", "-o", "plan.json")
    assert "wrong: output 0: all wrong" in said
    assert str(folder / "chain.hlo") in said
    assert not (tmp_path / "plan.json").exists()


def test_evaluate_continues_after_a_failing_program_and_reports_it(
    hlogym: Shell, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    always_wrong(monkeypatch, "got[0].shape == (256,)")
    real = CompilationSession.run_passes

    def run_passes(session: CompilationSession, *passes: Any) -> bool:
        if session.module.name == "broken":
            raise UnsupportedError("no pass can read this")
        return real(session, *passes)

    monkeypatch.setattr(CompilationSession, "run_passes", run_passes)
    folder = suite(
        tmp_path / "suite", chain=CHAIN, loop=LOOP, broken=CHAIN.replace("HloModule chain", "HloModule broken")
    )
    command = ("evaluate", policy, "--baselines", "none", "--budget", "1", "--rounds", "2", "--json")
    reply = hlogym(*command, "--suite", folder)
    assert reply.status == 0, reply.err
    results = {p["program"]: p["strategies"] for p in json.loads(reply.out)["programs"]}
    assert results["chain"]["learned"]["seconds"] is not None
    assert "all wrong" in results["loop"]["learned+search"]["failure"]
    assert "no pass can read this" in results["broken"]["none"]["failure"]
    assert "broken: none: " in reply.err
    assert "loop: learned: wrong: output 0: all wrong" in reply.err

    (folder / "chain.hlo").unlink()
    said = hlogym.fails(*command, "--suite", folder)
    assert "nothing could be measured on any of 2 programs" in said
    assert "all wrong" in said
    assert "no pass can read this" in said


def test_bench_continues_after_a_failing_program_and_exits_with_an_error(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compile_program

    def faulty(module: HloModule, *more: Any) -> Any:
        if module.name == "loop":
            raise UnsupportedError("no kernel for it")
        return real(module, *more)

    monkeypatch.setattr("experiments.bench.compile_program", faulty)
    folder = suite(tmp_path / "suite", broken=LOOP, chain=CHAIN)
    reply = hlogym("bench", folder, "--rounds", "2", "--json", "rows.json")
    assert reply.status == 1
    assert "chain" in reply.out
    assert "broken: hlogym left out: no kernel for it" in reply.err
    assert "error: 1 of 2 programs failed" in reply.err
    rows = {r["program"]: r for r in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert rows["chain"]["seconds"]["hlogym"][0] > 0
    assert "no kernel for it" in rows["broken"]["failures"]["hlogym"]


def test_bench_fails_if_a_requested_peer_is_missing(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise RuntimeError("no such compiler here")

    monkeypatch.setattr("experiments.bench.make_peer", absent)
    folder = suite(tmp_path / "suite", chain=CHAIN)
    reply = hlogym("bench", folder, "--rounds", "2", "--against", "xla")
    assert reply.status == 1
    assert "no such compiler here" in reply.err
    assert "error: not compared with xla" in reply.err
