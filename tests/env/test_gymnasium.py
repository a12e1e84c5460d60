"""What users of Gymnasium do with environments: vectors of them, wrappers, pictures."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces.utils import flatdim, flatten

from compiler.errors import UnknownNameError
from env import ENVIRONMENTS
from env.base import CompilerEnv
from env.environments import FusionEnv, PassOrderEnv
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


def test_without_a_mode_nothing_is_rendered(suite: str) -> None:
    env = FusionEnv(suite)
    env.reset(seed=0)
    assert env.render() is None
