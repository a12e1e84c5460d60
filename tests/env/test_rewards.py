"""Rewards: the three that come with hlogym, and rewards of a user's own on every environment."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import env as environments
from compiler.errors import UnknownNameError
from compiler.passes.infrastructure.base import op_count
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.base import CompilerEnv
from env.compilation import Compilation, PlanFailedError
from env.environments import CompileEnv, FusionEnv, PassOrderEnv, UnrollEnv
from env.measurement import Measurement
from env.rewards import (
    FAILURE_REWARD,
    REWARDS,
    EstimatedTime,
    MeasuredTime,
    OpCount,
    PotentialReward,
    Reward,
    RewardError,
)
from tests.env.scripted import FAILED, ScriptedMeasurer, taking
from tests.env.small_programs import CHAIN, write_suite

CLASSES = (FusionEnv, UnrollEnv, PassOrderEnv, CompileEnv)


def kernels(session: CompilationSession) -> int:
    return max(len(session.kernels()), 1)


class FewerKernels(Reward):
    """The log of how many times fewer kernels there are than in the baseline."""

    def finish(self, compilation: Compilation) -> float:
        return math.log(kernels(compilation.baseline.complete()) / kernels(compilation.complete()))


class FewerKernelsEachStep(PotentialReward):
    """The same, rewarded step by step."""

    def quantity(self, compilation: Compilation) -> float:
        return kernels(compilation.complete())


class Strict(Reward):
    """Measured time, where failures are worth what their kind says."""

    measured = True

    def finish(self, compilation: Compilation) -> float:
        return math.log(compilation.measured_speedup())

    def failure(self, measurement: Measurement) -> float:
        return {"wrong": -7.0, "crash": -3.0}[str(measurement.failure)]


class Recorder(Reward):
    """Records the calls of the environment."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reset(self, compilation: Compilation) -> None:
        self.calls = [f"reset {compilation.program.name} {len(compilation.decisions)}"]

    def step(self, compilation: Compilation) -> float:
        self.calls.append(f"step {len(compilation.decisions)} {compilation.done}")
        return 0.25

    def finish(self, compilation: Compilation) -> float:
        self.calls.append(f"finish {compilation.done}")
        return 10.0


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "small")


def play(env: CompilerEnv[Any], seed: int = 0, program: str = "chain") -> tuple[list[float], list[dict[str, Any]]]:
    """Play an episode of random legal actions; return its rewards and infos, that of the reset first."""
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed, options={"program": program})
    rewards, infos, ended = [], [info], False
    while not ended:
        action = int(rng.choice(np.flatnonzero(env.action_masks())))
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        infos.append(info)
        ended = terminated or truncated
    return rewards, infos


def last_actions(env: Any, program: str = "chain") -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield rewards and infos of an episode that takes the last legal action each time."""
    env.reset(options={"program": program})
    ended = False
    while not ended:
        _, reward, terminated, truncated, info = env.step(int(np.flatnonzero(env.action_masks())[-1]))
        ended = terminated or truncated
        yield reward, info


# ---- by name


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, EstimatedTime),
        ({"measured": True}, MeasuredTime),
        ({"reward": "op-count"}, OpCount),
        ({"reward": "estimated-time"}, EstimatedTime),
        ({"reward": "cost"}, EstimatedTime),
        ({"reward": "measured-time"}, MeasuredTime),
        ({"reward": "measured"}, MeasuredTime),
        ({"reward": "op-count", "measured": True}, OpCount),
        ({"reward": OpCount()}, OpCount),
    ],
)
def test_every_environment_takes_a_reward_by_name_or_object(
    cls: type[CompilerEnv[Any]], options: dict[str, Any], expected: type[Reward], suite: Path
) -> None:
    env = cls(suite, **options)
    assert type(env.reward) is expected
    assert env.measured is (expected is MeasuredTime)


@pytest.mark.parametrize("name", environments.ENVIRONMENTS)
def test_measured_ids_measure_unless_another_reward_is_given(name: str, suite: Path) -> None:
    def made(**options: Any) -> CompilerEnv[Any]:
        env: Any = gym.make(f"hlogym/{name}Measured-v0", suite=str(suite), **options).unwrapped
        return env  # type: ignore[no-any-return]

    assert made().measured
    assert made(reward=None).measured
    assert not made(reward="estimated-time").measured


def test_unknown_names_are_reported_with_the_nearest(suite: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'estimated-time'"):
        FusionEnv(suite, reward="estimated")
    with pytest.raises(TypeError, match="must be a Reward object or one of op-count"):
        FusionEnv(suite, reward=FewerKernels)  # type: ignore[arg-type]  # the class, not an object


class Returning(Reward):
    """Returns a value that may be no number."""

    def __init__(self, value: object) -> None:
        self.value = value

    def step(self, compilation: Compilation) -> float:
        return self.value  # type: ignore[return-value]


class Nothing(PotentialReward):
    """A quantity that reaches zero, which has no logarithm."""

    def quantity(self, compilation: Compilation) -> float:
        return 0.0


@pytest.mark.parametrize("value", ["1", None, float("nan"), float("inf"), [1.0, 2.0]])
def test_a_reward_that_is_no_finite_number_is_an_error(value: object, suite: Path) -> None:
    env = FusionEnv(suite, reward=Returning(value))
    env.reset(options={"program": "chain"})
    with pytest.raises(RewardError, match=r"Returning\.step returned .* finite number"):
        env.step(0)


def test_mistakes_in_a_reward_are_named(suite: Path) -> None:
    with pytest.raises(RewardError, match=r"Nothing\.quantity returned 0, which is no positive number"):
        FusionEnv(suite, reward=Nothing()).reset()
    with pytest.raises(TypeError, match=r"pass Nothing\(\)"):
        FusionEnv(suite, reward=Nothing)  # type: ignore[arg-type]


def test_a_reward_can_be_registered(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REWARDS, "fewer-kernels", FewerKernels)
    assert type(PassOrderEnv(suite, reward="fewer-kernels").reward) is FewerKernels


# ---- the rewards that come with hlogym


@pytest.mark.parametrize("cls", CLASSES)
def test_op_counts_are_rewarded_by_the_log_of_their_ratio(cls: type[CompilerEnv[Any]], suite: Path) -> None:
    env = cls(suite, reward="op-count")
    for program in ("chain", "loop"):
        env.reset(options={"program": program})
        before = op_count(env.compilation.module)
        rewards, infos = play(env, 3, program)
        after = op_count(env.compilation.module)
        assert sum(rewards) == pytest.approx(math.log(before / after), abs=1e-12)
        assert infos[-1]["speedup"] == pytest.approx(env.baseline(env.suite.find(program)).ops / after)


def test_unrolling_a_loop_costs_ops(suite: Path) -> None:
    env = UnrollEnv(suite, reward="op-count")
    env.reset(options={"program": "loop"})
    # By hand: the body adds, broadcasts, takes the cosine and multiplies; the condition compares; the entry loops.
    assert env.compilation.ops == 6
    choices = [str(m).rpartition(": ")[2] for m in env.moves]
    _, reward, *_ = env.step(choices.index("unroll-4"))
    assert reward <= math.log(6 / 12)  # at least three more cosines and products


@pytest.mark.parametrize("cls", CLASSES)
def test_the_rewards_of_estimated_time_add_up_to_the_speedup_of_the_plan(
    cls: type[CompilerEnv[Any]], suite: Path
) -> None:
    env = cls(suite)
    rewards, infos = play(env, 4)
    session = CompilationSession(parse(CHAIN))
    session.replay(CompilationPlan.from_json(infos[-1]["plan_json"]))
    baseline = env.baseline(env.suite.find("chain")).complete().cost().seconds
    assert sum(rewards) == pytest.approx(math.log(baseline / session.cost().seconds), abs=1e-9)


@pytest.mark.parametrize("cls", CLASSES)
def test_measured_time_is_rewarded_at_the_end(cls: type[CompilerEnv[Any]], suite: Path) -> None:
    with ScriptedMeasurer(taking(0.25), FAILED) as m:
        env = cls(suite, measured=True, measurer=m)
        *before, (reward, info) = last_actions(env)
        assert [r for r, _ in before] == [0.0] * len(before)
        assert (reward, info["speedup"]) == (math.log(4), 4)
        *_, (reward, info) = last_actions(env)
        assert (reward, info["speedup"]) == (FAILURE_REWARD, math.exp(FAILURE_REWARD))
        assert info["measurement"]["message"] == "all wrong"


def test_the_step_cost_is_subtracted_from_every_reward(suite: Path) -> None:
    for reward in ("op-count", "estimated-time"):
        free, _ = play(PassOrderEnv(suite, reward=reward), 1)
        costly, _ = play(PassOrderEnv(suite, reward=reward, step_cost=0.5), 1)
        assert costly == pytest.approx([r - 0.5 for r in free])


# ---- rewards of a user's own


@pytest.mark.parametrize("name", environments.ENVIRONMENTS)
@pytest.mark.parametrize("reward", [FewerKernels(), FewerKernelsEachStep()], ids=["at the end", "each step"])
def test_environments_with_a_custom_reward_pass_gymnasiums_checker(name: str, reward: Reward, suite: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(f"hlogym/{name}-v0", suite=str(suite), reward=reward)
        check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("cls", CLASSES)
def test_fewer_kernels_are_rewarded(cls: type[CompilerEnv[Any]], suite: Path) -> None:
    env, stepwise = cls(suite, reward=FewerKernels()), cls(suite, reward=FewerKernelsEachStep())
    rewards, infos = play(env, 2)
    session = CompilationSession(parse(CHAIN))
    session.replay(CompilationPlan.from_json(infos[-1]["plan_json"]))
    baseline = kernels(env.baseline(env.suite.find("chain")).complete())
    assert rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert rewards[-1] == pytest.approx(math.log(baseline / kernels(session)))
    start = stepwise.reset(options={"program": "chain"}) and kernels(stepwise.compilation.complete())
    assert sum(play(stepwise, 2)[0]) == pytest.approx(math.log(start / kernels(session)))


def test_fusing_more_leaves_fewer_kernels(suite: Path) -> None:
    env = FusionEnv(suite, reward=FewerKernels())
    env.reset(options={"program": "chain"})
    *_, (stopped, _) = last_actions(env)
    assert stopped == 0.0  # unfused, as the baseline
    env.reset(options={"program": "chain"})
    terminated, reward = False, 0.0
    while not terminated:
        _, reward, terminated, *_ = env.step(0)
    assert reward > 0.5


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("failure", "worth"), [("wrong", -7.0), ("crash", -3.0)])
def test_a_reward_says_what_a_failure_is_worth(
    cls: type[CompilerEnv[Any]], failure: Any, worth: float, suite: Path
) -> None:
    with ScriptedMeasurer(Measurement(None, failure, "so it is"), taking(0.5)) as m:
        env = cls(suite, reward=Strict(), measurer=m)
        *_, (reward, info) = last_actions(env)
        assert (reward, info["speedup"]) == (worth, math.exp(worth))
        assert info["measurement"]["failure"] == failure
        *_, (reward, info) = last_actions(env)
        assert (reward, info["speedup"]) == (math.log(2), 2)


def test_a_plan_is_measured_once_per_episode(suite: Path) -> None:
    class Insistent(Reward):
        measured = True

        def finish(self, compilation: Compilation) -> float:
            for _ in range(3):
                with pytest.raises(PlanFailedError, match="all wrong"):
                    compilation.measured_speedup()
            return -0.125

    with ScriptedMeasurer(FAILED) as m:
        *_, (reward, _) = last_actions(FusionEnv(suite, reward=Insistent(), measurer=m))
        assert m.script == []
        assert reward == -0.125 + FAILURE_REWARD  # `info` needs a measured speedup, and there is none


@pytest.mark.parametrize("cls", CLASSES)
def test_the_reward_is_called_after_each_decision_and_at_the_end(cls: type[CompilerEnv[Any]], suite: Path) -> None:
    env = cls(suite, reward=Recorder())
    rewards, infos = play(env, 5)
    assert isinstance(env.reward, Recorder)
    start, *steps, finish = env.reward.calls
    assert start == "reset chain 0"
    assert [s.rpartition(" ")[2] for s in steps] == ["False"] * (len(rewards) - 1) + ["True"]
    assert finish == "finish True"
    assert rewards == [0.25] * (len(rewards) - 1) + [10.25]
    assert infos[-1]["phase"] == "done"


def test_the_reward_is_not_called_for_refused_actions_and_truncated_episodes(suite: Path) -> None:
    env = FusionEnv(suite, reward=Recorder(), max_steps=2)
    env.reset(options={"program": "chain"})
    env.step(10_000)
    *_, truncated, _ = env.step(0)
    assert truncated
    assert isinstance(env.reward, Recorder)
    assert env.reward.calls == ["reset chain 0", "step 1 False"]


def test_environments_do_not_share_the_state_of_a_reward(suite: Path) -> None:
    reward = FewerKernelsEachStep()
    together = [PassOrderEnv(suite, reward=reward) for _ in range(2)]
    alone = [play(PassOrderEnv(suite, reward=FewerKernelsEachStep()), 1, p)[0] for p in ("chain", "loop")]
    for env, program in zip(together, ("chain", "loop"), strict=True):
        env.reset(seed=1, options={"program": program})
    rngs = [np.random.default_rng(1) for _ in together]
    for n in range(10):  # in turns
        for env, rng, expected in zip(together, rngs, alone, strict=True):
            if n < len(expected):
                assert env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))[1] == pytest.approx(expected[n])
