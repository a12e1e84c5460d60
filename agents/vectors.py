"""Vectors of environments for Stable-Baselines3: in this process, or each in a process of its own."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from agents.environment_process import MOST_LOSSES, EnvironmentProcess, StartedVector, was_lost
from compiler.errors import HlogymError

__all__ = ["VECTORS", "LostEnvironmentsError", "make_vector", "random_states", "set_random_states"]

EXIT_SECONDS = 2.0  # from SIGTERM to the end of a process
_ERROR = "hlogym_error"
VECTORS = ("dummy", "subproc")
"""Kinds of vectors: one environment after the other in this process, and all at once in processes of their own."""


def make_vector(
    makers: Sequence[Callable[[], gym.Env[Any, Any]]], kind: str = "dummy", notice: Callable[[str], object] = str
) -> VecEnv:
    """Return a vector of environments whose `info` has the return and the length of each episode that ended.

    Args:
        makers: functions that make the environments; for "subproc", they are called in the new processes.
        kind: one of VECTORS.
        notice: called with a sentence about each process that was lost and replaced.
    """
    if kind == "subproc":
        return VecMonitor(_ProcessVector([_in_a_process(make) for make in makers], notice))
    return VecMonitor(DummyVecEnv(list(makers)))


class LostEnvironmentsError(HlogymError, ConnectionError):
    """Processes of environments that cannot be started, or asked any more because an exchange was broken off."""


class _ProcessVector(StartedVector):
    """Environments in processes of their own, whose questions and answers stay in step when a signal arrives.

    An exception between a question and its answers would leave answers in the pipes: they would be taken for those of
    the next question, and `close` would wait for answers that were read already. So a signal waits until all answers
    are read. A second one breaks the exchange off, and the processes can only be ended then.

    Args:
        makers: functions that make the environments.
        notice: see `make_vector`.
    """

    _broken = False

    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]], notice: Callable[[str], object]) -> None:
        for tries in range(MOST_LOSSES, -1, -1):
            try:
                super().__init__(makers)
            except (EOFError, OSError):
                # The first one is asked for its spaces. If some are missing, the fork server was lost.
                lost = len(self.processes) < len(makers) or was_lost(self.processes[0])
                self._end()
                if not (lost and tries):
                    raise LostEnvironmentsError("a process of an environment has ended as it started") from None
            else:
                break
        self.remotes = tuple(
            EnvironmentProcess(make, remote, self.processes, n, notice)
            for n, (make, remote) in enumerate(zip(makers, self.remotes, strict=True))
        )

    def step_async(self, actions: Any) -> None:
        """Send the actions."""
        with self._exchange():
            super().step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Return what the environments answer; raise the error of one that has failed."""
        with self._exchange():
            answer = super().step_wait()
        _raise_errors([*answer[3], *self.reset_infos])
        return answer

    def reset(self) -> Any:
        """Reset all environments; raise the error of one that has failed."""
        with self._exchange():
            observations = super().reset()
        _raise_errors(self.reset_infos)
        return observations

    def env_method(self, *arguments: Any, **options: Any) -> list[Any]:
        """Call a method of environments."""
        with self._exchange():
            if self.waiting:  # a signal arrived between the actions and the answers
                super().step_wait()
            return super().env_method(*arguments, **options)

    def close(self) -> None:
        """End the processes."""
        if not self._broken:
            with contextlib.suppress(EOFError, ConnectionError), self._exchange():
                return super().close()
        self._end()
        self.closed = True
        return None

    def _end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(EXIT_SECONDS)
            process.kill()  # a stopped process does not receive other signals
            process.join()
        for remote in self.remotes:
            remote.close()

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        if self._broken:
            raise LostEnvironmentsError("the processes of the environments cannot be asked any more")
        with _signals_wait():
            try:
                yield
            except BaseException:
                self._broken = True
                raise


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Handle the first signal that arrives during the block after it, and a second one at once."""
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)
            raise KeyboardInterrupt(number)

    # A signal that is ignored stays ignored, and one without a handler ends the process at once.
    own = {number: handler for number, handler in before.items() if callable(handler)}
    for number in own:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)
        if len(received) == 1:
            signal.raise_signal(received[0])


class _ErrorsAsInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Returns errors of hlogym in `info`: raised in a process of Stable-Baselines3, they would not leave it."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a decision."""
        try:
            return self.env.step(action)
        except HlogymError as error:
            return self.observation_space.sample(), 0.0, False, False, {_ERROR: error}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        try:
            return self.env.reset(seed=seed, options=options)
        except HlogymError as error:
            return self.observation_space.sample(), {_ERROR: error}


def _raise_errors(infos: Iterable[Mapping[str, Any]]) -> None:
    for info in infos:
        if _ERROR in info:
            raise info[_ERROR]


def _in_a_process(make: Callable[[], gym.Env[Any, Any]]) -> Callable[[], gym.Env[Any, Any]]:
    """Return a function that makes an environment in a process of its own.

    It leaves Ctrl-C, which all processes get, to the trainer.
    """

    def made() -> gym.Env[Any, Any]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _ErrorsAsInfo(make())

    return made


def random_states(vector: VecEnv) -> list[dict[str, Any]]:
    """Return the states of the random generators that draw the programs, one per environment."""
    return list(vector.env_method("random_state"))


def set_random_states(vector: VecEnv, states: Sequence[dict[str, Any]]) -> None:
    """Restore the states of the random generators.

    Raises:
        ValueError: there is another number of environments.
    """
    if len(states) != vector.num_envs:
        raise ValueError(f"{len(states)} random states for {vector.num_envs} environments")
    for n, state in enumerate(states):
        vector.env_method("set_random_state", state, indices=[n])
    vector.unwrapped._reset_seeds()  # otherwise the first reset reseeds them
