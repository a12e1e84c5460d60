"""Environments with the settings of a training run. Needs no torch, so that processes of environments start fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium as gym

import env as environments
from compiler.errors import UnknownNameError
from env.decision import DecisionEnv
from env.pass_order import PassOrderEnv
from env.predicted_measurer import EMULATED

if TYPE_CHECKING:
    from experiments.config import TrainConfig

__all__ = ["Environment", "make_env"]

Environment: TypeAlias = DecisionEnv | PassOrderEnv


def make_env(config: TrainConfig, **more: Any) -> Environment:
    """Make an environment with a run's settings.

    Args:
        config: the settings of the run.
        more: further keyword arguments of the environment, which precede the settings.

    Raises:
        UnknownNameError: there is no such environment, suite or reward.
    """
    known = {f"{n}{kind}-v0" for n in environments.ENVIRONMENTS for kind in environments.KINDS}
    short = config.env.removeprefix("env:").removeprefix("hlogym/")
    if short not in known:
        raise UnknownNameError("environment", config.env, (f"hlogym/{n}" for n in known))
    if short.startswith("PassOrder"):
        more = {"max_steps": config.budget, "step_cost": config.step_cost, **more}
    arguments: dict[str, Any] = {"suite": config.suite, "backend": config.backend, "workers": config.workers}
    if config.plan_reward == EMULATED:
        arguments["backend"] = "cuda"  # needs no GPU
    if config.reward:
        arguments["reward"] = config.reward
    arguments |= more
    return cast(Environment, gym.make(f"hlogym/{short}", **arguments).unwrapped)
