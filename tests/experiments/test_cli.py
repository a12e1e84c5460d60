"""The command line exits with 0 on success, and with one message and no traceback on an error."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.export import export_policy
from agents.network import TorchPointerNetwork
from agents.searches import make_search
from compiler.learned.fusion_policy import network_shape
from compiler.policy import resolve_policy
from env.statistics import Interval
from experiments.config import TrainConfig
from experiments.noise import LoadWatch, _descendants, style_of, why_noisy
from experiments.provenance import package_version
from experiments.run_folder import new_run
from tests.env.small_programs import CHAIN, write_suite
from tests.experiments.shell import Shell

COMMANDS = (
    "run",
    "opt",
    "compile",
    "tune",
    "bench",
    "train",
    "tune-agent",
    "evaluate",
    "export",
    "report",
    "view",
    "doctor",
    "demo",
    "reduce",
    "list",
    "policies",
)


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Shell(capsys, monkeypatch)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite") / "chain.hlo"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    export_policy(TorchPointerNetwork(network_shape(hidden=8, rounds=1)), tmp_path / "policy", {"timesteps": 0})
    return tmp_path / "policy"


def test_invalid_seeds_and_files_are_rejected(hlogym: Shell, tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text("ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }")
    (tmp_path / "folder.hlo").mkdir()
    (tmp_path / "x.npz").write_text("no archive")
    for command in (("run",), ("tune", "-o", "p.json"), ("reduce", "-o", "r.hlo"), ("bench",)):
        reply = hlogym(*command, tmp_path / "m.hlo", "--seed", "-1")
        assert reply.status == 2
        assert "--seed" in reply.err
    assert "is a folder" in hlogym.fails("run", tmp_path / "folder.hlo")
    assert "the text is empty" in hlogym.fails("run", "/dev/null")
    assert "numpy.savez writes one" in hlogym.fails("run", tmp_path / "m.hlo", "--inputs", tmp_path / "x.npz")


# ---- commands that succeed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(hlogym: Shell, command: str) -> None:
    reply = hlogym(command, "--help")
    assert reply.status == 0
    assert "Example: hlogym " + command in " ".join(reply.out.split())
    assert "--json" in reply.out
    assert "--output" in reply.out


def test_run_checks_and_writes_outputs(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.5, 1, (64, 48)).astype(np.float32) for _ in range(2))
    np.savez(tmp_path / "in.npz", y=y, x=x)
    reply = hlogym(
        "run", chain, "--inputs", "in.npz", "--backend", "cpu", "--check", "--output", "out.npz", "--profile"
    )
    assert reply.status == 0, reply.err
    assert "agree with the interpreter" in reply.out
    a = np.tanh(x * y) + x
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["out0"], a / a.sum(1, keepdims=True), rtol=1e-5)


def test_programs_that_take_tuples_run_on_drawn_and_on_given_arrays(hlogym: Shell, tmp_path: Path) -> None:
    program = tmp_path / "pair.hlo"
    program.write_text(
        "HloModule pair\nENTRY e {\n  p = (f32[4], (f32[4], s32[])) parameter(0)\n  q = f32[4] parameter(1)\n"
        "  a = f32[4] get-tuple-element(p), index=0\n  r = (f32[4], s32[]) get-tuple-element(p), index=1\n"
        "  b = f32[4] get-tuple-element(r), index=0\n  c = f32[4] subtract(a, b)\n  ROOT d = f32[4] add(c, q)\n}\n"
    )
    a, b, q = (np.arange(4, dtype=np.float32) ** k for k in (1, 2, 3))
    np.savez(tmp_path / "in.npz", a, b, np.int32(7), q)
    reply = hlogym("run", program, "--inputs", tmp_path / "in.npz", "--check", "-o", tmp_path / "out.npz")
    assert reply.status == 0, reply.err
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["out0"], a - b + q)
    assert hlogym("run", program, "--check").status == 0
    assert hlogym("run", program, "--check", "--backend", "interpreter").status == 0
    np.savez(tmp_path / "three.npz", a, b, q)
    assert "holds 3 arrays, and the program takes 4" in hlogym.fails("run", program, "--inputs", tmp_path / "three.npz")


def test_version_is_that_of_the_distribution(hlogym: Shell) -> None:
    reply = hlogym("--version")
    assert reply.status == 0
    assert reply.out.startswith(f"hlogym {package_version('hlogym')} (Python 3.")


def test_list_names_what_other_commands_take(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    def names(kind: str, column: str, *options: str | Path) -> list[str]:
        return [row[column] for row in json.loads(hlogym("list", kind, "--json", *options).out)]

    assert names("programs", "program", "--suite", chain.parent) == ["chain", "loop"]
    assert {"quickstart", "jax", "kernels"} <= set(names("suites", "suite"))
    assert "while-loop-unroller" in names("passes", "pass")
    assert {"cpu", "cuda", "interpreter"} <= set(names("backends", "backend"))
    assert "hlogym/FusionMeasured-v0" in names("environments", "environment")
    assert set(names("environments", "reward")) == {"estimated-time", "measured-time", "emulated-time"}
    assert set(names("environments", "reward")) <= set(names("rewards", "reward"))
    for policy in names("policies", "policy"):
        resolve_policy(policy, "cpu")
    for search in names("searches", "search"):
        make_search(search)
    settings = {row["setting"]: row["default"] for row in json.loads(hlogym("list", "settings", "--json").out)}
    assert settings["total_timesteps"] == "20000"
    new_run(tmp_path / "runs", "mine", TrainConfig())
    assert names("runs", "run") == ["mine"]
    hlogym("list", "runs", "-o", "runs.json")
    assert json.loads(Path("runs.json").read_text())[0]["finished"] == "no"
    assert "there are no runs" in hlogym("list", "runs", "--runs", "elsewhere").out
    kinds = {row["kind"]: row["number"] for row in json.loads(hlogym("list", "--json").out)}
    assert int(kinds["backends"]) >= 3
    assert "did you mean 'passes'" in hlogym.fails("list", "pases")


def test_run_prints_the_time_of_a_call(hlogym: Shell, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadWatch, "others", lambda watch: 0.0)
    assert "per call, median of " in hlogym("run", chain, "--backend", "cpu").out
    monkeypatch.setattr(LoadWatch, "others", lambda watch: 1.5)
    assert "noisy: other processes kept 1.5 of " in hlogym("run", chain, "--backend", "cpu").out
    time = json.loads(hlogym("run", chain, "--backend", "cpu", "--json").out)["time"]
    median, low, high = time["seconds"]
    assert 0 < low <= median <= high
    assert "1.5 of" in time["noise"]


def test_children_are_not_other_processes() -> None:
    parents = {1: 0, 10: 1, 20: 10, 21: 10, 30: 21, 40: 1}
    assert _descendants(10, parents) == {20, 21, 30}


def test_busy_processes_of_others_are_noticed() -> None:
    spin = [sys.executable, "-c", "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"]
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run([sys.executable, "-c", start, *spin], check=True)  # its parent has ended
    watch = LoadWatch()
    time.sleep(1.5)
    others = watch.others()
    assert others is not None
    assert others > 0.3
    assert "cores busy" in (watch.why_noisy() or "")


def test_a_noisy_machine_colors_nothing() -> None:
    gain, same, loss = Interval(1.2, 1.1, 1.3), Interval(1.02, 0.99, 1.05), Interval(0.9, 0.85, 0.95)
    assert [style_of(r) for r in (gain, same, loss)] == ["green", "", "red"]
    assert [style_of(r, "other processes") for r in (gain, same, loss)] == ["", "", ""]
    assert style_of(Interval(1.2, -math.inf, math.inf)) == ""


def test_calls_that_differ_are_marked_as_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert why_noisy(Interval(1.0, 0.98, 1.03)) is None
    assert why_noisy(Interval(1.0, 0.9, 1.4)) == "calls differ by 50%"


def test_outputs_and_json_have_the_same_options_everywhere(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    assert hlogym("opt", chain, "--passes", "dce", "-o", "dce.hlo").out == ""
    assert Path("dce.hlo").read_text() == hlogym("opt", chain, "--passes", "dce").out
    reply = hlogym("compile", chain, "-o", "aot", "--backend", "cpu", "--json")
    assert json.loads(reply.out) == {"folder": "aot", "backend": "cpu", "kernels": 1}
    assert hlogym("run", chain, "--backend", "cpu", "-o", "out.npz").status == 0
    assert list(np.load(tmp_path / "out.npz")) == ["out0"]
    reply = hlogym("bench", chain, "--rounds", "2", "--json", "-", "-o", "table.md")
    assert json.loads(reply.out)["rows"][0]["program"] == "chain"
    assert "chain" in Path("table.md").read_text()
    reply = hlogym("bench", chain, "--rounds", "2", "--json")
    assert json.loads(reply.out)["rows"][0]["program"] == "chain"
    assert json.loads(hlogym("opt", chain, "--passes", "dce", "--json").out)["hlo"] == Path("dce.hlo").read_text()
    for command in (("doctor",), ("policies",), ("suites",), ("opt", "--list-passes")):
        reply = hlogym(*command, "-o", "answer.json", "--json")
        assert json.loads(Path("answer.json").read_text()) == json.loads(reply.out)
    reply = hlogym("bench", chain, "--json", "a.json", "-o", "b.json")
    assert reply.status == 2
    assert "two files" in reply.err


def test_run_prints_json(hlogym: Shell, chain: Path) -> None:
    reply = hlogym("run", chain, "--backend", "cpu", "--check", "--json")
    data = json.loads(reply.out)
    assert data["equals_interpreter"] is True
    assert data["outputs"] == [{"dtype": "float32", "shape": [64, 48]}]


def test_compile_writes_a_program_that_load_runs(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    from compiler import load

    reply = hlogym("compile", chain, "-o", "chain.aot", "--backend", "cpu")
    assert reply.status == 0
    assert "1 kernel\n" in reply.out
    x = np.full((64, 48), 0.5, np.float32)
    (out,) = load(tmp_path / "chain.aot")(x, x)
    np.testing.assert_allclose(out, np.full((64, 48), 1 / 48), rtol=1e-5)


def test_opt_prints_hlo_that_parses(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    reply = hlogym("opt", chain, "--passes", "cse,dce", "--stats")
    assert reply.status == 0
    assert "dce" in reply.err
    (tmp_path / "again.hlo").write_text(reply.out)
    assert hlogym("opt", "again.hlo", "--passes", "dce").out == reply.out
    assert "while-loop-unroller" in hlogym("opt", "--list-passes").out


def test_fused_hlo_is_printed_and_read_back(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    fused = hlogym("opt", chain, "--fused")
    assert fused.status == 0, fused.err
    assert "kind=kLoop" in fused.out
    (tmp_path / "fused.hlo").write_text(fused.out)
    reply = hlogym("run", "fused.hlo", "--keep-fusions", "--backend", "cpu", "--check", "--explain")
    assert reply.status == 0, reply.err
    assert "agree with the interpreter" in reply.out
    assert "it was fused when compilation began" in " ".join(reply.out.split())
    assert "need --fused" in hlogym("opt", chain, "--for-xla").err
    assert "exclude each other" in hlogym("run", chain, "--keep-fusions", "--plan", "p.json").err


def test_run_explains_in_json(hlogym: Shell, chain: Path) -> None:
    data = json.loads(hlogym("run", chain, "--backend", "cpu", "--policy", "heuristic", "--json", "--explain").out)
    assert data["explanation"]["decided_by"]["fusion"] == "default"
    assert len(data["explanation"]["kernels"]) == len(data["kernels"])


def test_tune_writes_a_plan_that_run_replays(hlogym: Shell, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    reply = hlogym("tune", chain, "--budget", "3", "--backend", "cpu", "-o", "plan.json", "--json")
    assert reply.status == 0, reply.err
    assert json.loads(reply.out)["measurements"] >= 1
    assert hlogym("run", chain, "--plan", "plan.json", "--backend", "cpu", "--check").status == 0


def test_view_writes_one_page(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    reply = hlogym("view", chain, "-o", "v.html")
    assert reply.status == 0, reply.err
    page = (tmp_path / "v.html").read_text()
    assert "id='data'" in page
    assert "default-src 'none'" in page  # the page cannot reach a network


def test_outputs_that_cannot_be_checked_are_reported(hlogym: Shell, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.hlo"
    nothing.write_text(
        "HloModule m\nENTRY e { x = f32[8] parameter(0) a = f32[8] abs(x) n = f32[8] negate(a) l = f32[8] log(n)\n"
        "ROOT t = (f32[8], f32[8]) tuple(a, l) }"
    )
    reply = hlogym("run", nothing, "--backend", "cpu", "--check")
    assert reply.status == 0
    assert "warning: output 1 is NaN everywhere" in reply.err
    assert "agree with the interpreter" not in reply.out
    reply = hlogym("run", nothing, "--backend", "cpu", "--check", "--json")
    summary = json.loads(reply.out)
    assert summary["equals_interpreter"] is None
    assert summary["unchecked"] == ["output 1 is NaN everywhere"]
    assert "output 1 is NaN everywhere" in hlogym("bench", nothing, "--backend", "cpu", "--rounds", "2").err
    assert "no fault was found, but output 1 is NaN everywhere" in hlogym.fails(
        "reduce", nothing, "-o", "small.hlo", "--backend", "cpu"
    )


def test_evaluate_and_report(
    hlogym: Shell, chain: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    budget = ("--budget", "2", "--rounds", "3", "--backend", "cpu")
    reply = hlogym("evaluate", policy, "--suite", chain.parent, *budget)
    assert reply.status == 0, reply.err
    for word in ("chain", "loop", "priority", "random", "learned+search", "held out", "geometric mean"):
        assert word in reply.out
    (written,) = (tmp_path / "results").glob("evaluation*.json")
    data = json.loads(written.read_text())
    assert {"command", "commit", "date", "machine"} <= data["provenance"].keys()
    for p in data["programs"]:
        assert p["strategies"]["random"]["measurements"] == p["strategies"]["learned+search"]["measurements"] == 2
    assert hlogym("report").status == 0
    page = (tmp_path / "results" / "report.html").read_text()
    assert "Speedup of each program" in page
    assert "<script" not in page
    assert "src=" not in page


def test_doctor_reports_the_backends_that_work(hlogym: Shell) -> None:
    reply = hlogym("doctor", "--json")
    findings = {(x["group"], x["name"]): x for x in json.loads(reply.out)}
    assert findings["backends", "cpu"]["ok"] is True
    assert findings["backends", "interpreter"]["ok"] is True


# ---- commands that fail


def test_a_syntax_error_is_reported_with_its_position(hlogym: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0\n}\n")
    message = hlogym.fails("run", "broken.hlo")
    assert "broken.hlo:" in message
    assert "^" in message


def test_an_unknown_op_is_named_with_its_line(hlogym: Shell, tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(
        "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT r = f32[4] ad(p, p)\n}\n"
    )
    message = hlogym.fails("run", "m.hlo")
    assert "ad" in message
    assert ":4:" in message


def test_a_file_that_is_not_text(hlogym: Shell, tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_bytes(bytes(range(128, 256)))
    assert "m.hlo" in hlogym.fails("run", "m.hlo")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("run", "softmx"), "'softmax'"),
        (("run", "suite/chian.hlo"), "chain.hlo"),
        (("run", "CHAIN", "--backend", "cpuu"), "'cpu'"),
        (("run", "CHAIN", "--backend", "cpu", "--policy", "priorty"), "'priority'"),
        (("opt", "CHAIN", "--passes", "dec"), "'dce'"),
        (("opt", "CHAIN", "--passes", "while-loop-unroller{facto=2}"), "factor"),
        (("train", "--env", "hlogym/Fusin-v0"), "Fusion-v0"),
        (("train", "--suite", "trian"), "'train'"),
        (("train", "--agent", "ppo"), "maskable-ppo"),
        (("bench", "softmax", "--against", "xlla"), "'xla'"),
        (("evaluate", "POLICY", "--baselines", "randm"), "'random'"),
        (("evaluate", "nowhere"), "nowhere"),
        (("export", "no-such-run", "-o", "p"), "no-such-run"),
        (("report", "--results", "nowhere"), "hlogym evaluate"),
        (("run", "CHAIN", "--plan", "nowhere.json"), "nowhere.json"),
        (("run", "CHAIN", "--inputs", "nowhere.npz"), "nowhere.npz"),
    ],
)
def test_an_unknown_name_is_reported_with_similar_names(
    hlogym: Shell, chain: Path, policy: Path, arguments: tuple[str, ...], hint: str
) -> None:
    given = [{"CHAIN": str(chain), "POLICY": str(policy)}.get(a, a) for a in arguments]
    assert hint in hlogym.fails(*given)


def test_wrong_arguments_are_reported_with_expected_and_actual(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 3), np.float32), y=np.ones((64, 48), np.float32))
    message = hlogym.fails("run", chain, "--inputs", "in.npz", "--backend", "cpu")
    assert "64" in message
    assert "3" in message
    np.savez(tmp_path / "one.npz", x=np.ones(3, np.float32))
    assert "takes 2" in hlogym.fails("run", chain, "--inputs", "one.npz")
    (tmp_path / "no.npz").write_text("no archive")
    assert "no.npz" in hlogym.fails("run", chain, "--inputs", "no.npz")


def test_no_c_compiler(hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A program that no other test compiles, so that its kernels are not in a cache.
    (tmp_path / "m.hlo").write_text(CHAIN.replace("48", "47"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    from compiler.backends.cpu import toolchain as cpu

    if hasattr(cpu.toolchain, "cache_clear"):
        cpu.toolchain.cache_clear()
    try:
        assert "compiler" in hlogym.fails("run", "m.hlo", "--backend", "cpu")
    finally:
        if hasattr(cpu.toolchain, "cache_clear"):
            cpu.toolchain.cache_clear()


def test_a_policy_of_another_feature_version(hlogym: Shell, chain: Path, policy: Path) -> None:
    data = json.loads((policy / "policy.json").read_text())
    (policy / "policy.json").write_text(json.dumps({**data, "feature_version": 99}))
    assert "version 99" in hlogym.fails("run", chain, "--backend", "cpu", "--policy", policy)
    assert "version 99" in hlogym.fails("evaluate", policy)


def test_an_unwritable_results_folder(hlogym: Shell, policy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (
        ("evaluate", policy, "--results", "file/results"),
        ("train", "--env", "hlogym/Fusion-v0", "--runs", "file/runs"),
        ("demo", "--folder", "file/demo"),
        ("tune", "softmax", "-o", "file/plan.json"),
    ):
        assert "cannot write" in hlogym.fails(*command)


def test_a_damaged_plan(hlogym: Shell, chain: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"format": 1')
    assert "plan" in hlogym.fails("run", chain, "--plan", "plan.json")


def test_debug_shows_the_traceback(hlogym: Shell) -> None:
    with pytest.raises(ValueError, match="softmx"):
        hlogym("run", "softmx", "--debug")


def test_a_usage_error_exits_with_status_two(hlogym: Shell) -> None:
    assert hlogym("run").status == 2
    assert hlogym("no-such-command").status == 2


def test_policies_are_listed_and_taken_by_name(hlogym: Shell, chain: Path) -> None:
    listed = {p["name"]: p for p in json.loads(hlogym("policies", "--json").out)}
    assert listed["heuristic"]["decides"] == ["passes", "expansions", "loops", "fusion", "kernels"]
    assert listed["priority"]["decides"] == ["fusion"]
    assert "learned:rules" in hlogym("policies").out
    run = ("run", chain, "--backend", "cpu", "--json", "--explain", "--policy")
    for name, fusion in (("heuristic", "default"), ("priority", "priority"), ("learned", "learned")):
        decided = json.loads(hlogym(*run, name).out)["explanation"]["decided_by"]
        assert decided["fusion"].partition("@")[0] == (fusion if "fusion" in listed[name]["decides"] else "default")
        assert ("expansions" in decided) == (name == "learned")
    assert "did you mean 'learned'" in hlogym.fails("run", chain, "--policy", "learnd")
    assert "there is no policy folder" in hlogym.fails("opt", chain, "--fused", "--policy", "./nowhere")


@pytest.mark.parametrize(
    "command",
    [
        ["run", ""], ["compile", "CHAIN", "-o", ""], ["compile", "CHAIN", "--output="], ["view", "CHAIN", "-o", ""],
        ["run", "CHAIN", "--policy", ""], ["run", "CHAIN", "--plan", ""], ["opt", "CHAIN", "--order", ""],
        ["diff", "CHAIN", ""], ["bench", "CHAIN", ""], ["evaluate", ""], ["evaluate", "heuristic", "--suite", ""],
        ["train", "--suite", ""], ["train", "--runs", ""], ["export", "", "-o", "x"], ["leaderboard", "page", "-o", ""],
    ],
)  # fmt: skip
def test_empty_names_are_refused_and_nothing_is_written(
    hlogym: Shell, chain: Path, command: list[str], tmp_path: Path
) -> None:
    """A variable of a shell that is not set must not make the current folder a compiled program."""
    before = set(tmp_path.iterdir())
    result = hlogym(*[str(chain) if a == "CHAIN" else a for a in command])
    assert result.status == 2
    assert "the name is empty" in result.err
    assert set(tmp_path.iterdir()) == before


def test_an_empty_list_of_passes_runs_none(hlogym: Shell, tmp_path: Path) -> None:
    file = tmp_path / "unused.hlo"
    file.write_text("HloModule m\nENTRY e { x = f32[4] parameter(0)  n = f32[4] negate(x)  ROOT m = f32[4] negate(n) }")
    assert hlogym("opt", file, "--passes", "").out.count("negate(") == 2
    assert hlogym("opt", file).out.count("negate(") == 0
    assert "'dce,,cse' has an empty part" in hlogym.fails("opt", file, "--passes", "dce,,cse")
