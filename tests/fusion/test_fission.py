"""Tests of fission: a value of a fusion gets a kernel of its own again."""

import numpy as np
import pytest

from compiler.errors import ArgumentError, FusionError
from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import RandomFusion, make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.session import CompilationSession
from tests.fusion.checks import check, take_apart
from tests.fusion.programs import entry, optimized
from tests.fuzz.fusion_walks import Tally, walk

CHAIN = """ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8] parameter(0)
  %a = f32[8] negate(%x)
  %b = f32[8] sine(%a)
  %c = f32[8] cosine(%a)
  ROOT %t = (f32[8], f32[8]) tuple(%b, %c)
}"""


def _fuse(state: FusionState, kind: str, producer: str, *consumers: str) -> str:
    return state.apply(FusionAction(kind, "main", producer, consumers)).name  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_walks_with_fissions_are_right_and_lead_back(seed: int) -> None:
    tally = Tally()
    walk(seed, tally)
    assert sum(tally.actions.values()) or not tally.undone


def test_a_duplicated_producer_is_computed_once_again() -> None:
    state = entry(CHAIN)
    text = str(state.module)
    _fuse(state, "producer-into-all-users", "a", "b", "c")
    first, second = (f.name for f in state.fusions())
    assert _fuse(state, "fission", first, "a") == "a"
    # The other fusion reads the value that is there now.
    assert _fuse(state, "fission", second, "a") == "a"
    assert not state.fusions()
    assert sorted(str(state.module).splitlines()) == sorted(text.splitlines())
    check(state)


def test_a_constant_that_others_read_later_comes_before_what_is_taken_out() -> None:
    # Merging %a with %l moves the fusion of %m and %n to the place of %g, before %zero, of which it has a copy.
    state = entry("""%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8], y: f32[8]) -> (f32[8], f32[8], f32[]) {
  %x = f32[8] parameter(0)
  %y = f32[8] parameter(1)
  %a = f32[8] negate(%x)
  %g = f32[8] sine(%a)
  %zero = f32[] constant(0)
  %k = f32[8] broadcast(%zero), dimensions={}
  %m = f32[8] maximum(%y, %k)
  %n = f32[8] cosine(%m)
  %l = f32[8] add(%a, %n)
  %r = f32[] reduce(%y, %zero), dimensions={0}, to_apply=%sum
  ROOT %t = (f32[8], f32[8], f32[]) tuple(%g, %l, %r)
}""")
    fusion = _fuse(state, "producer-consumer", "m", "n")
    _fuse(state, "multi-output", "a", "l")
    _fuse(state, "fission", fusion, "m")
    check(state)


def test_a_fusion_that_reads_a_constant_again_takes_it_in_as_an_output() -> None:
    state = entry("""ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8] parameter(0)
  %two = f32[] constant(2)
  %k = f32[8] broadcast(%two), dimensions={}
  %m = f32[8] multiply(%x, %k)
  %a = f32[8] add(%x, %k)
  %n = f32[8] negate(%a)
  ROOT %t = (f32[8], f32[8]) tuple(%m, %n)
}""")
    first = _fuse(state, "multi-output", "k", "m")
    second = _fuse(state, "producer-consumer", "a", "n")
    assert _fuse(state, "fission", first, "k") == "k"
    assert "k" in [o.name for o in state.find("main", second).operands]
    _fuse(state, "multi-output", "k", second)
    check(state)
    while state.can_undo:
        state.undo()
        check(state)


def test_an_output_is_taken_out_of_a_fusion() -> None:
    state = entry(CHAIN)
    fusion = _fuse(state, "sibling", "b", "c")
    assert [str(a) for a in state.actions(("fission",))] == [
        f"fission: %{fusion} -> %b in %main",
        f"fission: %{fusion} -> %c in %main",
    ]
    assert _fuse(state, "fission", fusion, "c") == "c"
    assert not state.fusions()


@pytest.mark.parametrize(
    ("fusion", "cut", "reason"),
    [
        ("fusion", "x", "%fusion does not compute %x"),
        ("fusion", "nothing", "there was no instruction %nothing"),
        ("fusion", "b", "is the only result of %fusion"),
        ("c", "a", "%c is no fusion"),
        ("nothing", "a", "there is no instruction %nothing"),
    ],
)
def test_refusals_name_what_is_wrong(fusion: str, cut: str, reason: str) -> None:
    state = entry(CHAIN)
    _fuse(state, "producer-consumer", "a", "b")
    action = FusionAction("fission", "main", fusion, (cut,))
    assert not state.is_legal(action)
    assert reason in str(state.why_not(action))
    with pytest.raises(FusionError):
        _fuse(state, "fission", fusion, cut)


def test_estimates_of_fissions_are_what_they_cost() -> None:
    state = FusionState(optimized("softmax"))
    run_policy(state, make_policy("default"))
    seen = 0
    while actions := state.actions(("fission",)):
        before, estimate = state.seconds(), state.estimate(actions[0])
        state.apply(actions[0])
        assert before - state.seconds() == pytest.approx(estimate, rel=0.05, abs=1e-7)
        seen += 1
    assert seen


def test_default_states_of_programs_can_be_taken_apart() -> None:
    state = FusionState(optimized("layer_norm_backward"))
    fingerprint = state.fingerprint
    run_policy(state, make_policy("default"))
    take_apart(state, np.random.default_rng(0))
    assert state.fingerprint == fingerprint


def test_a_plan_with_fissions_is_replayed() -> None:
    session = CompilationSession(optimized("layer_norm_backward"))
    session.run_fusion_policy(RandomFusion(1, max_actions=12, splits=True))
    while not any(s.action.kind == "fission" for s in session.plan.steps):
        session.apply(session.fusion.actions(("fission",))[0])
    other = CompilationSession(optimized("layer_norm_backward"))
    other.replay(session.plan)
    assert other.fusion.fingerprint == session.fusion.fingerprint


def test_random_fusion_with_splits_needs_an_end() -> None:
    with pytest.raises(ArgumentError, match="does not end by itself"):
        RandomFusion(splits=True)


def test_exhaustive_search_with_splits_ends_and_is_no_worse() -> None:
    seconds = []
    for text in ("exhaustive", "exhaustive{splits=true}"):
        state = entry(CHAIN)
        run_policy(state, make_policy(text))
        seconds.append(state.seconds())
    assert seconds[1] <= seconds[0]
