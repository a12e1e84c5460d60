"""The process of one environment of a vector, which is replaced if it is lost."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any, Final

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv

from env.isolated import child_environment
from env.process_watch import SLICE, STOPPED_SECONDS, ProcessWatch, children_running, is_stopped, lost_are_killed

__all__ = ["MOST_LOSSES", "EnvironmentProcess", "StartedVector", "was_lost"]

START_METHOD: Final = "forkserver"
_SHARED = ("agents.environment_process", "env.environments")
"""Modules that the processes of environments share: importing them takes seconds, and 160 MiB for each process."""
START_SECONDS = 120.0
"""Seconds after which the fork server is replaced if it has not started all processes of a vector."""
END_SECONDS = 1.0
"""Wait after a fork server was lost: while a killed one still ends, it would be asked again."""
MOST_LOSSES = 3
"""Losses in a row without an answer after which a process is not replaced."""
_ORDERS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that ask a process to end; those that have followed one are not replaced."""


def was_lost(process: BaseProcess) -> bool:
    """Return whether a process that has ended, or is about to, was killed by a signal that is not an order to end."""
    process.join()
    code = process.exitcode or 0
    return code < 0 and -code not in _ORDERS


def _start_server() -> None:
    """Start the fork server of the environments, unless it runs; it has imported what they share.

    As in all processes of hlogym, no module comes from the current folder.
    """
    multiprocessing.get_context(START_METHOD).set_forkserver_preload(list(_SHARED))
    before = dict(os.environ)
    changed = {name: value for name, value in _server_environment().items() if before.get(name) != value}
    os.environ.update(changed)
    try:
        forkserver.ensure_running()
    finally:
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _server_environment() -> dict[str, str]:
    # Before a fork, OpenBLAS ends its threads and waits for them, which may never return.
    return {**child_environment(), "OPENBLAS_NUM_THREADS": "1"}


class StartedVector(SubprocVecEnv):
    """A vector of Stable-Baselines3 that does not wait for a stopped process as it asks for the spaces.

    Its processes get the environment variables that this process has now, not those of the fork server.

    Args:
        makers: functions that make the environments.

    Raises:
        EOFError, OSError: the process has ended, or was stopped and has been killed, or cannot be started.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        _start_server()
        self.processes: list[BaseProcess] = []

        def watched() -> dict[int | None, float]:
            limit = START_SECONDS if len(self.processes) < len(makers) else math.inf
            servers: list[int | None] = list(children_running("multiprocessing.forkserver"))
            return {**dict.fromkeys(servers, limit), **{process.pid: math.inf for process in self.processes}}

        variables = dict(os.environ)
        try:
            with lost_are_killed(watched):
                super().__init__([_with_variables(make, variables) for make in makers], START_METHOD)
        except (EOFError, OSError):
            if len(self.processes) < len(makers):
                time.sleep(END_SECONDS)
            raise


def _with_variables(
    make: Callable[[], gym.Env[Any, Any]], variables: dict[str, str]
) -> Callable[[], gym.Env[Any, Any]]:
    def made() -> gym.Env[Any, Any]:
        os.environ.clear()
        os.environ.update(variables)
        return make()

    return made


class _LostError(Exception):
    """The process was killed by a signal, or is stopped."""


class EnvironmentProcess:
    """The connection to the process of an environment; in the place of a pipe of Stable-Baselines3's `SubprocVecEnv`.

    If the process was killed by a signal or is stopped, another one takes its place and begins an episode. The one that
    was lost counts as truncated after its last observation, with the reward 0 for the step that has no answer.

    Args:
        make: makes the environment, in the new process.
        connection: to the present process.
        processes: of the vector.
        number: of the process in the vector.
        notice: called with a sentence about each loss.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        connection: Any,
        processes: list[BaseProcess],
        number: int,
        notice: Callable[[str], object],
    ) -> None:
        self._make, self._connection, self._notice = make, connection, notice
        self._processes, self._number = processes, number
        self._question: tuple[str, Any] = ("", None)
        self._last: Any = None  # observation
        self._begun: tuple[Any, dict[str, Any]] | None = None  # an episode of which the vector does not know yet
        self._losses = 0

    def send(self, question: tuple[str, Any]) -> None:
        """Send a question: a command and its data."""
        self._question = question
        command, _ = question
        if command == "close" and is_stopped(self._process.pid or 0):
            self._process.kill()
        if command != "step" or self._begun is None:
            self._ask(question)

    def recv(self) -> Any:
        """Return the answer to the question.

        Raises:
            EOFError: the process has ended by itself or as it was asked to, or others are lost before they answer.
        """
        command, data = self._question
        if command == "reset":
            self._begun = None
        while command != "step" or self._begun is None:
            try:
                answer = self._answer()
            except _LostError:
                self._begun = self._replace(data if command == "reset" else (None, None))
                if command == "reset":
                    answer, self._begun = self._begun, None
                    return self._noted(answer)
                if command != "step":
                    self._ask(self._question)
            else:
                return self._noted(answer) if command in ("step", "reset") else answer
        (observation, info), self._begun = self._begun, None
        ended = {"terminal_observation": self._last, "TimeLimit.truncated": True}
        return self._noted((observation, 0.0, True, ended, info))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # ---- inside

    @property
    def _process(self) -> BaseProcess:
        return self._processes[self._number]

    def _noted(self, answer: Any) -> Any:
        self._last = answer[0]
        return answer

    def _ask(self, question: tuple[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):  # seen when the answer is read
            self._connection.send(question)

    def _answer(self) -> Any:
        """Return what the process answers.

        Raises:
            _LostError: it was lost.
            EOFError: it has ended otherwise.
        """
        watch: ProcessWatch | None = None
        try:
            while not self._connection.poll(SLICE):
                # An environment looks after its own processes.
                watch = watch or ProcessWatch(self._process.pid or 0, descendants=False)
                watch.tick()
                if watch.stopped >= STOPPED_SECONDS:
                    self._process.kill()
                    self._process.join()
                    raise _LostError("stopped")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:  # OSError: within an answer
            if was_lost(self._process):
                raise _LostError from None
            raise EOFError(f"the process of environment {self._number} has ended") from error
        self._losses = 0
        return answer

    def _replace(self, start: tuple[Any, Any]) -> tuple[Any, dict[str, Any]]:
        """Start another process and return the first observation of an episode in it, with its info.

        Args:
            start: the seed and the options with which the episode begins.

        Raises:
            EOFError: it is lost again and again.
        """
        while True:
            self._losses += 1
            name = signal.Signals(-(self._process.exitcode or -signal.SIGKILL)).name
            if self._losses > MOST_LOSSES:
                raise EOFError(f"{MOST_LOSSES} processes of environment {self._number} were lost in a row: {name}")
            self._notice(
                f"the process of environment {self._number} was lost ({name}); another one takes its place and begins "
                "a new episode"
            )
            self._connection.close()
            try:
                self._start()
                self._ask(("reset", start))
                losses = self._losses
                begun: tuple[Any, dict[str, Any]] = self._answer()
            except _LostError:
                continue
            self._losses = losses  # until it has answered a question of the vector
            return begun

    def _start(self) -> None:
        """Start a process: that of a vector of one environment.

        Raises:
            _LostError: it was lost before it has said what its spaces are.
        """
        try:
            vector = StartedVector([self._make])
        except (EOFError, OSError) as error:
            raise _LostError("as it started") from error
        (self._connection,), (self._processes[self._number],) = vector.remotes, vector.processes
