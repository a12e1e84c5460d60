"""Losses, policies of reinforcement learning, and functions of science."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn
from torch.nn import functional as F


class Losses(nn.Module):
    """Losses of classification and regression behind a linear layer, added up."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, wanted: torch.Tensor) -> Any:
        found = self.layer(x)
        return (
            F.cross_entropy(found, labels, label_smoothing=0.1)
            + F.huber_loss(found, wanted)
            + F.smooth_l1_loss(found, wanted, beta=0.5)
            + F.kl_div(found.log_softmax(-1), wanted.softmax(-1), reduction="batchmean")
            + F.mse_loss(found, wanted)
            + F.binary_cross_entropy_with_logits(found, wanted.sigmoid())
            + F.cosine_embedding_loss(found, wanted, torch.ones(len(x), dtype=x.dtype))
            + F.multi_margin_loss(found, labels)
        )


class SimilarityLoss(nn.Module):
    """The contrastive loss of CLIP: similarities of normalized features, and cross-entropy both ways."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> Any:
        first, second = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        logits = self.temperature.exp() * first @ second.T
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


class ActorCritic(nn.Module):
    """The policy of Stable-Baselines3: values, log probabilities and entropy of actions, as PPO's update needs them."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        space = gym.spaces.Box(-np.inf, np.inf, (observations,), np.float32)
        self.policy = ActorCriticPolicy(space, gym.spaces.Discrete(actions), lambda _: 3e-4)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> Any:
        return self.policy.evaluate_actions(observations, actions)


class PpoLoss(nn.Module):
    """The clipped loss of PPO with a Gaussian policy and a value network."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, actions))
        self.value = nn.Sequential(nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_deviation = nn.Parameter(torch.zeros(actions))

    def forward(self, seen: torch.Tensor, actions: torch.Tensor, before: torch.Tensor, gains: torch.Tensor) -> Any:
        chosen: Any = torch.distributions.Normal(self.policy(seen), self.log_deviation.exp(), validate_args=False)
        ratio = (chosen.log_prob(actions).sum(-1) - before).exp()
        advantage = (gains - gains.mean()) / (gains.std() + 1e-8)
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return loss + 0.5 * F.mse_loss(self.value(seen).flatten(), gains) - 0.01 * chosen.entropy().mean()


class Energy(nn.Module):
    """An energy of particles by their distances, with a table of learned radial functions."""

    def __init__(self, functions: int) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.linspace(0.5, 3, functions))
        self.weights = nn.Linear(functions, 1)

    def forward(self, positions: torch.Tensor) -> Any:
        rows, columns = torch.triu_indices(len(positions), len(positions), 1)
        distance = (positions[rows] - positions[columns]).norm(dim=-1)
        return self.weights(torch.exp(-((distance[:, None] - self.centers) ** 2))).sum()
