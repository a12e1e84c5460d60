"""Hyperparameters: those that all agents share, named as in Stable-Baselines3, and those of the pointer network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agents.schedules import schedule

__all__ = ["A2C_ARGUMENTS", "PPO_ARGUMENTS", "LearningSettings", "PointerSettings"]

A2C_ARGUMENTS = ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "seed")
PPO_ARGUMENTS = (*A2C_ARGUMENTS, "batch_size", "n_epochs")
"""The settings that SB3's constructors take as they are; `n_steps` there counts the steps of one environment."""


@dataclass(frozen=True)
class LearningSettings:
    """Hyperparameters.

    The defaults suit measured rewards: an episode ends in one reward, to which every decision has contributed. With
    gamma 1 and gae_lambda 1 the advantage of each decision is the whole return less the value; a smaller gae_lambda
    would give the early decisions of a long episode next to nothing of it. Small rollouts give an update every minute
    or so even when measuring is slow.

    Attributes:
        n_steps: steps between updates, summed over all environments (A2C: a sixteenth of it).
        batch_size: of a gradient step (not A2C).
        n_epochs: passes over a rollout (PPO).
        learning_rate: of the optimizer, at the start.
        learning_rate_schedule: "constant", or "linear": down to 0 at the last step.
        gamma: discount factor per step.
        gae_lambda: of generalized advantage estimation (PPO, A2C).
        clip_range: of the probability ratio, at the start (PPO).
        clip_range_schedule: "constant" or "linear".
        ent_coef: weight of the entropy bonus (PPO, A2C).
        vf_coef: weight of the value loss (PPO, A2C).
        max_grad_norm: to which gradients are clipped (PPO, A2C).
        exploration_fraction: share of the training during which exploration decreases (DQN).
        hidden: width of a layer.
        seed: of weights, exploration and programs.
    """

    n_steps: int = 256
    batch_size: int = 64
    n_epochs: int = 4
    learning_rate: float = 3e-4
    learning_rate_schedule: str = "constant"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    clip_range: float = 0.2
    clip_range_schedule: str = "constant"
    ent_coef: float = 0.003
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    exploration_fraction: float = 0.4
    hidden: int = 64
    seed: int = 0

    def arguments(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the settings of these names, as keyword arguments for a constructor of SB3."""
        return {name: getattr(self, name) for name in names}

    def learning_rates(self) -> Callable[[float], float]:
        """Return the learning rate as a function of the remaining share of the training."""
        return schedule(self.learning_rate, self.learning_rate_schedule)

    def clip_ranges(self) -> Callable[[float], float]:
        """Return the clip range as a function of the remaining share of the training."""
        return schedule(self.clip_range, self.clip_range_schedule)


@dataclass(frozen=True)
class PointerSettings(LearningSettings):
    """Hyperparameters of an agent with the pointer network; see `compiler.learned.pointer_network`.

    Attributes:
        rounds: of message passing along the edges of the graph.
        prior: weight that the cost model's expected saving has at the start; 0: an arbitrary start.
    """

    rounds: int = 2
    prior: float = 4.0
