"""Tests of moves: a value of a fusion is computed by a neighbor instead."""

import numpy as np
import pytest

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import RandomFusion
from compiler.fusion.rewriting import instructions_of
from compiler.fusion.rules import FusionRule, Restrictions
from compiler.fusion.state import FusionState
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.session import CompilationSession
from tests.fusion.checks import check, facts, take_apart
from tests.fusion.programs import entry, optimized
from tests.fuzz.fusion_walks import Tally, walk

CHAIN = """ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4] parameter(0)
  %a = f32[8,4] negate(%x)
  %b = f32[8,4] sine(%a)
  %c = f32[8,4] cosine(%b)
  ROOT %d = f32[8,4] exponential(%c)
}"""
SHARED = """ENTRY %main (x: f32[8,4]) -> (f32[8,4], f32[8,4]) {
  %x = f32[8,4] parameter(0)
  %a = f32[8,4] negate(%x)
  %b = f32[8,4] sine(%a)
  %c = f32[8,4] cosine(%a)
  %d = f32[8,4] exponential(%c)
  ROOT %t = (f32[8,4], f32[8,4]) tuple(%b, %d)
}"""
AROUND = """ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %a = f32[8] negate(%x)
  %e = f32[8] exponential(%a)
  %b = f32[8] add(%a, %e)
  ROOT %c = f32[8] cosine(%b)
}"""


def _action(kind: str, producer: str, *consumers: str) -> FusionAction:
    return FusionAction(kind, "main", producer, consumers)  # type: ignore[arg-type]


def _fuse(state: FusionState, kind: str, producer: str, *consumers: str) -> str:
    return state.apply(_action(kind, producer, *consumers)).name


def _opcodes(state: FusionState, name: str) -> set[str]:
    """The opcodes of what a node computes."""
    inside = instructions_of(state.find("main", name))
    return {i.opcode.text for i in inside if i.opcode not in (Opcode.PARAMETER, Opcode.TUPLE)}


def test_a_value_moves_to_the_kernel_that_is_read_and_back() -> None:
    state = entry(CHAIN)
    first = _fuse(state, "producer-consumer", "a", "b")
    second = _fuse(state, "producer-consumer", "c", "d")
    fingerprint = state.fingerprint
    assert _action("move", second, "c", first) in state.actions(("move",))
    taken = _fuse(state, "move", second, "c", first)
    assert _opcodes(state, taken) == {"negate", "sine", "cosine"}
    assert [i.name for _, i in state.instructions() if i.opcode is Opcode.EXPONENTIAL] == ["d"]
    check(state)
    _fuse(state, "move", taken, "c", "d")
    assert state.fingerprint == fingerprint
    assert state.made[-1] == (state.fusions()[0].name, state.fusions()[1].name)
    check(state)


def test_a_kernel_that_others_read_yields_the_moved_value_as_well() -> None:
    state = entry(SHARED)
    fusion = _fuse(state, "producer-consumer", "c", "d")
    taken = _fuse(state, "move", fusion, "c", "a")
    assert _opcodes(state, taken) == {"negate", "cosine"}
    assert str(state.find("main", taken).shape) == "(f32[8,4], f32[8,4])"
    check(state)
    _fuse(state, "move", taken, "c", "d")
    assert [i.opcode for i in state.fusions()] == [Opcode.FUSION]
    assert state.find("main", "a").opcode is Opcode.NEGATE
    check(state)


def test_moves_keep_results_and_are_undone() -> None:
    x = np.linspace(-2, 2, 32, dtype=np.float32).reshape(8, 4)
    for text in (CHAIN, SHARED):
        state = entry(text)
        expected = evaluate(state.module, [x])
        _fuse(state, "producer-consumer", "c", "d")
        state.apply(next(a for a in state.actions() if a.kind == "producer-consumer" or a.kind == "sibling"))
        before, moves = facts(state), state.actions(("move",))
        assert moves
        for action in moves:
            state.apply(action)
            check(state)
            for got, want in zip(evaluate(state.module, [x]), expected, strict=True):
                np.testing.assert_array_equal(got, want)
            state.undo()
            assert facts(state) == before


@pytest.mark.parametrize(
    ("value", "target", "reason"),
    [
        ("nothing", "b", "there was no instruction %nothing"),
        ("c", "nothing", "there is no instruction %nothing"),
        ("a", "b", "does not compute %a"),
        ("d", "b", "%d needs other values"),
        ("c", "a", "neither reads"),
    ],
)
def test_refusals_name_what_is_wrong(value: str, target: str, reason: str) -> None:
    state = entry(CHAIN)
    fusion = _fuse(state, "producer-consumer", "c", "d")
    action = _action("move", fusion, value, target)
    assert not state.is_legal(action)
    assert reason in str(state.why_not(action))


def test_a_move_around_which_a_path_leads_is_refused() -> None:
    state = entry(AROUND)
    fusion = _fuse(state, "producer-consumer", "b", "c")
    assert state.why_not(_action("move", fusion, "b", "a")) == "%e, which %b reads, needs %a"
    assert [a.consumers for a in state.actions(("move",))] == [("b", "e")]


@pytest.mark.parametrize(
    "seed", [100304, 100600, 100783, 102038, 301520, 101679, 101975, 104265, 109378, 301313, 301949, 302357]
)
def test_walks_that_once_failed(seed: int) -> None:
    # An update that became one in place or was one in its kernel only, a path through nodes whose ranks had changed,
    # a constant that is left of a fusion, a fusion that lost an output and what only that needed, an empty output.
    tally = Tally()
    walk(seed, tally)
    assert tally.actions


def test_rules_hold_for_moves() -> None:
    state = entry(CHAIN)
    fusion = _fuse(state, "producer-consumer", "c", "d")
    state.restrict(Restrictions([FusionRule.parse("forbid op:cosine with op:sine")]))
    assert "the rule" in str(state.why_not(_action("move", fusion, "c", "b")))
    assert not state.actions(("move",))


def test_estimates_of_moves_are_what_they_save() -> None:
    state = FusionState(optimized("layer_norm_backward"))
    rng, seen = np.random.default_rng(5), 0
    for _ in range(25):
        moves = state.actions(("move",))
        actions = moves or state.actions()
        if not actions:
            break
        action = actions[int(rng.integers(len(actions)))]
        before, estimate = state.seconds(), state.estimate(action)
        state.apply(action)
        if action.kind == "move":
            seen += 1
            assert before - state.seconds() == pytest.approx(estimate, rel=0.05, abs=1e-6)
            if seen == 4:
                break
    assert seen
    take_apart(state, rng)
    assert not state.fusions()


def test_a_plan_with_moves_is_replayed() -> None:
    session = CompilationSession(optimized("softmax"))
    session.run_fusion_policy(RandomFusion(3, max_actions=4))
    session.apply(session.fusion.actions(("move",))[0])
    other = CompilationSession(optimized("softmax"))
    other.replay(type(session.plan).from_json(session.plan.to_json()))
    assert other.fusion.fingerprint == session.fusion.fingerprint
