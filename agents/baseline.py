"""Returns relative to what a program usually gives.

Log speedups differ tenfold between programs, and what is to be learned is which decision is better on the same program.
A value network learns each program's level too, but only after many episodes; a running mean knows it after one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from env.decision import DecisionEnv
from env.observations import Observation

__all__ = ["ProgramBaseline"]

RATE = 0.2


class ProgramBaseline(gym.Wrapper[Observation, np.int64, Observation, np.int64]):
    """Takes the running mean of a program's returns off the last reward of each episode on it.

    A constant taken off at the end changes no preference between the plans of a program. `info` is left alone.

    Attributes:
        means: return by program, of the episodes so far.
    """

    def __init__(self, env: DecisionEnv) -> None:
        super().__init__(env)
        self.means: dict[str, float] = {}
        self._return = 0.0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """As the environment does."""
        self._return = 0.0
        return self.env.reset(seed=seed, options=dict(options) if options is not None else None)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """As the environment does, but for the last reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        paid = float(reward)
        self._return += paid
        if terminated:
            program: str = info["program"]
            # The first episode is its own mean: nothing is known to compare it with.
            mean = self.means.get(program, self._return)
            self.means[program] = mean + RATE * (self._return - mean)
            paid -= mean
        return observation, paid, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now."""
        env = self.unwrapped
        assert isinstance(env, DecisionEnv)  # noqa: S101 - said by the constructor
        return env.action_masks()
