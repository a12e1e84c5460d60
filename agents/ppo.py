"""MaskablePPO over decision graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.baseline import ProgramBaseline
from agents.network import TorchPointerNetwork
from agents.policy import PointerFeatures, PointerPolicy
from env.decision import DecisionEnv

__all__ = ["PPOSettings", "baseline_of", "make_ppo", "network_of"]


@dataclass(frozen=True)
class PPOSettings:
    """Hyperparameters; what they mean is said in `experiments.config`."""

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
    hidden: int = 64
    rounds: int = 2
    prior: float = 4.0
    seed: int = 0


def make_ppo(env: DecisionEnv, settings: PPOSettings) -> MaskablePPO:
    """An untrained agent on one environment; the same settings and seed give the same agent."""
    # Nets this small run slower on several threads, which the kernels being measured need for themselves.
    torch.set_num_threads(1)
    return MaskablePPO(
        PointerPolicy,
        DummyVecEnv([lambda: ProgramBaseline(env)]),
        n_steps=settings.rollout,
        batch_size=settings.batch,
        n_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        ent_coef=settings.entropy,
        vf_coef=settings.value,
        max_grad_norm=settings.max_grad_norm,
        policy_kwargs={
            "features_extractor_kwargs": {
                "hidden": settings.hidden,
                "rounds": settings.rounds,
                "prior": settings.prior,
            }
        },
        seed=settings.seed,
        device="cpu",
    )


def network_of(model: MaskablePPO) -> TorchPointerNetwork:
    """The network inside an agent."""
    return cast(PointerFeatures, model.policy.features_extractor).network


def baseline_of(model: MaskablePPO) -> ProgramBaseline:
    """The wrapper around an agent's environment."""
    vector = cast(DummyVecEnv, model.get_env())
    return cast(ProgramBaseline, vector.envs[0])
