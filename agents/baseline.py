"""Returns relative to the mean return of a program.

Log speedups differ tenfold between programs, but the agent has to learn which decision is better on the same program.
A value network learns the mean of each program too, but only after many episodes; a running mean has it after one.
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
    """Subtracts the running mean of a program's returns from the last reward of each episode on it.

    A constant subtracted at the end changes no preference between the plans of a program. `info` is not changed.

    Attributes:
        means: running mean of the returns by program.
    """

    def __init__(self, env: DecisionEnv) -> None:
        super().__init__(env)
        self.means: dict[str, float] = {}
        self._return = 0.0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset the environment."""
        self._return = 0.0
        return self.env.reset(seed=seed, options=dict(options) if options is not None else None)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step the environment and adjust the last reward of an episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        adjusted = float(reward)
        self._return += adjusted
        if terminated:
            program: str = info["program"]
            # The first episode of a program is its own mean.
            mean = self.means.get(program, self._return)
            self.means[program] = mean + RATE * (self._return - mean)
            adjusted -= mean
        return observation, adjusted, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal now."""
        env = self.unwrapped
        assert isinstance(env, DecisionEnv)  # noqa: S101 - guaranteed by the type of the constructor's argument
        return env.action_masks()
