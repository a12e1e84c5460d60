"""Tests of the states that environments remember, against episodes that compile everything."""

from pathlib import Path

import numpy as np
import pytest

from compiler.plan import CompilationPlan, Phase
from compiler.session import CompilationSession
from compiler.text import parse
from env.environments import CompileEnv, FusionEnv, UnrollEnv
from env.episode import Decision, Episode
from env.observations import observe
from env.states import DecisionMemory, DecisionState, DecisionStates
from tests.env.small_programs import CHAIN, LOOP, write_suite


def _session(text: str) -> CompilationSession:
    session = CompilationSession(parse(text))
    session.run_passes()
    return session


def _same(states: DecisionStates, state: DecisionState, episode: Episode) -> None:
    """Assert that a state is what an episode with the same decisions is."""
    assert state.phase == episode.phase
    assert [state.text(n) for n in range(state.count)] == [str(m) for m in episode.moves]
    assert state.seconds == pytest.approx(episode.seconds(), rel=1e-12)
    remembered, fresh = observe(state.graph), observe(episode.graph())
    for name in remembered:
        np.testing.assert_allclose(remembered[name], fresh[name], rtol=2e-3, atol=2e-3)
    assert str(states.episode(state).session.module) == str(episode.session.module)


@pytest.mark.parametrize("text", [CHAIN, LOOP])
@pytest.mark.parametrize("memory", [1 << 20, 1])
def test_states_are_those_of_episodes_whether_they_are_remembered_or_not(text: str, memory: int) -> None:
    session, rng = _session(text), np.random.default_rng(0)
    phases: tuple[Phase, ...] = ("loops", "fusion", "kernels")
    states = DecisionStates("program", session, phases, DecisionMemory(memory))
    for _ in range(3):
        state, episode = states.root, Episode(session.fork(), phases)
        while not state.done:
            _same(states, state, episode)
            index = int(rng.integers(state.count))
            following = states.take(state, index)
            assert isinstance(following, DecisionState)
            assert episode.take(index) is None
            state = following
        assert episode.done


@pytest.mark.parametrize("text", [CHAIN, LOOP])
def test_states_are_exactly_those_of_compilations_that_only_repeat_the_decisions(text: str) -> None:
    """Passes that change nothing, equal kernels and undone fusions leave nothing behind."""
    session, rng = CompilationSession(parse(text)), np.random.default_rng(1)
    phases: tuple[Phase, ...] = ("passes", "expansions", "loops", "fusion", "kernels")
    states = DecisionStates("program", session, phases, DecisionMemory())
    for passes in (2, 12, 30):
        state, decisions = states.root, list[Decision]()
        while not state.done:
            repeated = Episode(session.fork(), phases)
            for d in decisions:
                repeated.decide(d)
            assert [state.text(n) for n in range(state.count)] == [str(m) for m in repeated.moves]
            assert state.seconds == repeated.seconds()
            remembered, fresh = observe(state.graph), observe(repeated.graph())
            for name in remembered:
                np.testing.assert_array_equal(remembered[name], fresh[name])
            stops = state.phase == "passes" and len(decisions) >= passes
            index = state.count - 1 if stops else int(rng.integers(state.count))
            decisions.append(Decision.of(repeated.moves[index]))
            following = states.take(state, index)
            assert isinstance(following, DecisionState)
            state = following


@pytest.mark.parametrize("program", ["softmax", "layer_norm_backward", "mlp_train_step"])
def test_what_an_environment_knows_of_a_program_changes_nothing(program: str) -> None:
    """The last of many random episodes is that of a new environment: observations, masks and rewards, bit by bit."""
    used, rng = FusionEnv(suite="quickstart"), np.random.default_rng(0)
    for _ in range(6):
        choices: list[int] = []
        seen = [used.reset(options={"program": program})[0]]
        masks, results = [used.action_masks()], list[tuple[float, bool, float]]()
        while len(choices) < 14 and not used.compilation.done:
            legal = np.flatnonzero(masks[-1])
            choices.append(int(rng.choice(legal[:-1] if len(legal) > 1 else legal)))  # the last one is to stop
            observation, reward, ended, _, info = used.step(choices[-1])
            seen.append(observation)
            masks.append(used.action_masks())
            results.append((reward, ended, info["speedup"]))
    assert len(choices) > 4
    new = FusionEnv(suite="quickstart")
    again = [new.reset(options={"program": program})[0]]
    for n, choice in enumerate(choices):
        np.testing.assert_array_equal(new.action_masks(), masks[n])
        observation, reward, ended, _, info = new.step(choice)
        again.append(observation)
        assert (reward, ended, info["speedup"]) == results[n]
    np.testing.assert_array_equal(new.action_masks(), masks[-1])
    for former, now in zip(seen, again, strict=True):
        for name in former:
            np.testing.assert_array_equal(former[name], now[name])


@pytest.mark.parametrize("users", [1, 2, 3])
def test_environments_in_turns_are_in_the_states_of_their_own_episodes(users: int) -> None:
    """Each user has a compilation of its own, or all of them share one that moves to and fro."""
    session = _session(CHAIN)
    phases: tuple[Phase, ...] = ("fusion", "kernels")
    memory = DecisionMemory(1)  # nothing is remembered, so every step compiles
    memory.users = users
    states = DecisionStates("program", session, phases, memory)
    rngs = [np.random.default_rng(n) for n in range(3)]
    at = [states.root] * 3
    episodes = [Episode(session.fork(), phases) for _ in rngs]
    while not all(state.done for state in at):
        for n, rng in enumerate(rngs):
            if at[n].done:
                continue
            _same(states, at[n], episodes[n])
            index = int(rng.integers(at[n].count))
            following = states.take(at[n], index)
            assert isinstance(following, DecisionState)
            assert episodes[n].take(index) is None
            at[n] = following


def test_episodes_that_were_played_before_compile_nothing(tmp_path: Path) -> None:
    env = FusionEnv(write_suite(tmp_path))
    returns = []
    for _ in range(2):
        rng, total, done = np.random.default_rng(1), 0.0, False
        env.reset(options={"program": "chain"})
        while not done:
            *_, reward, done, _, info = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
            total += reward
        returns.append((total, info["plan"], info["plan_json"], info["speedup"]))
        met = env.states(env.suite.find("chain")).met
    assert returns[0] == returns[1]
    assert met == len(returns[0][1])


def test_decisions_that_lead_to_the_same_fusions_lead_to_the_same_state() -> None:
    states = DecisionStates("chain", _session(CHAIN), ("fusion",), DecisionMemory())
    found = {}

    def explore(state: DecisionState, depth: int) -> None:
        found[state.key] = state
        for n in range(state.count if depth else 0):
            following = states.take(state, n)
            assert isinstance(following, DecisionState)
            assert found.setdefault(following.key, following) is following
            explore(following, depth - 1)

    explore(states.root, 3)
    assert states.met > len(found)


def test_states_of_another_program_are_others(tmp_path: Path) -> None:
    for env in (CompileEnv(write_suite(tmp_path)), UnrollEnv(write_suite(tmp_path))):
        first, _ = env.reset(options={"program": "chain"})
        env.reset(options={"program": "loop"})
        again, _ = env.reset(options={"program": "chain"})
        assert all(np.array_equal(first[k], again[k]) for k in first)


def test_a_remembered_episode_has_a_plan_that_replays(tmp_path: Path) -> None:
    env = FusionEnv(write_suite(tmp_path))
    for seed in (3, 4, 3):
        rng, done = np.random.default_rng(seed), False
        env.reset(options={"program": "chain"})
        while not done:
            *_, done, _, info = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        session = CompilationSession(parse(CHAIN))
        session.replay(CompilationPlan.from_json(info["plan_json"]))
        assert session.fusion.fingerprint == env.compilation.complete().fusion.fingerprint


@pytest.mark.parametrize("memory", [1 << 20, 1 << 14])
def test_every_listed_move_can_be_taken_whatever_path_reached_the_state(memory: int) -> None:
    """Equal states have other names of instructions where the paths to them differ."""
    session, rng = _session(CHAIN), np.random.default_rng(2)
    states = DecisionStates("chain", session, ("fusion",), DecisionMemory(memory))
    for _ in range(60):
        state = states.root
        while not state.done:
            following = states.take(state, int(rng.integers(state.count)))
            assert isinstance(following, DecisionState), following
            state = following
        plan = states.episode(state).complete().plan
        replayed = CompilationSession(parse(CHAIN))
        replayed.replay(plan)
        assert replayed.fusion.fingerprint == states.episode(state).session.fusion.fingerprint


def test_stopping_at_once_fuses_nothing_however_the_stop_is_taken() -> None:
    session = _session(CHAIN)
    looked, repeated = (Episode(session.fork(), ("fusion",)) for _ in range(2))
    assert looked.take(len(looked.moves) - 1) is None
    repeated.decide(Decision("fusion", "", None))  # its moves were not listed
    states = DecisionStates("chain", session, ("fusion",), DecisionMemory())
    stopped = states.take(states.root, states.root.count - 1)
    assert isinstance(stopped, DecisionState)
    kernels = [len(e.complete().kernels()) for e in (looked, repeated, states.episode(stopped))]
    assert kernels == [6] * 3


def test_each_choice_for_a_loop_leads_to_a_state_of_its_own() -> None:
    states = DecisionStates("loop", _session(LOOP), ("loops", "fusion"), DecisionMemory())
    following = [states.take(states.root, n) for n in range(states.root.count)]
    assert all(isinstance(s, DecisionState) for s in following)
    assert len({s.key for s in following if isinstance(s, DecisionState)}) == states.root.count > 2
