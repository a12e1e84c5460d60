"""Returns relative to the mean return of a program.

Log speedups differ tenfold between programs, but the agent has to learn which decision is better on the same program.
A value network learns the mean of each program too, but only after many episodes; a running mean has it after one.
"""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

__all__ = ["ProgramBaseline"]

RATE = 0.2


class ProgramBaseline(VecEnvWrapper):
    """Subtracts the running mean of a program's returns from the last reward of each episode on it.

    A constant subtracted at the end changes no preference between the plans of a program. `info` is not changed. All
    environments of the vector share the means.

    Attributes:
        means: running mean of the returns by program.
    """

    def __init__(self, environments: VecEnv) -> None:
        super().__init__(environments)
        self.means: dict[str, float] = {}
        self._returns = np.zeros(self.num_envs)

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        self._returns[:] = 0
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step the environments and adjust the last reward of each episode."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self._returns += rewards
        adjusted = rewards.copy()
        for n in np.flatnonzero(dones):
            total, info = float(self._returns[n]), infos[n]
            self._returns[n] = 0
            if info.get("TimeLimit.truncated", False):
                continue
            # The first episode of a program is its own mean.
            mean = self.means.get(info["program"], total)
            self.means[info["program"]] = mean + RATE * (total - mean)
            adjusted[n] -= mean
        return observations, adjusted, dones, infos
