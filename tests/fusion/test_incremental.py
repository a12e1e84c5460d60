"""Tests of what a fusion state keeps up to date: actions, savings, time, fingerprint, and of taking actions back."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from compiler.errors import FusionError
from compiler.fusion.actions import KINDS, FusionAction
from compiler.fusion.kinds import KIND_OF
from compiler.fusion.policies import POLICIES, SEARCHES, make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.rewriting import body_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.text import parse
from tests.fusion.checks import check, facts, shuffled, walk
from tests.fusion.programs import optimized, random_graph
from tests.fuzz.random_modules import random_module

PERMUTED = ("softmax", "layer_norm_backward", "mlp_train_step", "cartpole_precomputed")
SLOW = SEARCHES | {"instruction", "fusion-merger", "xla-instruction"}


def _module(seed: int) -> HloModule:
    return random_graph(seed, 14) if seed % 2 else random_module(np.random.default_rng(seed), 40)


@pytest.mark.parametrize("seed", range(24))
def test_actions_and_undo_are_those_of_a_recomputation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = FusionState(_module(seed))
    before: list[object] = []
    for _ in range(14):
        actions = state.actions()
        if before and (not actions or rng.random() < 0.35):
            state.undo()
            assert facts(state) == before.pop()
        elif actions:
            before.append(facts(state))
            state.apply(actions[int(rng.integers(len(actions)))])
        check(state)
    while before:
        state.undo()
        assert facts(state) == before.pop()


@pytest.mark.parametrize("program", ["layer_norm_backward", "cartpole_split", "mlp_train_step"])
def test_undo_takes_back_whole_policies(program: str) -> None:
    state = FusionState(optimized(program))
    before = facts(state)
    for _ in range(2):
        done = run_policy(state, make_policy("default"))
        after = str(state.module)
        for action in reversed(done):
            assert state.undo() == action
        assert facts(state) == before
        for action in done:
            state.apply(action)
        assert str(state.module) == after
        while state.can_undo:
            state.undo()


@pytest.mark.parametrize("seed", range(4))
def test_facts_of_nodes_that_are_made_again_are_those_of_a_new_state(seed: int) -> None:
    """Walks take back fusions and make them in other orders, which makes the same nodes again."""
    state, rng = FusionState(_module(seed)), np.random.default_rng(seed)
    for _ in range(6):
        while state.can_undo:
            state.undo()
        for _ in range(8):
            actions = state.actions()
            if not actions:
                break
            state.apply(actions[int(rng.integers(len(actions)))])
        fresh = FusionState(_module(seed))
        for action in state.history:
            fresh.apply(action)
        assert str(state.module) == str(fresh.module)
        assert state.actions() == fresh.actions()
        assert state.seconds() == fresh.seconds()
        assert [state.estimate(a) for a in state.actions()] == [fresh.estimate(a) for a in fresh.actions()]
        for s, other in zip(state.sequences.values(), fresh.sequences.values(), strict=True):
            for producer, consumer in _pairs(s):
                action = FusionAction("horizontal", s.computation.name, producer, (consumer,))
                assert s.decide(action).reason == other.decide(action).reason


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_the_same_when_what_is_kept_is_dropped_again_and_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compiler.fusion.contents.MAX_USES", 5)
    monkeypatch.setattr("compiler.fusion.trials.MAX_SUMMARIES", 2)
    state, whole = FusionState(_module(seed)), FusionState(_module(seed))
    for s in state.sequences.values():
        s.nodes.most = 12
    rng = np.random.default_rng(seed)
    for _ in range(8):
        actions = state.actions()
        assert actions == whole.actions()
        assert [state.estimate(a) for a in actions] == [whole.estimate(a) for a in actions]
        assert (state.seconds(), state.fingerprint) == (whole.seconds(), whole.fingerprint)
        for s in state.sequences.values():
            assert len(s.legality._verdicts.quick) <= 12
        if not actions:
            break
        action = actions[int(rng.integers(len(actions)))]
        state.apply(action)
        whole.apply(action)


def _pairs(sequence: SequenceState) -> list[tuple[str, str]]:
    names = [i.name for i in sequence.nodes.values][-12:]
    return [(a, b) for a in names for b in names if a < b]


def test_undo_ends_where_the_state_or_its_fork_began() -> None:
    state = FusionState(random_graph(3))
    state.apply(state.actions()[0])
    fork = state.fork()
    assert not fork.can_undo
    with pytest.raises(FusionError, match="no fusion to undo"):
        fork.undo()
    assert fork.fingerprint == state.fingerprint
    state.undo()
    assert fork.fingerprint != state.fingerprint


@pytest.mark.parametrize("seed", range(8))
def test_equal_fingerprints_have_equal_actions_and_times_and_no_others(seed: int) -> None:
    """Compares states by the values that their nodes yield and read, and by the text of fusions without names."""
    state, rng = FusionState(_module(seed)), np.random.default_rng(seed)
    found: dict[str, object] = {}
    for _ in range(60):
        actions = state.actions()
        if not actions or (state.can_undo and rng.random() < 0.4):
            state.undo()
        else:
            state.apply(actions[int(rng.integers(len(actions)))])
        assert found.setdefault(state.fingerprint, _nodes_and_actions(state)) == _nodes_and_actions(state)
    assert len({repr(v) for v in found.values()}) == len(found)


def _nodes_and_actions(state: FusionState) -> object:
    """Nodes by the numbers of the values that they yield, with what they read; and the actions in these terms."""
    s = state.sequences["main"]
    values = s.nodes.values

    def named(name: str) -> int:
        found = s.computation.find(name)
        assert found is not None
        return s.nodes.key(found)

    fusions = sorted(
        (
            sorted(values[i]),
            sorted(map(s.nodes.value_of, i.operands)),
            sorted(o.opcode.text for o in body_of(i).instructions),
        )
        for i in state.fusions()
    )
    return fusions, [(a.kind, named(a.producer), [named(c) for c in a.consumers]) for a in state.actions()]


def test_the_fingerprint_does_not_depend_on_the_order_of_actions() -> None:
    text = """HloModule m

ENTRY %main (x: f32[8], y: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8] parameter(0)
  %y = f32[8] parameter(1)
  %a = f32[8] negate(%x)
  %b = f32[8] abs(%y)
  %c = f32[8] add(%a, %b)
  %d = f32[8] sine(%b)
  %e = f32[8] cosine(%c)
  ROOT %t = (f32[8], f32[8]) tuple(%d, %e)
}"""

    def fingerprint(*actions: tuple[str, str]) -> str:
        state = FusionState(parse(text))
        names: dict[str, str] = {}
        for producer, consumer in actions:
            given = names.get(producer, producer), names.get(consumer, consumer)
            names[consumer] = state.apply(FusionAction("producer-consumer", "main", given[0], (given[1],))).name
        return state.fingerprint

    assert fingerprint(("a", "c"), ("b", "c")) == fingerprint(("b", "c"), ("a", "c"))
    assert fingerprint(("a", "c"), ("c", "e")) == fingerprint(("c", "e"), ("a", "e"))
    assert len({fingerprint(), fingerprint(("a", "c")), fingerprint(("b", "c")), fingerprint(("b", "d"))}) == 4


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from compiler.fusion.state import FusionState; from compiler.fusion.policies import make_policy\n"
        "from compiler.fusion.protocol import run_policy; from tests.fusion.programs import optimized\n"
        "s = FusionState(optimized('softmax')); run_policy(s, make_policy('default')); print(s.fingerprint)"
    )
    prints = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(prints) == 1
    assert len(prints.pop().strip()) == 32


@pytest.mark.parametrize("program", PERMUTED)
def test_the_order_in_which_a_program_lists_its_instructions_does_not_change_its_fusions(program: str) -> None:
    left_out = {"exhaustive"} if program == "softmax" else SLOW
    check_listings(optimized(program), sorted(set(POLICIES) - left_out))


def test_exhaustive_search_does_not_depend_on_the_order_of_a_program_either() -> None:
    check_listings(random_graph(1, size=4), ["exhaustive"])


def check_listings(module: HloModule, policies: Sequence[str]) -> None:
    """Assert that policies make the same fusions in whatever order a program lists its instructions."""
    for name in policies:
        results = set()
        for seed in range(3):
            other = shuffled(module, np.random.default_rng(seed)) if seed else module.clone()
            state = FusionState(other)
            run_policy(state, make_policy(name))
            results.add((state.fingerprint, state.module.fingerprint(), state.seconds()))
        assert len(results) == 1, name


def test_every_kind_of_action_has_its_place_in_the_table_of_kinds() -> None:
    assert set(KIND_OF) == set(KINDS)


def test_random_walks_of_a_permuted_module_are_the_same() -> None:
    for seed in range(6):
        module = _module(seed)
        walks = []
        for other in (module.clone(), shuffled(module, np.random.default_rng(seed))):
            state = FusionState(other)
            walks.append([state.fingerprint for _ in walk(state, np.random.default_rng(seed), 10)])
        assert walks[0] == walks[1]


def test_facts_that_were_forgotten_are_found_again_for_the_right_form_of_a_node() -> None:
    state = FusionState(
        parse(
            "ENTRY e { x = f32[64] parameter(0) y = f32[64] parameter(1) a = f32[64] multiply(x, y) b = f32[64] abs(x) "
            "c = f32[64] sine(a) d = f32[64] cosine(b) ROOT t = (f32[64], f32[64]) tuple(c, d) }"
        )
    )
    both = state.apply(next(a for a in state.actions() if a.kind == "sibling"))
    s = state.sequences["e"]
    user = next(a for a in state.actions() if a.kind == "producer-consumer" and a.producer == both.name)
    s.legality.forget_facts()
    s.legality.trials._structures.of_node.clear()

    state.apply(user)  # the fusion loses an output
    state.undo()

    kernel = s.legality.facts(both)
    assert len(kernel.outputs) == 2
    assert len(kernel.summary.inputs) == len(both.operands)
    check(state)


def test_a_dismantled_state_is_freed_without_a_garbage_collection() -> None:
    state = FusionState(optimized("layer_norm_backward"))
    fork = state.fork()
    run_policy(state, make_policy("default"))
    state.actions()
    kept = [weakref.ref(x) for s in state.sequences.values() for x in (s, s.table, s.computation)]
    gc.collect()
    gc.disable()
    try:
        state.dismantle()
        del state
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()
    assert fork.actions()
