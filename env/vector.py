"""Vector environments, which `gym.make_vec` makes without a `vectorization_mode`.

The environments of a vector share what does not depend on the episode: each program is read and compiled once, explored
states are remembered together, and one worker process measures. They step one after the other; use
`vectorization_mode="async"` to step them in processes of their own, which share the store of times only.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from env.arguments import checked_count
from env.base import CompilerEnv
from env.environments import CompileEnv, ExpansionsEnv, FusionEnv, KernelsEnv, PassOrderEnv, UnrollEnv

__all__ = [
    "CompileVectorEnv",
    "CompilerVectorEnv",
    "ExpansionsVectorEnv",
    "FusionVectorEnv",
    "KernelsVectorEnv",
    "PassOrderVectorEnv",
    "UnrollVectorEnv",
]


class CompilerVectorEnv(SyncVectorEnv):
    """Several environments that share compiled programs, explored states and the measurer.

    Args:
        num_envs: number of environments.
        autoreset_mode: when an environment whose episode has ended is reset; see `gymnasium.vector.AutoresetMode`.
        max_episode_steps: after which an episode is truncated, as by `gymnasium.make`; None or -1: no limit.
        options: keyword arguments of each environment.

    Raises:
        OptionError: `num_envs` or `max_episode_steps` is no positive integer.
    """

    single: ClassVar[type[CompilerEnv[Any]]]
    """The class of each environment."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        **options: Any,
    ) -> None:
        count = checked_count("num_envs", num_envs)
        first = self.single(**options)
        made: list[gym.Env[Any, Any]] = [
            first,
            *(self.single(**{**options, "shared": first}) for _ in range(count - 1)),
        ]
        if max_episode_steps not in (None, -1):
            limit = checked_count("max_episode_steps", max_episode_steps)
            made = [TimeLimit(env, limit) for env in made]
        super().__init__([lambda env=env: env for env in made], autoreset_mode=autoreset_mode)  # type: ignore[misc]

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal now, [num_envs, actions].

        All actions are legal for an environment whose episode has ended: it is reset next, whatever its action.
        """
        masks = np.stack([cast("CompilerEnv[Any]", env.unwrapped).action_masks() for env in self.envs])
        if self.autoreset_mode != AutoresetMode.SAME_STEP:  # which has reset it already
            masks[self._terminations | self._truncations] = True
        return masks


class ExpansionsVectorEnv(CompilerVectorEnv):
    """Several `hlogym/Expansions-v0`."""

    single = ExpansionsEnv


class FusionVectorEnv(CompilerVectorEnv):
    """Several `hlogym/Fusion-v0`."""

    single = FusionEnv


class PassOrderVectorEnv(CompilerVectorEnv):
    """Several `hlogym/PassOrder-v0`."""

    single = PassOrderEnv


class UnrollVectorEnv(CompilerVectorEnv):
    """Several `hlogym/Unroll-v0`."""

    single = UnrollEnv


class KernelsVectorEnv(CompilerVectorEnv):
    """Several `hlogym/Kernels-v0`."""

    single = KernelsEnv


class CompileVectorEnv(CompilerVectorEnv):
    """Several `hlogym/Compile-v0`."""

    single = CompileEnv
