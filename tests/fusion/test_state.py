import random

import pytest

from compiler.errors import FusionError
from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.policies import RandomFusion
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from tests.fusion.programs import entry, optimized, random_graph

SOME = ("layer_norm_backward", "mlp_train_step", "softmax_cross_entropy_grad")
EXACT: tuple[FusionKind, ...] = ("producer-consumer", "multi-output", "producer-into-all-users")


def _kinds(state: FusionState) -> set[tuple[str, str, str, frozenset[str]]]:
    return {(a.kind, a.computation, a.producer, frozenset(a.consumers)) for a in state.actions(EXACT)}


@pytest.mark.parametrize("program", SOME)
def test_cached_actions_are_those_of_a_fresh_state(program: str) -> None:
    state, chooser = FusionState(optimized(program)), random.Random(7)
    for _ in range(40):
        actions = state.actions()
        if not actions:
            break
        state.apply(chooser.choice(actions))
        fresh = FusionState(state.module.clone())
        assert _kinds(state) == _kinds(fresh)
        assert state.seconds() == pytest.approx(fresh.seconds(), rel=1e-9)


@pytest.mark.parametrize("program", SOME)
def test_only_kernels_speak_against_possible_actions(program: str) -> None:
    state, chooser = FusionState(optimized(program)), random.Random(3)
    met: list[FusionAction] = []
    for _ in range(12):
        met += chooser.sample(state.candidates(), min(8, len(state.candidates())))
        for action in met:  # many of them have lost their nodes
            if state.is_legal(action):
                assert state.is_possible(action)
            if state.is_possible(action):
                state.estimate(action)
        legal = state.actions()
        if not legal:
            break
        state.apply(chooser.choice(legal))
    assert any(not state.is_possible(a) for a in met)


@pytest.mark.parametrize("program", SOME)
def test_an_unchecked_action_is_the_action_and_can_be_taken_back(program: str) -> None:
    state = FusionState(optimized(program))
    before, action = str(state.module), state.actions()[0]
    other = state.fork()
    state.apply_unchecked(action)
    other.apply(action)
    assert str(state.module) == str(other.module)
    state.undo()
    assert str(state.module) == before


@pytest.mark.parametrize("program", SOME)
def test_forks_are_independent_and_deterministic(program: str) -> None:
    state = FusionState(optimized(program))
    run_policy(state, RandomFusion(3, max_actions=12))
    before = str(state.module)
    a, b = state.fork(), state.fork()
    assert a.actions() == state.actions()
    done = run_policy(a, RandomFusion(4, max_actions=30))
    assert str(state.module) == before
    for action in done:
        b.apply(action)
    for action in done:
        state.apply(action)
    assert str(a.module) == str(b.module) == str(state.module)
    assert a.history == b.history == state.history


def test_the_same_actions_make_the_same_text() -> None:
    first, second = FusionState(optimized("mlp_train_step")), FusionState(optimized("mlp_train_step"))
    actions = run_policy(first, RandomFusion(11))
    for action in actions:
        second.apply(action)
    assert str(first.module) == str(second.module)


def test_estimates_are_what_fusions_save() -> None:
    state, chooser, seen = FusionState(optimized("softmax")), random.Random(1), 0
    while actions := state.actions(("producer-consumer", "producer-into-all-users")):
        action = chooser.choice(actions)
        before, estimate = state.seconds(), state.estimate(action)
        state.apply(action)
        assert before - state.seconds() == pytest.approx(estimate, rel=0.05, abs=1e-9)
        seen += 1
    assert seen > 3


def test_an_illegal_action_is_an_error_that_says_why_and_changes_nothing() -> None:
    state = FusionState(random_graph(1))
    before = str(state.module)
    with pytest.raises(FusionError, match="no instruction %missing"):
        state.apply(FusionAction("sibling", "main", "x", ("missing",)))
    assert str(state.module) == before


def test_loops_weigh_their_trip_counts() -> None:
    state = FusionState(optimized("cartpole_split"))
    weights = [s.weight for s in state.sequences.values()]
    assert max(weights) == 4 or weights == [1.0]
    outer = entry("""%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %v = f32[8] get-tuple-element(%s), index=1
  %w = f32[8] negate(%v)
  ROOT %r = (s32[], f32[8]) tuple(%j, %w)
}

%cond (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(7)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], f32[8]) tuple(%zero, %x)
  %loop = (s32[], f32[8]) while(%t), condition=%cond, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=1
}""")
    assert outer.sequences["body"].weight == 7
    assert 'known_trip_count":{"n":"7"}' in str(outer.module)
