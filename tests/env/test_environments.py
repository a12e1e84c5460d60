"""The environments keep Gymnasium's contract and their own."""

import math
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_sb3

from compiler.api import compile as compile_hlo
from compiler.errors import UnknownNameError
from compiler.plan import CompilationPlan
from compiler.text import parse
from env import ENVIRONMENTS
from env.base import REFUSED_REWARD
from env.decision import DecisionEnv
from env.environments import CompileEnv, ExpansionsEnv, FusionEnv, KernelsEnv, PassOrderEnv, UnrollEnv
from env.observations import unflatten
from env.reference import Reference
from tests.env.small_programs import CHAIN, write_suite

IDS = [f"hlogym/{name}{measured}-v0" for name in ENVIRONMENTS for measured in ("", "Measured")]
CLASSES = [ExpansionsEnv, FusionEnv, PassOrderEnv, UnrollEnv, KernelsEnv, CompileEnv]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "small")


def play(env: DecisionEnv, rng: np.random.Generator, **reset: Any) -> tuple[list[float], dict[str, Any]]:
    """Play an episode of random legal actions; return its rewards and the last info."""
    env.reset(**reset)
    rewards: list[float] = []
    while True:
        action = int(rng.choice(np.flatnonzero(env.action_masks())))
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            return rewards, info


@pytest.mark.parametrize("env_id", IDS)
def test_environments_pass_the_checkers_of_gymnasium_and_sb3(env_id: str, suite: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(f"env:{env_id}", suite=str(suite), backend="cpu", store=":memory:")
        check_env(env.unwrapped)
        check_sb3(env.unwrapped)
        env.close()


def test_measured_ids_are_registered_nondeterministic() -> None:
    for env_id in IDS:
        assert gym.spec(env_id).nondeterministic is ("Measured" in env_id)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_return_is_the_log_of_the_speedup(cls: type[DecisionEnv], suite: Path) -> None:
    env, rng = cls(suite, max_steps=60), np.random.default_rng(0)
    for seed in range(4):
        rewards, info = play(env, rng, seed=seed)
        if "plan_json" in info:
            assert sum(rewards) == pytest.approx(math.log(info["speedup"]), abs=1e-6)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_same_seed_and_actions_give_the_same_episode(cls: type[DecisionEnv], suite: Path) -> None:
    one, two = cls(suite, max_steps=30), cls(suite, max_steps=30)
    a, b = (play(e, np.random.default_rng(5), seed=7) for e in (one, two))
    assert a == b


@pytest.mark.parametrize("cls", CLASSES)
def test_the_plan_of_an_episode_replays_to_a_correct_program(cls: type[DecisionEnv], suite: Path) -> None:
    env, rng = cls(suite, max_steps=500), np.random.default_rng(1)
    for _ in range(2):
        _, info = play(env, rng, options={"program": "chain"})
        exe = compile_hlo(CHAIN, backend="cpu", plan=CompilationPlan.from_json(info["plan_json"]))
        arrays = [rng.uniform(0.5, 1.5, (64, 48)).astype(np.float32) for _ in range(2)]
        assert Reference.of(parse(CHAIN), arrays).difference(exe(*arrays)) is None


def test_the_loop_is_decided_first_and_then_fusions(suite: Path) -> None:
    env = FusionEnv(suite)
    _, info = env.reset(options={"program": "loop"})
    assert info["phase"] == "loops"
    assert {str(m).rpartition(": ")[2] for m in env.moves} >= {"keep", "unroll-2", "unroll-4", "unroll-8"}
    *_, info = env.step(0)
    assert info["phase"] == "fusion"
    assert str(env.moves[-1]) == "stop fusion"


@pytest.mark.parametrize(("cls", "phase"), [(ExpansionsEnv, "expansions"), (UnrollEnv, "loops")])
def test_with_nothing_to_decide_the_only_move_stops_the_phase_of_the_environment(
    cls: type[DecisionEnv], phase: str, suite: Path
) -> None:
    env = cls(suite)
    _, info = env.reset(options={"program": "chain"})
    assert list(env.names) == [f"stop {phase}"] and info["phase"] == phase
    assert env.action_masks().sum() == 1
    *_, terminated, _, info = env.step(0)
    assert terminated and info["plan"] == [f"stop {phase}"]
    assert info["plan_json"] == env.baseline(env.compilation.program).plan.to_json()


def test_stopping_ends_the_episode(suite: Path) -> None:
    env = FusionEnv(suite)
    env.reset(options={"program": "chain"})
    _, reward, terminated, truncated, info = env.step(len(env.moves) - 1)
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(0)
    assert info["speedup"] == pytest.approx(1)


def test_an_episode_is_truncated_after_max_steps(suite: Path) -> None:
    env = FusionEnv(suite, max_steps=1)
    env.reset(options={"program": "chain"})
    *_, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True)
    assert "plan_json" not in info


def test_an_illegal_action_does_nothing_and_says_why(suite: Path) -> None:
    env = FusionEnv(suite)
    before, _ = env.reset(options={"program": "chain"})
    illegal = int(np.flatnonzero(~env.action_masks())[0])
    after, reward, terminated, truncated, info = env.step(illegal)
    assert reward == REFUSED_REWARD
    assert not terminated
    assert not truncated
    assert str(illegal) in info["refused"]
    assert env.why_not(illegal) == info["refused"]
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value)


def test_masks_candidates_and_moves_agree(suite: Path) -> None:
    env, rng = CompileEnv(suite, max_steps=40), np.random.default_rng(2)
    observation, _ = env.reset(seed=0)
    for _ in range(20):
        count = len(env.moves)
        assert env.action_masks().sum() == count
        np.testing.assert_array_equal(observation["action_mask"].astype(bool), env.action_masks())
        assert len(unflatten(observation).candidates) == count
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(count)))
        if terminated or truncated:
            observation, _ = env.reset()


def test_an_unknown_program_is_reported_with_the_nearest_names(suite: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chain'"):
        FusionEnv(suite).reset(options={"program": "chian"})


def test_an_unknown_suite_is_reported() -> None:
    with pytest.raises(UnknownNameError, match="tran"):
        gym.make("env:hlogym/Fusion-v0", suite="tran")


def test_measured_rewards_come_at_the_end(suite: Path) -> None:
    env = FusionEnv(suite, measured=True, store=":memory:")
    try:
        rewards, info = play(env, np.random.default_rng(0), options={"program": "chain"})
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        assert info["measurement"]["failure"] == ""
        assert info["measurement"]["seconds"] > 0
        assert rewards[-1] == pytest.approx(math.log(info["speedup"]))
    finally:
        env.close()


def test_render_lists_the_decisions(suite: Path) -> None:
    env = FusionEnv(suite, render_mode="ansi")
    env.reset(options={"program": "chain"})
    env.step(0)
    text = env.render()
    assert text is not None
    assert "1. producer-consumer" in text
