"""Environments whose rewards are predicted GPU times: they need no GPU and are deterministic."""

import math
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from compiler.backends.cuda import emulation
from compiler.errors import OptionError, UnknownNameError
from compiler.plan import CompilationPlan
from env.base import CompilerEnv
from env.compilation import PlanFailedError
from env.predicted_time import PlanTimes
from env.rewards import EmulatedTime
from env.suites import load_suite
from experiments.config import TrainConfig
from experiments.training_env import make_env
from tests.env.small_programs import write_suite

pytestmark = pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_suite(tmp_path_factory.mktemp("suite") / "small"))


def made(name: str, suite: str, **options: Any) -> CompilerEnv[Any]:
    env = gym.make(f"hlogym/{name}Emulated-v0", suite=suite, **options).unwrapped
    assert isinstance(env, CompilerEnv)
    return env


def episode(env: CompilerEnv[Any], actions: int, last: bool = False) -> tuple[float, dict[str, Any]]:
    """Take the first (or last) legal action so many times, then stop as soon as possible; return reward and info."""
    env.reset(seed=0, options={"program": "chain"})
    total = 0.0
    for n in range(200):
        legal = np.flatnonzero(env.action_masks())
        chosen = legal[0] if n < actions and not last else legal[-1]
        _, reward, terminated, _, info = env.step(int(chosen))
        total += float(reward)
        if terminated:
            return total, info
    raise AssertionError("the episode does not end")


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("name", ["Fusion", "Kernels", "Compile"])
def test_environments_with_emulated_time_pass_the_check_of_gymnasium(name: str, suite: str) -> None:
    env = made(name, suite)
    assert env.backend == "cuda"
    assert not env.measured
    assert not gym.spec(f"hlogym/{name}Emulated-v0").nondeterministic
    check_env(env, skip_render_check=True)


def test_equal_decisions_have_equal_rewards(suite: str) -> None:
    first, again = (episode(made("Fusion", suite), 3) for _ in range(2))
    assert first == again


def test_the_reward_is_the_log_of_the_predicted_speedup_over_the_default_plan(suite: str) -> None:
    env = made("Fusion", suite)
    reward, info = episode(env, 0, last=True)
    program = load_suite(suite).find("chain")
    times = PlanTimes()
    plan = CompilationPlan.from_json(info["plan_json"])
    speedup = times.default_seconds(program) / times.seconds(program, plan)
    assert reward == pytest.approx(math.log(speedup))
    assert info["speedup"] == pytest.approx(speedup)
    assert speedup < 1  # nothing is fused, so there are more launches


def test_default_kernels_are_as_fast_as_the_default_plan(suite: str) -> None:
    reward, _ = episode(made("Kernels", suite), 200)
    assert reward == 0


def test_a_copy_in_another_process_has_the_same_rewards(suite: str) -> None:
    env = made("Kernels", suite)
    copied = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    assert episode(copied, 0, last=True) == episode(env, 0, last=True)


def test_other_gpus_can_be_named(suite: str) -> None:
    env = made("Fusion", suite, reward=EmulatedTime("a100"))
    assert episode(env, 0, last=True) != episode(made("Fusion", suite), 0, last=True)
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        EmulatedTime("v1")


def test_emulated_time_needs_kernels_for_a_gpu(suite: str) -> None:
    with pytest.raises(OptionError, match="backend='cuda'"):
        made("Fusion", suite, backend="cpu")
    with pytest.raises(OptionError, match="backend='cuda'"):
        gym.make("hlogym/Fusion-v0", suite=suite, reward="emulated-time")


def test_a_plan_of_another_program_fails(suite: str) -> None:
    _, info = episode(made("Fusion", suite), 2)
    other = load_suite(suite).find("loop")
    with pytest.raises(PlanFailedError):
        PlanTimes().seconds(other, CompilationPlan.from_json(info["plan_json"]))


def test_training_runs_make_emulated_environments_on_any_machine(suite: str) -> None:
    env: Any = make_env(TrainConfig(env="hlogym/FusionEmulated-v0", suite=suite, backend="cpu"))
    assert env.backend == "cuda"
    assert isinstance(env.reward, EmulatedTime)
