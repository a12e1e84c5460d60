import gc
import math
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.errors import UnknownNameError
from compiler.interpreter import evaluate
from compiler.learned.features.passes import mask_of
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_states import PassGraph, StateMemory, default_pass_actions
from compiler.passes import make_pass
from compiler.passes.infrastructure.base import op_count
from compiler.passes.infrastructure.pipeline import PipelineRun
from compiler.passes.pipelines.default import default_pipeline
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.base import REFUSED_REWARD
from env.pass_order import PassOrderEnv
from env.suites import QUICKSTART, find_program
from tests.env.small_programs import write_suite

TEXT = """HloModule m
ENTRY e {
  x = f32[4,3] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[4,3] broadcast(zero), dimensions={}
  a = f32[4,3] add(x, zeros)
  b = f32[4,3] negate(a)
  c = f32[4,3] negate(b)
  dead = f32[4,3] tanh(x)
  ROOT t = f32[3,4] transpose(c), dimensions={1,0}
}
"""
PASSES = ("arithmetic-identities@1", "dce@1", "cse@1")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "small")


def make(tmp_path: Path, **options: object) -> PassOrderEnv:
    (tmp_path / "m.hlo").write_text(TEXT)
    return PassOrderEnv(tmp_path, passes=PASSES, **options)  # type: ignore[arg-type]


def test_states_do_not_change_and_an_idle_pass_returns_the_same_state() -> None:
    graph = PassGraph(parse(TEXT), PASSES, verified=True)
    before = str(graph.root.module)
    after = graph.apply(graph.root, 1)
    assert str(graph.root.module) == before
    assert "tanh" not in str(after.module)
    assert graph.apply(after, 1) is after


def test_orders_with_the_same_result_lead_to_the_same_state() -> None:
    graph = PassGraph(parse(TEXT), ("dce@1", "arithmetic-identities@1"))
    one = graph.apply(graph.apply(graph.apply(graph.root, 0), 1), 0)
    two = graph.apply(graph.apply(graph.root, 1), 0)
    assert one is two


def test_a_pass_runs_once_per_state() -> None:
    graph = PassGraph(parse(TEXT), PASSES)
    for _ in range(3):
        graph.apply(graph.apply(graph.root, 0), 1)
    assert (graph.runs, graph.remembered) == (2, 4)


def test_states_equal_the_result_of_running_the_passes() -> None:
    for text in (TEXT, text_of_a_loop()):
        graph, module = PassGraph(parse(text), default_pass_actions()), parse(text)
        rng, state = np.random.default_rng(3), graph.root
        for action in rng.integers(len(graph.actions), size=40):
            state = graph.apply(state, int(action))
            make_pass(graph.actions[action]).run(module)
        assert str(state.module) == str(module)
        assert state.ops == op_count(module)


def test_a_pipeline_over_states_makes_what_it_makes_of_a_module() -> None:
    for text in (TEXT, text_of_a_loop(), MANY_STATES.read_text()):
        graph, rng = PassGraph(parse(text), default_pass_actions()), np.random.default_rng(4)
        for _ in range(4):
            state, module = graph.root, parse(text)
            for action in rng.integers(len(graph.actions), size=12):
                state = graph.apply(state, int(action))
                make_pass(graph.actions[action]).run(module)
            end, effective = graph.run(state, default_pipeline())
            PipelineRun().run(default_pipeline(), module)
            assert end.key == module.canonical_key()
            session = CompilationSession(state.module)
            session.run_passes(effective)
            assert session.module.canonical_key() == end.key
        runs = graph.runs
        assert graph.run(state, default_pipeline()) == (end, effective)
        assert graph.runs == runs


def test_a_pass_that_is_idle_for_one_sweep_is_not_run_without_a_limit() -> None:
    graph = PassGraph(parse(TEXT), ("cse@1",))
    assert graph.apply(graph.root, 0) is graph.root
    assert graph.apply_pass(graph.root, make_pass("cse")) is graph.root
    assert (graph.runs, graph.remembered) == (1, 1)
    assert graph.apply_pass(graph.root, make_pass("dce")) is not graph.root


def test_modules_that_were_handed_out_outlive_their_states() -> None:
    graph = PassGraph(parse(TEXT), PASSES, memory=StateMemory(0))
    kept = graph.apply(graph.root, 1).module
    text = str(kept)
    for action in (0, 1, 2):
        graph.apply(graph.apply(graph.root, 0), action)  # only the last module is kept
    assert str(kept) == text


def test_a_module_that_was_handed_out_is_not_changed_by_the_next_pass() -> None:
    graph = PassGraph(parse(TEXT), PASSES)
    state = graph.apply(graph.root, 0)
    module = state.module
    text = str(module)
    after = graph.apply(graph.apply(state, 1), 2)
    assert str(module) == str(state.module) == text
    assert after.key != state.key


def test_a_state_that_is_left_in_several_ways_has_its_module_each_time() -> None:
    graph = PassGraph(parse(TEXT), PASSES)
    for order in ((0, 1, 2), (0, 2, 1), (1, 0), (1, 2), (0, 1), (2, 0, 1)):
        state, module = graph.root, parse(TEXT)
        for action in order:
            state = graph.apply(state, action)
            make_pass(PASSES[action]).run(module)
        assert state.read(lambda m: m.canonical_key()) == state.key == module.canonical_key()


def text_of_a_loop() -> str:
    from tests.env.small_programs import LOOP

    return LOOP


def test_the_return_for_op_counts_is_the_log_of_their_ratio(tmp_path: Path) -> None:
    env = make(tmp_path, reward="op-count")
    _, info = env.reset()
    # Counted by hand: broadcast, add, two negates, tanh, transpose; at the end the transpose alone.
    assert info["ops"] == 6
    rewards = [env.step(a)[1] for a in (0, 1)]
    *_, last, terminated, truncated, info = env.step(len(PASSES))
    assert (terminated, truncated, last) == (True, False, 0.0)
    assert sum(rewards) == pytest.approx(math.log(6 / 1))
    assert info["ops"] == 1
    assert info["passes"] == ["arithmetic-identities@1", "dce@1"]


def test_an_episode_ends_when_every_pass_is_idle_or_applications_are_used_up(tmp_path: Path) -> None:
    env = make(tmp_path, reward="op-count", max_steps=5)
    env.reset()
    for action in (0, 1, 0, 1):
        assert not env.step(action)[2]
    assert not env.action_masks()[:2].any()
    assert env.action_masks()[2:].all()
    assert env.step(2)[2]
    env.reset()
    assert [env.step(0)[2] for _ in range(5)] == [False] * 4 + [True]


def test_actions_after_the_end_or_out_of_range_are_refused_with_the_reason(tmp_path: Path) -> None:
    env = make(tmp_path, reward="op-count")
    env.reset()
    observation, reward, terminated, _, info = env.step(17)
    assert (reward, terminated) == (REFUSED_REWARD, False)
    assert "17" in info["refused"]
    env.step(len(PASSES))
    again, reward, terminated, _, info = env.step(0)
    assert (reward, terminated) == (REFUSED_REWARD, True)
    assert "over" in info["refused"]
    np.testing.assert_array_equal(observation, again)


def test_the_observation_holds_the_counts_and_the_mask(tmp_path: Path) -> None:
    env = make(tmp_path, reward="op-count")
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    # Each opcode with its log(1 + count): two negates, and once each seven others.
    assert np.count_nonzero(np.isclose(observation[:133], math.log(3))) == 1
    assert np.count_nonzero(np.isclose(observation[:133], math.log(2))) == 6
    env.step(2)
    observation, *_ = env.step(2)
    np.testing.assert_array_equal(mask_of(observation, 4), env.action_masks())
    np.testing.assert_array_equal(mask_of(np.stack([observation] * 2), 4), np.stack([env.action_masks()] * 2))


def test_a_fork_is_independent() -> None:
    episode = PassEpisode(PassGraph(parse(TEXT), PASSES), budget=9)
    episode.take(2)
    other = episode.fork()
    other.take(0)
    assert (episode.taken, other.taken) == ([2], [2, 0])
    assert not episode.mask()[2]
    assert other.mask()[2]


def test_unknown_rewards_and_passes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="op-count"):
        make(tmp_path, reward="opcount")
    (tmp_path / "m.hlo").write_text(TEXT)
    env = PassOrderEnv(tmp_path, passes="dce,cse")
    assert env.actions == ("dce", "cse")
    with pytest.raises(UnknownNameError, match="arithmetic-identities"):
        PassOrderEnv(tmp_path, passes="arithmetic-identitys")


@pytest.mark.parametrize("reward", ["op-count", "cost"])
def test_random_orders_preserve_the_results(suite: Path, reward: str) -> None:
    env = gym.make("env:hlogym/PassOrder-v0", suite=str(suite), reward=reward, max_steps=40, verified=True).unwrapped
    assert isinstance(env, PassOrderEnv)
    rng = np.random.default_rng(0)
    for program in env.suite.programs:
        env.reset(options={"program": program.name})
        done = False
        while not done:
            *_, done, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        module = parse(program.text())
        args = [rng.uniform(0.5, 1.5, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
        for a, b in zip(evaluate(module, args), evaluate(env.compilation.module, args), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reward", ["op-count", "cost"])
def test_a_program_with_nothing_left_to_do_has_finite_rewards(tmp_path: Path, reward: str) -> None:
    (tmp_path / "m.hlo").write_text(
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  z = f32[] constant(0)\n"
        "  b = f32[4] broadcast(z), dimensions={}\n  ROOT a = f32[4] add(x, b)\n}\n"
    )
    env = PassOrderEnv(tmp_path, passes=PASSES, reward=reward)
    env.reset()
    for action in (0, 1, len(PASSES)):
        _, reward_of_step, *_, info = env.step(action)
        assert math.isfinite(reward_of_step)
    assert info["ops"] == 0
    assert info["speedup"] == pytest.approx(1)


MANY_STATES = QUICKSTART / "mlp_train_step.hlo"


def test_evicted_states_are_computed_again_with_the_same_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(limit: int) -> tuple[list[Any], int]:
        monkeypatch.setattr("env.pass_order.STATE_BYTES", limit)
        env = PassOrderEnv(MANY_STATES, reward="op-count", max_steps=30)
        env.reset(seed=5)
        rng = np.random.default_rng(1)
        seen: list[Any] = []
        for _ in range(10):
            env.reset()
            done = False
            while not done:
                vector, reward, done, _, info = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
                seen.append((reward, vector.tobytes(), info["ops"], info["speedup"], info.get("passes")))
        assert env._memory.total <= max(limit, 400_000)  # the last state is kept whatever its size
        return seen, sum(g.runs for g in env._graphs.values())

    everything, runs = play(1 << 40)
    little, _ = play(1_000_000)
    nothing, most_runs = play(0)
    assert everything == little == nothing
    assert runs < most_runs


def test_the_current_state_is_never_evicted() -> None:
    graph = PassGraph(parse(TEXT), PASSES, memory=StateMemory(0))
    first = graph.apply(graph.root, 0)
    for _ in range(2):
        graph.apply(graph.apply(graph.root, 1), 2)  # `first` is forgotten
    assert graph.apply(first, 0) is first
    again = graph.apply(graph.root, 0)
    assert again is not first
    assert (again.key, str(again.module)) == (first.key, str(first.module))


def test_evicted_states_are_freed() -> None:
    graph = PassGraph(parse(MANY_STATES.read_text()), default_pass_actions(), memory=StateMemory(100_000))
    rng = np.random.default_rng(0)
    made = []
    for _ in range(8):
        state = graph.root
        for action in rng.integers(len(graph.actions), size=15):
            after = graph.apply(state, int(action))
            if after is not state:
                made.append(weakref.ref(after))
            state = after
    del state, after
    gc.collect()
    alive = {id(found) for found in (reference() for reference in made) if found is not None}
    assert len(alive - {id(graph.root)}) == len(graph._memory)
    assert len(graph._memory) < len(made) / 3


def test_environments_that_share_states_keep_more_of_them(suite: Path) -> None:
    first = PassOrderEnv(suite)
    limit = first._memory.limit
    second = PassOrderEnv(suite, shared=first)
    assert second._memory is first._memory
    assert first._memory.limit == 2 * limit


def test_a_plan_has_the_passes_of_its_own_episode(tmp_path: Path) -> None:
    env = make(tmp_path)
    plans = []
    for order in ((0, 1, 0), (1, 0)):
        env.reset()
        for action in order:
            env.step(action)
        *_, info = env.step(len(PASSES))
        plans.append(CompilationPlan.from_json(info["plan_json"]))
        assert list(plans[-1].passes[: len(info["passes"])]) == info["passes"]
    assert plans[0].passes != plans[1].passes
    fingerprints = []
    for plan in plans:
        session = CompilationSession(parse(TEXT))
        session.replay(plan)
        fingerprints.append(session.module.fingerprint())
    assert fingerprints[0] == fingerprints[1]


def test_an_episode_completes_as_compile_does() -> None:
    env = PassOrderEnv("quickstart", backend="cpu")
    env.reset(seed=0, options={"program": "cartpole_split"})
    *_, info = env.step(len(env.actions))

    plan = CompilationPlan.from_json(info["plan_json"])
    default = compile_hlo(find_program("cartpole_split").text()).plan
    assert default is not None
    assert plan.loop_choices == default.loop_choices
    assert [c.choice for c in plan.loop_choices] == ["kernel"]
    assert info["speedup"] == pytest.approx(1.0)
