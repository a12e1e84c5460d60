"""Vectors of environments for Stable-Baselines3: in this process, or each in a process of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

__all__ = ["VECTORS", "make_vector", "random_states", "set_random_states"]

VECTORS = ("dummy", "subproc")
"""Kinds of vectors: one environment after the other in this process, and all at once in processes of their own."""


def make_vector(makers: Sequence[Callable[[], gym.Env[Any, Any]]], kind: str = "dummy") -> VecEnv:
    """Return a vector of environments whose `info` has the return and the length of each episode that ended.

    Args:
        makers: functions that make the environments; for "subproc", they are called in the new processes.
        kind: one of VECTORS.
    """
    if kind == "subproc":
        return VecMonitor(SubprocVecEnv([_without_interrupts(make) for make in makers]))
    return VecMonitor(DummyVecEnv(list(makers)))


def _without_interrupts(make: Callable[[], gym.Env[Any, Any]]) -> Callable[[], gym.Env[Any, Any]]:
    """Return a function that makes an environment and leaves Ctrl-C, which all processes get, to the trainer."""

    def made() -> gym.Env[Any, Any]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return make()

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
