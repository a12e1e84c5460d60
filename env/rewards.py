"""What agents are rewarded for. A reward is one class; every environment takes it as `reward=`.

For example, a reward for fewer kernels than the default compilation makes:

    class FewerKernels(Reward):
        def finish(self, compilation):
            before = len(compilation.baseline.complete().kernels())
            return math.log(max(before, 1) / max(len(compilation.complete().kernels()), 1))

    env = gym.make("hlogym/Fusion-v0", reward=FewerKernels())

`REWARDS["fewer-kernels"] = FewerKernels` makes it available by name, to `gym.make` and to `hlogym train`.
A distribution declares it as an entry point of the group `hlogym.rewards` instead.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from compiler.backends.cuda.gpu_models import GpuModel
from compiler.errors import HlogymError, OptionError, UnknownNameError
from compiler.support.plugins import extension_names, find_extension
from compiler.support.untrusted import short_repr
from env.compilation import Compilation
from env.measurement import Measurement
from env.predicted_time import PlanTimes

__all__ = [
    "FAILURE_REWARD",
    "REWARDS",
    "SLOWEST_REWARD",
    "EmulatedTime",
    "EstimatedTime",
    "MeasuredTime",
    "OpCount",
    "PotentialReward",
    "Reward",
    "make_reward",
]

SLOWEST_REWARD = -4.0
"""For a plan that is 55 times slower than the default plan, or slower still."""
FAILURE_REWARD = -5.0
"""For a plan that does not compile, computes something else, crashes or hangs: less than for any that is only slow."""


class RewardError(HlogymError, ValueError):
    """A reward that is no number, or not a finite one."""


def finite_number(value: object, reward: Reward, method: str) -> float:
    """Return what a method of a reward returned, as a float.

    Raises:
        RewardError: it is no finite number.
    """
    try:
        number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"{type(reward).__name__}.{method} returned {short_repr(value)}, which is no finite number")
    return number


class Reward:
    """What an agent is rewarded for, step by step and at the end of an episode.

    An environment works on a copy of its own, so a reward may keep facts of the current episode in attributes.

    Attributes:
        measured: whether plans are measured. Such rewards are not deterministic. Environments in several processes may
            use them at once: they take turns at timing.
        completes: whether the end of an episode stands for a whole compilation, which continues with the default passes
            and the default fusion. If not, the module at the end of the episode is what counts.
        backend: name of the only backend that the reward is about; None: any.
    """

    measured: ClassVar[bool] = False
    completes: ClassVar[bool] = True
    backend: ClassVar[str | None] = None

    def check_backend(self, backend: str) -> None:
        """Raise OptionError if environments for this backend cannot have the reward."""
        if self.backend not in (None, backend):
            raise OptionError(
                f"{type(self).__name__} is a reward for the backend {self.backend!r}: make the environment with "
                f"backend={self.backend!r}, not {backend!r}"
            )

    def reset(self, compilation: Compilation) -> None:
        """Start an episode."""

    def step(self, compilation: Compilation) -> float:
        """Return the reward of a decision that was just taken, the last one included."""
        del compilation
        return 0.0

    def finish(self, compilation: Compilation) -> float:
        """Return what is added at the end of an episode; not called if the episode is truncated.

        Raises:
            PlanFailedError: as `compilation.measured_speedup` does; the environment then adds `failure` instead.
        """
        del compilation
        return 0.0

    def failure(self, measurement: Measurement) -> float:
        """Return what is added instead when the plan fails; `measurement` has the reason."""
        del measurement
        return FAILURE_REWARD

    def speedup(self, compilation: Compilation) -> float:
        """Return what `info["speedup"]` reports: how many times better the compilation is than the baseline."""
        return compilation.measured_speedup() if self.measured and compilation.done else compilation.speedup()


class PotentialReward(Reward, ABC):
    """Differences of the log of a quantity that is to become small.

    The rewards of an episode add up to the log of the ratio of its start to its end, whatever the steps between, which
    is potential-based shaping (Ng, Harada and Russell 1999).
    """

    @abstractmethod
    def quantity(self, compilation: Compilation) -> float:
        """Return the quantity of the module now; positive."""

    def reset(self, compilation: Compilation) -> None:
        """Note the quantity at the start."""
        self._start = self._now = self._log(compilation)

    def step(self, compilation: Compilation) -> float:
        """Return the log of the ratio of the quantity before the decision to the one after it."""
        before, self._now = self._now, self._log(compilation)
        return before - self._now

    def _log(self, compilation: Compilation) -> float:
        quantity = finite_number(self.quantity(compilation), self, "quantity")
        if quantity <= 0:
            raise RewardError(f"{type(self).__name__}.quantity returned {quantity:g}, which is no positive number")
        return math.log(quantity)

    @property
    def total(self) -> float:
        """The rewards of all steps so far."""
        return self._start - self._now


class OpCount(PotentialReward):
    """The number of instructions of the module as the decisions leave it; smaller is better."""

    completes = False

    def quantity(self, compilation: Compilation) -> float:
        """Return the op count."""
        return max(compilation.ops, 1)

    def speedup(self, compilation: Compilation) -> float:
        """Return the ratio of the op count after the default passes to the one now."""
        return max(compilation.baseline.ops, 1) / max(compilation.ops, 1)


class EstimatedTime(PotentialReward):
    """Time by the cost model. The return is the log of the speedup of the whole compilation over the baseline."""

    def quantity(self, compilation: Compilation) -> float:
        """Return the estimated seconds."""
        return compilation.seconds

    def finish(self, compilation: Compilation) -> float:
        """Return what the rewards of the steps lack to the log of the speedup."""
        return math.log(compilation.speedup()) - self.total


class MeasuredTime(Reward):
    """Measured run time: nothing until the end, then the log of the measured speedup over the default plan.

    The default plan is what `compile` does without arguments. Both are timed end to end, in turns, and a difference
    that does not pass the gate (`env.gate`) is worth nothing.
    """

    measured = True

    def finish(self, compilation: Compilation) -> float:
        """Return the log of the measured speedup."""
        return max(SLOWEST_REWARD, math.log(compilation.measured_speedup()))


class EmulatedTime(Reward):
    """Predicted time on a GPU: nothing until the end, then the log of the predicted speedup over the default plan.

    Kernels run in the emulator, which counts what a GPU would do, and a device model predicts their times; see
    `compiler.backends.cuda.program_times`. It needs no GPU, and equal plans have equal rewards. Environments must be
    made with `backend="cuda"`.

    Args:
        gpu: the name of a GPU in `compiler.backends.cuda.gpu_models.GPUS`, or a model, such as a fitted one.

    Raises:
        BackendError: kernels cannot be emulated on this machine.
        UnknownNameError: there is no such GPU.
    """

    backend = "cuda"

    def __init__(self, gpu: GpuModel | str = "h100") -> None:
        self._times = PlanTimes(gpu)

    def finish(self, compilation: Compilation) -> float:
        """Return the log of the predicted speedup."""
        return max(SLOWEST_REWARD, math.log(self._predicted(compilation)))

    def speedup(self, compilation: Compilation) -> float:
        """Return the predicted speedup over the default plan at the end, until then the estimated one."""
        return self._predicted(compilation) if compilation.done else compilation.speedup()

    def _predicted(self, compilation: Compilation) -> float:
        program = compilation.program
        return self._times.default_seconds(program) / self._times.seconds(program, compilation.plan)


REWARDS: dict[str, Callable[[], Reward]] = {
    "op-count": OpCount,
    "estimated-time": EstimatedTime,
    "measured-time": MeasuredTime,
    "emulated-time": EmulatedTime,
}
"""Rewards by name."""
GROUP = "hlogym.rewards"
"""The group of entry points with rewards of other distributions."""
_FORMER_NAMES = {"cost": "estimated-time", "measured": "measured-time"}


def make_reward(reward: Reward | str) -> Reward:
    """Return a reward by its name, or a copy of a `Reward`.

    Raises:
        UnknownNameError: no reward has that name.
        ExtensionError: the reward of another distribution cannot be used.
        TypeError: neither a name nor a `Reward`.
    """
    given: object = reward
    if not isinstance(given, Reward | str):
        hint = f"; pass {given.__name__}()" if isinstance(given, type) and issubclass(given, Reward) else ""
        raise TypeError(f"reward must be a Reward object or one of {', '.join(REWARDS)}, got {given!r:.80}{hint}")
    if isinstance(reward, Reward):
        return copy.deepcopy(reward)
    name = _FORMER_NAMES.get(reward, reward)
    maker = REWARDS.get(name) or find_extension(GROUP, name, lacks_of_reward)
    if maker is None:
        raise UnknownNameError("reward", reward, [*REWARDS, *extension_names(GROUP)])
    made: Reward = maker()
    return made


def lacks_of_reward(cls: object) -> str | None:
    """Return why an object is no class of rewards, or None."""
    if isinstance(cls, type) and issubclass(cls, Reward):
        return None
    return f"{cls!r:.80} is no subclass of env.rewards.Reward"
