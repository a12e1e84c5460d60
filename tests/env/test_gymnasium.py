"""What users of Gymnasium do with environments: vectors of them, wrappers, pictures."""

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import AutoresetMode

from compiler.errors import OptionError, UnknownNameError
from env import ENVIRONMENTS
from env.base import CompilerEnv
from env.environments import FusionEnv, PassOrderEnv, UnrollEnv
from env.vector import CompilerVectorEnv
from tests.env.small_programs import write_suite

IDS = [f"hlogym/{name}-v0" for name in ENVIRONMENTS]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_suite(tmp_path_factory.mktemp("suite") / "small"))


def first_actions(masks: Any) -> Any:
    return np.argmax(masks, axis=1)


def run_vector(env: gym.vector.VectorEnv[Any, Any, Any], masks: Any, steps: int = 4) -> tuple[list[Any], list[Any]]:
    """Take the first legal action in each environment; return rewards and programs."""
    _, info = env.reset(seed=3)
    rewards, programs = [], [list(info["program"])]
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(first_actions(masks()))
        rewards.append(reward.tolist())
        assert terminated.shape == truncated.shape == (env.num_envs,)
        programs.append(list(info["program"]))
    return rewards, programs


@pytest.mark.parametrize("env_id", IDS)
def test_every_way_to_make_a_vector_gives_the_same_episodes(env_id: str, suite: str) -> None:
    runs = []
    for mode in (None, "sync", "async"):
        env = gym.make_vec(env_id, num_envs=2, vectorization_mode=mode, suite=suite, backend="cpu")
        try:
            assert isinstance(env, CompilerVectorEnv) is (mode is None)
            masks: Any = (
                env.action_masks
                if isinstance(env, CompilerVectorEnv)
                else lambda env=env: np.stack(env.unwrapped.call("action_masks"))
            )
            runs.append(run_vector(env, masks))
        finally:
            env.close()
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("env_id", IDS)
def test_a_masked_agent_always_has_an_action_in_a_vector(env_id: str, suite: str) -> None:
    env = gym.make_vec(env_id, num_envs=2, suite=suite, backend="cpu")
    assert isinstance(env, CompilerVectorEnv)
    env.reset(seed=0)
    ended = np.zeros(2, np.bool_)
    for step in range(60):
        masks = env.action_masks()
        assert masks.any(axis=1).all()
        assert masks[ended].all()
        # The last legal action often ends an episode at once; the first one makes long episodes.
        actions = np.array([np.flatnonzero(row)[-1 if step % 4 == k else 0] for k, row in enumerate(masks)])
        _, _, terminated, truncated, _ = env.step(actions)
        ended = terminated | truncated
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_a_pickled_environment_begins_the_same_episodes(env_id: str, suite: str) -> None:
    env = gym.make(env_id, suite=suite)
    first, _ = env.reset(seed=3)
    copied = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    again, _ = copied.reset(seed=3)
    assert copied.spec == env.spec
    assert copied.observation_space == env.observation_space
    wanted, found = (np.asarray(flatten(env.observation_space, x)) for x in (first, again))
    np.testing.assert_array_equal(found, wanted)


def test_environments_of_a_vector_compile_a_program_once_and_share_one_measurer(suite: str) -> None:
    env = gym.make_vec("hlogym/FusionMeasured-v0", num_envs=3, suite=suite, backend="cpu", store=":memory:")
    assert isinstance(env, CompilerVectorEnv)
    try:
        env.reset(options={"program": "chain"})
        one, two, three = (e.unwrapped for e in env.envs)
        assert isinstance(one, FusionEnv)
        assert isinstance(two, FusionEnv)
        assert isinstance(three, FusionEnv)
        program = one.suite.find("chain")
        assert one.baseline(program) is two.baseline(program) is three.baseline(program)
        stop = [int(m.sum()) - 1 for m in env.action_masks()]
        _, rewards, terminated, *_ = env.step(np.array(stop))
        assert terminated.all()
        assert len({round(float(r), 9) for r in rewards}) == 1
        assert one.measurer is two.measurer is three.measurer
    finally:
        env.close()


@pytest.mark.parametrize("mode", [None, "sync", "async"])
def test_a_time_limit_holds_in_every_vector(mode: str | None, suite: str) -> None:
    env = gym.make_vec("hlogym/Fusion-v0", num_envs=2, vectorization_mode=mode, max_episode_steps=2, suite=suite)
    try:
        env.reset(seed=0, options={"program": "chain"})
        ends = [env.step(np.full(2, -1))[2:4] for _ in range(2)]
        assert [truncated.tolist() for _, truncated in ends] == [[False, False], [True, True]]
        assert not any(terminated.any() for terminated, _ in ends)
    finally:
        env.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_ended_episode_leaves_a_masked_agent_an_action_in_every_autoreset_mode(
    mode: AutoresetMode, suite: str
) -> None:
    env = gym.make_vec("hlogym/Unroll-v0", num_envs=2, suite=suite, autoreset_mode=mode.value)
    assert isinstance(env, CompilerVectorEnv)
    env.reset(seed=0, options={"program": "chain"})
    _, _, terminated, *_ = env.step(np.zeros(2, np.int64))
    assert terminated.all()
    assert env.action_masks().any(axis=1).all()
    if mode == AutoresetMode.DISABLED:
        env.reset(options={"program": "loop", "reset_mask": np.array([True, False])})
        kept, ended = env.action_masks()
        assert not kept.all()
        assert ended.all()
    env.close()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None, True])
def test_a_vector_of_no_environments_is_refused(wrong: Any, suite: str) -> None:
    with pytest.raises(OptionError, match="num_envs must be a positive integer"):
        gym.make_vec("hlogym/Fusion-v0", num_envs=wrong, suite=suite)


def test_environments_share_only_what_both_can_use(suite: str) -> None:
    fusion = FusionEnv(suite)
    with pytest.raises(OptionError, match="another class: FusionEnv, not UnrollEnv"):
        UnrollEnv(suite, shared=fusion)
    with pytest.raises(OptionError, match="another backend: cpu, not cuda"):
        FusionEnv(suite, backend="cuda", shared=fusion)
    with pytest.raises(OptionError, match="another suite: small, not quickstart"):
        FusionEnv("quickstart", shared=fusion)


def test_environments_that_differ_in_their_decisions_have_baselines_of_their_own(suite: str) -> None:
    first = FusionEnv(suite)
    program = first.suite.find("loop")
    first.baseline(program)
    others: list[Any] = [{"automatic": False}, {"phases": "fusion"}]
    for differing in others:
        alone, sharing = FusionEnv(suite, **differing), FusionEnv(suite, **differing, shared=first)
        assert sharing.baseline(program) is not first.baseline(program)
        assert sharing.baseline(program).plan == alone.baseline(program).plan


def test_environments_with_other_passes_share_no_states(suite: str) -> None:
    first = PassOrderEnv(suite)
    second = PassOrderEnv(suite, passes="dce", shared=first)
    for env in (first, second):
        env.reset(options={"program": "chain"})
        assert env.action_masks().shape == (len(env.actions) + 1,)


def test_an_error_in_a_process_of_its_own_keeps_its_type(suite: str) -> None:
    env = gym.make_vec("hlogym/Fusion-v0", num_envs=2, vectorization_mode="async", suite=suite, backend="cpu")
    try:
        with pytest.raises(UnknownNameError, match="missing"):
            env.reset(options={"program": "missing"})
    finally:
        env.close(terminate=True)


@pytest.mark.parametrize("env_id", IDS)
def test_common_wrappers(env_id: str, suite: str) -> None:
    env: gym.Env[Any, Any] = gym.make(env_id, suite=suite, backend="cpu", max_episode_steps=3)
    assert isinstance(env, wrappers.TimeLimit)
    env = wrappers.RecordEpisodeStatistics(env)
    env = wrappers.FlattenObservation(env)
    env = wrappers.TransformReward(env, lambda r: 2 * float(r))
    env = wrappers.NormalizeReward(env, gamma=1.0)
    observation, info = env.reset(seed=0)
    base = env.unwrapped
    assert isinstance(base, CompilerEnv)
    assert observation.shape == (flatdim(base.observation_space),)
    assert env.observation_space.contains(observation)
    for step in range(1, 4):
        _, reward, terminated, truncated, info = env.step(np.argmax(base.action_masks()))
        assert np.isfinite(float(reward))
        if terminated or truncated:
            assert terminated or step == 3
            assert info["episode"]["l"] == step
            break
    else:
        pytest.fail("the time limit did not end the episode")


@pytest.mark.parametrize("env_id", IDS)
def test_pictures_show_the_decisions(env_id: str, suite: str) -> None:
    env = gym.make(env_id, suite=suite, backend="cpu", render_mode="rgb_array")
    env.reset(seed=0, options={"program": "loop"})
    before: Any = env.render()
    base = env.unwrapped
    assert isinstance(base, CompilerEnv)
    if base.action_masks().any():
        env.step(np.argmax(base.action_masks()))
    after: Any = env.render()
    assert before.dtype == np.uint8
    assert before.ndim == 3
    assert before.shape[2] == 3
    assert before.shape == after.shape
    # White paper with something drawn on it, and another picture once a decision is taken.
    assert 0 < (before != 255).any(axis=2).mean() < 0.5
    assert len(base.compilation.decisions) == 0 or (before != after).any()
    again: Any = env.render()
    np.testing.assert_array_equal(after, again)


def test_pictures_are_recorded_step_by_step(suite: str) -> None:
    env = wrappers.RenderCollection(gym.make("hlogym/Fusion-v0", suite=suite, backend="cpu", render_mode="rgb_array"))
    env.reset(seed=0, options={"program": "chain"})
    env.step(0)
    env.step(0)
    frames: Any = env.render()
    assert len(frames) == 3


def test_rendering_before_a_reset_says_what_to_do(suite: str) -> None:
    for mode in ("ansi", "rgb_array"):
        env = PassOrderEnv(suite, render_mode=mode)
        with pytest.raises(gym.error.ResetNeeded, match="reset"):
            env.render()


def test_an_unknown_render_mode_is_refused(suite: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rgb_array'"):
        FusionEnv(suite, render_mode="rgb-array")


def test_a_picture_of_a_long_chain_has_rows_that_can_be_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    ops = "\n".join(f"  a{n} = f32[8] sine(f32[8] a{n - 1})" for n in range(1, 150))
    root = "  ROOT t = (f32[8], f32[8]) tuple(f32[8] a3, f32[8] a149)"
    text = f"HloModule m\n\nENTRY main {{\n  a0 = f32[8] parameter(0)\n{ops}\n{root}\n}}\n"
    (folder / "chain.hlo").write_text(text)
    env = FusionEnv(folder, render_mode="rgb_array")
    env.reset(seed=0)
    picture: Any = env.render()
    inside = picture[60:570, 300]  # through the boxes, which are white with edges
    assert 0.3 < (inside == 255).all(axis=1).mean() < 0.9


def test_without_a_mode_nothing_is_rendered(suite: str) -> None:
    env = FusionEnv(suite)
    env.reset(seed=0)
    assert env.render() is None
