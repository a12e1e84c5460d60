"""Commands with `--backend cuda` on a machine without a GPU: what needs none works, what needs one says so once."""

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from compiler.backends.cuda import bindings, emulation
from experiments.evaluate import evaluate_policy, reward_of_policy
from tests.env.small_programs import write_suite
from tests.experiments.shell import Shell

without_gpu = pytest.mark.skipif(bindings.why_unavailable() is None, reason="there is a GPU")
emulated = pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Shell(capsys, monkeypatch)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite") / "chain.hlo"


@without_gpu
def test_decisions_are_explained(hlogym: Shell, chain: Path) -> None:
    reply = hlogym("run", chain, "--backend", "cuda", "--explain")
    assert reply.status == 0, reply.err
    assert "generated cuda kernel" in reply.out
    assert reply.err.startswith("not run: ")
    facts = json.loads(hlogym("run", chain, "--backend", "cuda", "--explain", "--json").out)
    assert facts["explanation"]["kernels"]
    assert facts["not_run"]


@without_gpu
@pytest.mark.parametrize(
    "more", [(), ("--check", "--explain"), ("--profile", "--explain"), ("-o", "x.npz", "--explain")]
)
def test_what_needs_a_gpu_says_so(hlogym: Shell, chain: Path, more: tuple[str, ...]) -> None:
    assert str(bindings.why_unavailable()) in hlogym.fails("run", chain, "--backend", "cuda", *more)


@without_gpu
def test_measuring_is_not_tried_again(hlogym: Shell, chain: Path) -> None:
    said = hlogym.fails("tune", chain, "--backend", "cuda", "--budget", "2", "-o", "plan.json")
    assert str(bindings.why_unavailable()) in said
    assert "in a row" not in said


@without_gpu
def test_a_missing_gpu_is_no_fault_of_a_program(hlogym: Shell, chain: Path) -> None:
    said = hlogym.fails("reduce", chain, "--backend", "cuda", "-o", "small.hlo")
    assert str(bindings.why_unavailable()) in said
    assert not Path("small.hlo").exists()


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_page_shows_the_sources_of_kernels(hlogym: Shell, chain: Path, tmp_path: Path, backend: str) -> None:
    reply = hlogym("view", chain, "--backend", backend, "-o", "v.html")
    assert reply.status == 0, reply.err
    found = re.search(r"id='data'>([^<]*)</script>", (tmp_path / "v.html").read_text())
    assert found is not None
    data = json.loads(gzip.decompress(base64.b64decode(found.group(1))))
    sources = [data["words"][row[5]] for row in data["kernels"].values()]
    assert any(sources)
    assert all(("__global__" in s) == (backend == "cuda") for s in sources if s)


@emulated
def test_plans_are_searched_by_predicted_time(hlogym: Shell, chain: Path) -> None:
    reply = hlogym("tune", chain, "--reward", "emulated-time", "--budget", "3", "-o", "plan.json", "--json")
    assert reply.status == 0, reply.err
    facts = json.loads(reply.out)
    assert facts["reward"] == "emulated-time"
    assert facts["speedup"][0] >= 1
    plan = json.loads(Path("plan.json").read_text())
    assert plan["backend"] == "cuda"
    again = hlogym("tune", chain, "--reward", "emulated-time", "--budget", "3", "-o", "again.json", "--json")
    assert json.loads(again.out)["speedup"] == facts["speedup"]


def test_plans_are_searched_by_estimated_time(hlogym: Shell, chain: Path) -> None:
    reply = hlogym("tune", chain, "--reward", "estimated-time", "--backend", "cpu", "--budget", "3", "-o", "p.json")
    assert reply.status == 0, reply.err
    assert hlogym("run", chain, "--plan", "p.json", "--backend", "cpu", "--check").status == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--reward", "emulated-time", "--backend", "cpu"), "use the backend cuda, not cpu"),
        (("--reward", "emulated-time", "--workers", "local:2"), "leave --workers out"),
        (("--reward", "emulated"), "unknown reward 'emulated'"),
    ],
)
def test_contradictions_are_refused(hlogym: Shell, chain: Path, more: tuple[str, ...], message: str) -> None:
    assert message in hlogym.fails("tune", chain, "-o", "plan.json", *more)


def test_agents_do_not_learn_emulated_time_of_another_backend(hlogym: Shell, chain: Path) -> None:
    said = hlogym.fails("train", "--env", "hlogym/FusionEmulated-v0", "--backend", "cpu", "--suite", chain)
    assert "use the backend cuda, not cpu" in said


@emulated
def test_policies_are_evaluated_by_predicted_time(chain: Path, tmp_path: Path) -> None:
    found = evaluate_policy(
        "priority", [str(chain)], ["none"], 1, 2, "auto", 0, tmp_path / "results", as_json=True, reward="emulated-time"
    )
    assert found.backend == "cuda"
    assert "not measured" in found.provenance["times"]
    (program,) = found.programs
    speedup = program.strategies["none"].speedup
    assert speedup is not None
    assert speedup.value < 1  # nothing is fused, so there are more launches
    assert program.strategies["none"].kernels > 1


def test_what_trained_a_policy_evaluates_it() -> None:
    emulated_policy = {"environment": "hlogym/FusionEmulated-v0"}
    assert reward_of_policy(emulated_policy, "auto") == "emulated-time"
    assert reward_of_policy({"environment": "hlogym/Fusion-v0", "reward": "emulated-time"}, "cuda") == "emulated-time"
    assert reward_of_policy(emulated_policy, "cpu") == "measured-time"
    assert reward_of_policy({"environment": "hlogym/FusionMeasured-v0"}, "auto") == "measured-time"
