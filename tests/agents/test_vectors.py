"""A signal during an exchange with processes of environments leaves questions and answers in step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecEnv

from agents.vectors import LostEnvironmentsError, make_vector
from compiler.errors import UnknownNameError
from env.worker_process import WorkerStartError


class Signalling(gym.Env[Any, Any]):
    """Sends signals to the trainer during a step, if its action says so, and answers after them."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, number: int, trainer: int) -> None:
        self.number, self.trainer = number, trainer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send so many signals, after which other environments have answered."""
        if action == 3:
            os._exit(1)
        for _ in range(int(action)):
            time.sleep(0.3)
            os.kill(self.trainer, signal.SIGINT)
        time.sleep(0.3)
        return np.full(4, self.number, np.float32), float(self.number), False, False, {}

    def name(self) -> str:
        """Return which environment it is."""
        return f"environment {self.number}"


@pytest.fixture
def vector() -> Iterator[VecEnv]:
    trainer = os.getpid()
    made = make_vector([lambda n=n: Signalling(n, trainer) for n in range(3)], "subproc")  # type: ignore[misc]
    made.reset()
    yield made
    made.close()
    assert not any(process.is_alive() for process in made.unwrapped.processes)  # type: ignore[attr-defined]


def test_a_signal_waits_until_all_environments_have_answered(vector: VecEnv) -> None:
    with pytest.raises(KeyboardInterrupt):
        vector.step(np.array([0, 1, 0]))
    assert vector.env_method("name") == ["environment 0", "environment 1", "environment 2"]
    observations, rewards, _, _ = vector.step(np.array([0, 0, 0]))
    assert rewards.tolist() == [0, 1, 2]
    assert np.asarray(observations)[:, 0].tolist() == [0, 1, 2]


def test_a_second_signal_ends_the_exchange_and_the_processes(vector: VecEnv) -> None:
    with pytest.raises(KeyboardInterrupt):
        vector.step(np.array([0, 2, 0]))
    with pytest.raises(LostEnvironmentsError):
        vector.env_method("name")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_has_ended_does_not_keep_the_others_alive(vector: VecEnv) -> None:
    with pytest.raises((EOFError, ConnectionError)):
        vector.step(np.array([0, 3, 0]))


def test_a_signal_between_actions_and_answers_loses_no_answer(vector: VecEnv) -> None:
    vector.step_async(np.array([0, 0, 0]))
    assert vector.env_method("name") == ["environment 0", "environment 1", "environment 2"]


class Failing(gym.Env[Any, Any]):
    """Fails at an action, or when it begins its second episode."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if self.begun:
            raise UnknownNameError("program", "a", ["b"])
        self.begun = True
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Fail, or end the episode."""
        if action:
            raise WorkerStartError("no worker")
        return np.zeros(4, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize(("actions", "error"), [([1, 0], WorkerStartError), ([0, 0], UnknownNameError)])
def test_an_error_of_an_environment_reaches_the_trainer(
    actions: list[int], error: type[Exception], capfd: pytest.CaptureFixture[str]
) -> None:
    vector = make_vector([Failing, Failing], "subproc")
    vector.reset()
    with pytest.raises(error):
        vector.step(np.array(actions))
    if error is UnknownNameError:
        with pytest.raises(error):
            vector.reset()
    vector.close()
    assert "Traceback" not in capfd.readouterr().err
