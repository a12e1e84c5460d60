"""A signal during an exchange with processes of environments leaves questions and answers in step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecEnv

from agents import environment_process
from agents.vectors import LostEnvironmentsError, make_vector
from compiler.errors import UnknownNameError
from env.process_watch import children_running
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


class Losing(gym.Env[Any, Any]):
    """Counts its steps; its process gets the signal that an action says."""

    observation_space = gym.spaces.Box(-1, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(100)
    dies_at_reset = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.steps = 0
        if self.dies_at_reset:
            os.kill(os.getpid(), signal.SIGSEGV)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, or the signal."""
        if action:
            os.kill(os.getpid(), int(action))
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}

    def taken(self) -> int:
        """Return the steps of the episode."""
        return self.steps


class Dying(Losing):
    """Its process does not live through a reset."""

    dies_at_reset = True


@pytest.fixture
def losing() -> Iterator[tuple[VecEnv, list[str]]]:
    notices: list[str] = []
    made = make_vector([Losing, Losing], "subproc", notices.append)
    made.reset()
    made.step(np.array([0, 0]))
    yield made, notices
    made.close()


def steps_of(observations: Any) -> list[int]:
    return [int(n) for n in observations.ravel()]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGSTOP])
def test_a_lost_process_is_replaced_and_its_episode_truncated(
    losing: tuple[VecEnv, list[str]], number: signal.Signals
) -> None:
    vector, notices = losing
    observations, rewards, dones, infos = vector.step(np.array([number, 0]))
    assert steps_of(observations) == [0, 2]
    assert (rewards.tolist(), dones.tolist()) == ([0, 1], [True, False])
    assert infos[0]["TimeLimit.truncated"]
    assert infos[0]["terminal_observation"] == 1  # the last one that is known
    assert len(notices) == 1 and "environment 0 was lost" in notices[0]
    observations, _, dones, _ = vector.step(np.array([0, 0]))
    assert (steps_of(observations), dones.tolist()) == ([1, 3], [False, False])


def test_a_process_that_is_lost_between_two_steps_begins_at_the_next_one(losing: tuple[VecEnv, list[str]]) -> None:
    vector, notices = losing
    process = vector.unwrapped.processes[1]  # type: ignore[attr-defined]
    process.kill()
    process.join()
    assert vector.env_method("taken") == [1, 0]
    observations, _, dones, infos = vector.step(np.array([0, 0]))
    assert (steps_of(observations), dones.tolist()) == ([2, 0], [False, True])
    assert infos[1]["terminal_observation"] == 1
    assert vector.env_method("taken") == [2, 0]
    assert len(notices) == 1
    process = vector.unwrapped.processes[1]  # type: ignore[attr-defined]
    process.kill()
    assert steps_of(vector.reset()) == [0, 0]
    assert steps_of(vector.step(np.array([0, 0]))[0]) == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("times", [1, 99])
def test_a_process_that_is_lost_as_it_starts_is_started_again(tmp_path: Path, times: int, number: int) -> None:
    def make() -> gym.Env[Any, Any]:
        with (tmp_path / "starts").open("a") as file:
            file.write("x")
        if (tmp_path / "starts").stat().st_size <= times:
            os.kill(os.getpid(), number)
        return Losing()

    if times == 1:
        vector = make_vector([make], "subproc")
        assert steps_of(vector.reset()) == [0]
        vector.close()
    else:
        with pytest.raises(LostEnvironmentsError, match="as it started"):
            make_vector([make], "subproc")


def test_a_process_that_is_stopped_as_it_replaces_another_is_replaced(tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        with (tmp_path / "starts").open("a") as file:
            file.write("x")
        if (tmp_path / "starts").stat().st_size == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return Losing()

    notices: list[str] = []
    vector = make_vector([make], "subproc", notices.append)
    vector.reset()
    observations, _, dones, _ = vector.step(np.array([signal.SIGKILL]))
    assert (steps_of(observations), dones.tolist()) == ([0], [True])
    assert len(notices) == 2
    vector.close()


@pytest.fixture
def server() -> Iterator[None]:
    """A fork server of its own, which the test may kill or stop."""
    kill_server()
    yield
    kill_server()


def kill_server() -> None:
    for pid in children_running("multiprocessing.forkserver"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_fork_server_is_replaced_if_it_is_lost(server: None, number: signal.Signals) -> None:
    make_vector([Dying], "subproc").close()
    (forking,) = children_running("multiprocessing.forkserver")
    os.kill(forking, number)
    vector = make_vector([Losing, Losing], "subproc")
    assert steps_of(vector.reset()) == [0, 0]
    vector.close()
    assert forking not in children_running("multiprocessing.forkserver")


def test_a_fork_server_is_replaced_if_it_hangs(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    (tmp_path / "hangs_once.py").write_text(
        f"import pathlib, time\nfile = pathlib.Path({str(started)!r})\n"
        "if not file.exists():\n    file.touch()\n    time.sleep(10_000)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(environment_process, "_SHARED", ("hangs_once",))
    monkeypatch.setattr(environment_process, "START_SECONDS", 5.0)
    vector = make_vector([Losing, Losing], "subproc")
    assert started.exists()
    assert steps_of(vector.reset()) == [0, 0]
    vector.close()


class Variables(Losing):
    """Returns the environment variables of its process."""

    def variables(self) -> dict[str, str]:
        """Return those of its process."""
        return dict(os.environ)


def test_processes_have_the_variables_that_their_trainer_has_as_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    make_vector([Losing], "subproc").close()
    monkeypatch.setenv("HLOGYM_CACHE", "/somewhere")
    monkeypatch.delenv("HOME")
    vector = make_vector([Variables], "subproc")
    assert vector.env_method("variables") == [dict(os.environ)]
    vector.close()


def test_stopped_processes_do_not_keep_a_broken_vector_alive(vector: VecEnv) -> None:
    with pytest.raises(KeyboardInterrupt):
        vector.step(np.array([0, 2, 0]))
    process = vector.unwrapped.processes[0]  # type: ignore[attr-defined]
    os.kill(process.pid, signal.SIGSTOP)
    vector.close()


def test_a_process_that_is_lost_again_and_again_is_given_up() -> None:
    notices: list[str] = []
    vector = make_vector([Dying], "subproc", notices.append)
    with pytest.raises(EOFError, match="SIGSEGV"):
        vector.reset()
    assert len(notices) == 3
    vector.close()


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
