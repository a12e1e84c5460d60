"""`hlogym diff`: what differs, and plans in which one difference is taken back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.export import export_policy
from agents.network import TorchPointerNetwork
from compiler import CompilationPlan, compile, parse
from compiler.api import decide_all
from compiler.expansions import ExpansionSite
from compiler.learned.features.candidates import SAVING_COLUMN
from compiler.learned.fusion_policy import network_shape
from compiler.loops import KernelLoops
from compiler.policy import Policy
from compiler.session import CompilationSession
from env.statistics import Interval
from env.suites import program_in
from experiments.differences.command import differences_page
from experiments.differences.finding import Difference, find_differences
from experiments.differences.kernels import regions
from experiments.differences.measuring import Worth
from experiments.differences.reasons import policy_reasons
from experiments.differences.sides import Side, side_of
from tests.env.small_programs import LOOP
from tests.experiments.shell import Shell

TWO = """HloModule two
ENTRY e {
  x = f32[64,48] parameter(0)
  y = f32[32,16] parameter(1)
  a = f32[64,48] tanh(x)
  b = f32[64,48] multiply(a, x)
  c = f32[32,16] exponential(y)
  d = f32[32,16] subtract(c, y)
  ROOT t = (f32[64,48], f32[32,16]) tuple(b, d)
}
"""

CONVOLUTION = """HloModule convolution
ENTRY e {
  x = f32[1,8,8,4] parameter(0)
  w = f32[3,3,4,20] parameter(1)
  ROOT c = f32[1,8,8,20] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
}
"""


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, monkeypatch)


def differences(text: str, first: str | Side, second: str | Side) -> list[Difference]:
    module = parse(text)
    sides = [s if isinstance(s, Side) else side_of(s, module, "cpu") for s in (first, second)]
    return find_differences(module, "cpu", sides[0], sides[1])


def plan_of(text: str, policy: str | None = None) -> CompilationPlan:
    plan = compile(text, policy=policy).plan
    assert plan is not None
    return plan


def kernels(text: str, plan: CompilationPlan | None) -> set[str]:
    assert plan is not None
    return {k.name for k in compile(text, plan=plan).kernels}


def test_a_plan_does_not_differ_from_itself() -> None:
    assert differences(TWO, "default", "default") == []


def test_each_region_is_taken_back_alone() -> None:
    found = differences(TWO, "none", "default")
    assert [(d.phase, d.where) for d in found] == [("fusion", "%a, %b"), ("fusion", "%c, %d")]
    first, second = found
    assert first.first == "2 kernels: %a (1), %b (1)"
    assert first.second.startswith("1 kernel: %")
    assert first.second.endswith(" (2)")
    assert {"c", "d"} < kernels(TWO, first.without)
    assert not {"a", "b"} & kernels(TWO, first.without)
    assert {"a", "b"} < kernels(TWO, second.without)
    assert not {"c", "d"} & kernels(TWO, second.without)
    assert first.estimate is not None
    assert first.estimate < 0  # the plan without fusions is slower for it


def test_the_other_direction_takes_fusions_back() -> None:
    first, _ = differences(TWO, "default", "none")
    assert {"a", "b"} < kernels(TWO, first.without)
    assert not {"c", "d"} & kernels(TWO, first.without)
    x, y = np.ones((64, 48), np.float32), np.ones((32, 16), np.float32)
    for got, want in zip(compile(TWO, plan=first.without)(x, y), (np.tanh(x) * x, np.exp(y) - y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_kernel_choices_are_taken_back_alone() -> None:
    module = parse(TWO)
    session = CompilationSession(module)
    session.run_passes()
    names = []
    for site in session.kernel_sites():
        session.set_kernel(site, 1)
        names.append(site.name)
    chosen = session.plan
    assert {n for row in chosen.kernels.values() for n in row} == set(names) == {"a", "b", "c", "d"}
    found = differences(TWO, Side("mine", chosen), Side("plain", replace(chosen, kernels={}, places={})))
    assert [(d.phase, d.where) for d in found] == [("kernels", f"%{n}") for n in ("a", "b", "c", "d")]
    for d in found:
        assert d.without is not None
        left = {n for row in d.without.kernels.values() for n in row}
        assert left == set(names) - {d.where.removeprefix("%")}
        assert d.second == "the default"


def test_kernels_are_the_same_under_other_names() -> None:
    module, forward = parse(TWO), CompilationSession(parse(TWO))
    actions = forward.actions()
    backward = forward.fork()
    for session, order in ((forward, actions), (backward, actions[::-1])):
        for action in order:
            if session.why_not(action) is None:
                session.apply(action)
    assert forward.plan != backward.plan
    assert find_differences(module, "cpu", Side("a", forward.plan), Side("b", backward.plan)) == []


def test_a_loop_is_taken_back_with_all_that_follows() -> None:
    kept = CompilationSession(parse(LOOP))
    kept.run_passes()
    for site in kept.loops():
        kept.set_loop(site, "keep")
    assert kept.fusion
    loop, *rest = differences(LOOP, "default", Side("kept", kept.plan))
    assert (loop.phase, loop.first, loop.second) == ("loops", "kernel", "keep")
    assert loop.without is not None
    assert set(loop.without.loops.values()) == {"keep"}
    assert [d.phase for d in rest] == ["fusion"]
    assert rest[0].without is None
    assert rest[0].note == "follows from the differences above"


class _Keep:
    """An expansion policy with a reason."""

    name = "keep"

    def choose_expansion(self, site: ExpansionSite) -> str:
        return "keep"

    def explain(self, site: ExpansionSite) -> str:
        return f"keep of {len(site.choices)} choices: predicted 1.5x"


def test_an_expansion_has_the_reason_of_its_policy() -> None:
    module = parse(CONVOLUTION)
    session = CompilationSession(module)
    decide_all(session, policy := Policy("mine", expansions=_Keep()))
    default = side_of("default", module, "cpu")
    found = find_differences(module, "cpu", Side("mine", session.plan, policy), default)[0]
    assert (found.phase, found.where, found.first, found.second) == ("expansions", "%e/c", "keep", "patches")
    assert found.reason == "keep of 3 choices: predicted 1.5x"
    assert found.without is not None
    assert not found.without.expansions  # patches, the default, need no decision
    assert found.without.fusions == default.plan.fusions


def test_reasons_of_every_choice() -> None:
    module = parse(CONVOLUTION)
    session = CompilationSession(module)
    decide_all(session, policy := Policy("mine", expansions=_Keep(), loops=KernelLoops()))
    (reason,) = policy_reasons(module, "cpu", Side("mine", session.plan, policy))
    assert reason == ("expansions", "%e/c", "keep of 3 choices: predicted 1.5x")
    assert policy_reasons(module, "cpu", Side("recorded", session.plan)) == []


def test_run_explains_the_choices_of_a_policy(hlogym: Shell, tmp_path: Path) -> None:
    (tmp_path / "c.hlo").write_text(CONVOLUTION)
    assert "expansions  %e/c: " in hlogym("run", "c.hlo", "--policy", "learned", "--explain").out
    data = json.loads(hlogym("run", "c.hlo", "--policy", "learned", "--explain", "--json").out)
    reasons = data["explanation"]["reasons"]
    assert [r["where"] for r in reasons if r["phase"] == "expansions"] == ["%e/c"]


def test_a_learned_fusion_policy_gives_its_scores(tmp_path: Path) -> None:
    torch.manual_seed(3)
    network = TorchPointerNetwork(network_shape(hidden=16, rounds=1))
    with torch.no_grad():
        network.prior.weight[0, SAVING_COLUMN] = 4
    export_policy(network, tmp_path / "policy", {})
    module = parse(TWO)
    side = side_of(str(tmp_path / "policy"), module, "cpu")
    assert {s.action for s in side.plan.steps} == set(side.reasons)
    found = [d for d in find_differences(module, "cpu", side, side_of("none", module, "cpu")) if d.phase == "fusion"]
    assert found
    assert all("(score " in d.reason for d in found)


def test_regions_are_apart_unless_they_share_what_is_computed_once() -> None:
    a, b, ab, c, d, cd = (("e", frozenset(n)) for n in ("a", "b", "ab", "c", "d", "cd"))
    assert regions([a, b, c, d], [ab, cd]) == [({a, b}, {ab}), ({c, d}, {cd})]
    assert regions([a, b], [a, b]) == []
    # x is computed in both kernels of the first: it joins nothing.
    ax, bx, x = (("e", frozenset(n)) for n in ("ax", "bx", "x"))
    assert sorted(map(len, (g[0] for g in regions([ax, bx], [a, b, x])))) == [0, 1, 1]


def test_a_worth_counts_beyond_the_noise() -> None:
    worth = Worth(None, Interval(1.0, 0.97, 1.04))
    assert worth.counts(Interval(1.1, 1.05, 1.2))
    assert worth.counts(Interval(0.9, 0.8, 0.96))
    assert not worth.counts(Interval(1.1, 1.03, 1.2))
    assert not Worth(None, Interval(1.0, 1.0, 1.0)).counts(Interval(1.005, 1.004, 1.006))


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "two.hlo").write_text(TWO)
    hostile = "<script>alert(1)</script>"
    plan = plan_of(TWO)
    found = [Difference("fusion", hostile, hostile, hostile, hostile, note=hostile)]
    worth = Worth(Interval(2.0, 1.9, 2.1), Interval(1.0, 0.9, 1.1), {0: Interval(1e30, 1e29, 1e31)})
    side = Side(hostile, plan)
    page = differences_page(program_in(tmp_path / "two.hlo"), side, side, found, worth)
    assert "<script" not in page
    assert "1e+30x" in page


def test_the_command_measures_and_writes(hlogym: Shell, tmp_path: Path) -> None:
    (tmp_path / "two.hlo").write_text(TWO)
    plan_of(TWO, "none").save(tmp_path / "plan.json")
    reply = hlogym("diff", "two.hlo", "plan.json", "--measure", "--rounds", "3", "--json", "-o", "page.html")
    assert reply.status == 0, reply.err
    data = json.loads(reply.out)
    assert [d["where"] for d in data["differences"]] == ["%a, %b", "%c, %d"]
    assert all(low <= value <= high for value, low, high in (d["worth"] for d in data["differences"]))
    assert data["measured"]["speedup"][0] > 0
    page = (tmp_path / "page.html").read_text()
    assert "plan.json" in page
    assert "<th>worth</th>" in page
    assert "<th>reason</th>" not in page  # no policy says anything
    text = hlogym("diff", "two.hlo", "default").out
    assert "no differences" in text
    (tmp_path / "loop.hlo").write_text(LOOP)
    assert "made for another module" in hlogym.fails("diff", "loop.hlo", "plan.json")
    assert "policy" in hlogym.fails("diff", "two.hlo", "defautl")
    assert "would be overwritten" in hlogym.fails("diff", "two.hlo", "plan.json", "-o", "plan.json")
