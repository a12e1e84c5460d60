"""Passes, policies, rewards, backends and suites of other distributions are found by name; faults are explained."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler import CompilationPlan, compile, parse
from compiler.backends.registry import find_backend
from compiler.errors import UnknownNameError
from compiler.passes.infrastructure.registry import PASSES, make_pass, pass_text
from compiler.support.plugins import ExtensionError
from env.rewards import make_reward
from env.suites import load_suite
from tests.env.small_programs import write_suite
from tests.experiments.shell import Shell
from tests.support.distribution import install

TEXT = "ENTRY e { x = f32[4] parameter(0) y = f32[4] negate(x) ROOT z = f32[4] negate(y) }"

DOUBLE = """
    from dataclasses import dataclass
    from typing import ClassVar

    @dataclass(frozen=True)
    class Double:
        "Replaces the root's negation by its operand."
        name: ClassVar[str] = "acme-double"
        loud: bool = False

        def run(self, module):
            root = module.entry.root
            if root.opcode.text != "negate" or root.operands[0].opcode.text != "negate":
                return False
            module.entry.root = root.operands[0].operands[0]
            return True
"""


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, monkeypatch)


def test_a_pass_is_found_by_name_in_text_and_plans(
    hlogym: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = install(monkeypatch, tmp_path, DOUBLE, {"hlogym.passes": {"acme-double": "Double"}})
    make_pass("dce")
    assert module not in sys.modules  # nothing is imported for the names of hlogym
    (tmp_path / "m.hlo").write_text(TEXT)
    reply = hlogym("opt", "m.hlo", "--passes", "acme-double,dce")
    assert reply.status == 0, reply.err
    assert "negate" not in reply.out
    assert pass_text(make_pass("acme-double{loud=true}")) == "acme-double{loud=true}"
    assert "acme-double" not in PASSES  # learned pass orders keep their actions
    plan = CompilationPlan(fingerprint=parse(TEXT).fingerprint(), passes=("acme-double", "dce"))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(compile(TEXT, plan=plan, backend="cpu")(x)[0], x)
    rows = json.loads(hlogym("list", "passes", "--json").out)
    assert rows[-1]["from"] == "acme 1.2"
    assert "loud" in rows[-1]["options"]


def test_a_policy_is_found_by_name(hlogym: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = """
    class First:
        "Takes the first legal action."
        def choose(self, state):
            return next(iter(state.actions()), None)

    def wrong():
        return 3
    """
    entries = {"hlogym.fusion_policies": {"acme-first": "First", "acme-wrong": "wrong", "acme-lost": "Lost"}}
    install(monkeypatch, tmp_path, source, entries)
    (tmp_path / "m.hlo").write_text(TEXT.replace("negate(y)", "tanh(y)"))
    reply = hlogym("run", "m.hlo", "--policy", "acme-first", "--backend", "cpu", "--check", "--json")
    assert len(json.loads(reply.out)["kernels"]) == 1
    message = hlogym.fails("run", "m.hlo", "--policy", "acme-wrong", "--backend", "cpu")
    assert "choose(state)" in message
    message = hlogym.fails("run", "m.hlo", "--policy", "acme-lost", "--backend", "cpu")
    assert "acme 1.2" in message
    assert "'acme-lost'" in message
    assert "Lost" in message
    with pytest.raises(UnknownNameError, match="acme-first"):
        compile(TEXT, fusion_policy="acme-fist")
    rows = {row["policy"]: row for row in json.loads(hlogym("list", "policies", "--json").out)}
    assert rows["acme-first"]["description"] == "Takes the first legal action."
    assert "acme 1.2" in rows["acme-lost"]["note"]


def test_rewards_suites_and_backends_are_found_by_name(
    hlogym: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_suite(tmp_path / "programs")
    source = f"""
    from compiler.backends.registry import BACKENDS
    from env.rewards import OpCount

    class Few(OpCount):
        "Counts."

    class Slow:
        name = "acme_slow"
        def __getattr__(self, attribute):
            return getattr(BACKENDS["interpreter"], attribute)

    def folder():
        return {str(folder)!r}

    SLOW = Slow()
    """
    entries = {
        "hlogym.rewards": {"acme-few": "Few"},
        "hlogym.suites": {"acme": "folder"},
        "hlogym.backends": {"acme_slow": "SLOW", "acme_half": "Few"},
    }
    module = install(monkeypatch, tmp_path, source, entries)
    assert type(make_reward("acme-few")).__module__ == module
    assert {p.suite for p in load_suite("acme").programs} == {"acme"}
    assert load_suite("acme/extra").programs == load_suite("acme").programs
    with pytest.raises(UnknownNameError, match="extra"):
        load_suite("acme/train")
    assert find_backend("acme_slow").name == "acme_slow"
    assert find_backend("auto").name != "acme_slow"
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(compile(TEXT, backend="acme_slow")(x)[0], x)
    with pytest.raises(ExtensionError, match=r"acme_half.* is no Backend, because it has no name, language"):
        find_backend("acme_half")
    rows = {row["backend"]: row for row in json.loads(hlogym("list", "backends", "--json").out)}
    assert rows["acme_slow"]["works"] == "yes"
    assert "is no Backend" in rows["acme_half"]["note"]
    assert any(row["suite"] == "acme" for row in json.loads(hlogym("list", "suites", "--json").out))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import acme_has_no_such_module", "ModuleNotFoundError"),
        ("Broken = 3", "is no class"),
        ("class Broken:\n    name = 'acme-broken'", "is no HloPass, because it has no run"),
        ("class Broken:\n    name = 'acme-broken'\n    def run(self, module): ...", "no frozen dataclass"),
    ],
)
def test_a_broken_pass_gets_one_message_and_breaks_nothing_else(
    hlogym: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, reason: str
) -> None:
    install(monkeypatch, tmp_path, source, {"hlogym.passes": {"acme-broken": "Broken", "dce": "Broken"}})
    (tmp_path / "m.hlo").write_text(TEXT)
    message = hlogym.fails("opt", "m.hlo", "--passes", "acme-broken")
    assert "the pass 'acme-broken' of acme 1.2" in message
    assert reason in message
    assert hlogym("opt", "m.hlo", "--passes", "dce").status == 0
    reply = hlogym("list", "passes", "--json")
    assert reply.status == 0
    notes = {row["pass"]: row.get("note", "") for row in json.loads(reply.out) if row.get("from")}
    assert reason in notes["acme-broken"]
    assert "not used" in notes["dce"]


def test_two_distributions_of_one_name_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("acme", "bolt"):
        install(monkeypatch, tmp_path, DOUBLE, {"hlogym.passes": {"acme-double": "Double"}}, name)
    with pytest.raises(ExtensionError, match=r"acme 1\.2 and bolt 1\.2 both declare the pass 'acme-double'"):
        make_pass("acme-double")
