"""What an agent learns by: the hyperparameters that all agents share, and those of the pointer network."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LearningSettings", "PointerSettings"]


@dataclass(frozen=True)
class LearningSettings:
    """Hyperparameters.

    Their defaults suit measured fusion: episodes are short and end in one measured reward, hence the long horizon
    (gamma 1) and small rollouts, which give an update every minute or so even when measuring is slow.

    Attributes:
        rollout: steps between updates, of all environments together (A2C: a sixteenth of it).
        batch: of a gradient step (not A2C).
        epochs: passes over a rollout (PPO).
        learning_rate: of the optimiser.
        gamma: discount a step.
        gae_lambda: of the advantages (PPO, A2C).
        clip: of the ratio of probabilities (PPO).
        entropy: weight of the entropy bonus (PPO, A2C).
        value: weight of the value loss (PPO, A2C).
        max_grad_norm: where gradients are cut off (PPO, A2C).
        exploration: share of the training in which exploration fades (DQN).
        hidden: width of a layer.
        seed: of weights, exploration and programs.
    """

    rollout: int = 256
    batch: int = 64
    epochs: int = 4
    learning_rate: float = 3e-4
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.003
    value: float = 0.5
    max_grad_norm: float = 0.5
    exploration: float = 0.4
    hidden: int = 64
    seed: int = 0


@dataclass(frozen=True)
class PointerSettings(LearningSettings):
    """With those of the network; see `compiler.learned.pointer_network`.

    Attributes:
        rounds: of messages along the edges of the graph.
        prior: weight that the cost model's expected saving starts with; 0: start from nothing.
    """

    rounds: int = 2
    prior: float = 4.0
