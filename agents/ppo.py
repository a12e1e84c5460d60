"""MaskablePPO over decision graphs."""

from __future__ import annotations

from typing import cast

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.baseline import ProgramBaseline
from agents.network import TorchPointerNetwork
from agents.policy import PointerFeatures, PointerPolicy
from agents.settings import PointerSettings
from env.decision import DecisionEnv

__all__ = ["baseline_of", "make_ppo", "network_of"]


def make_ppo(env: DecisionEnv, settings: PointerSettings) -> MaskablePPO:
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
