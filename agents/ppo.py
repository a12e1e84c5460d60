"""MaskablePPO over decision graphs."""

from __future__ import annotations

from typing import cast

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecEnv

from agents.baseline import ProgramBaseline
from agents.network import TorchPointerNetwork
from agents.policy import PointerFeatures, PointerPolicy
from agents.settings import PPO_ARGUMENTS, PointerSettings
from agents.vectors import make_vector
from env.decision import DecisionEnv

__all__ = ["baseline_of", "make_ppo", "network_of"]


def make_ppo(environments: DecisionEnv | VecEnv, settings: PointerSettings) -> MaskablePPO:
    """Return an untrained agent; the same settings and seed give the same agent.

    Args:
        environments: one environment, or a vector of them.
        settings: hyperparameters.
    """
    # Networks this small are slower on several threads, and the measured kernels need those threads.
    torch.set_num_threads(1)
    vector = environments if isinstance(environments, VecEnv) else make_vector([lambda: environments])
    return MaskablePPO(
        PointerPolicy,
        ProgramBaseline(vector),
        n_steps=max(1, settings.n_steps // vector.num_envs),
        learning_rate=settings.learning_rates(),
        clip_range=settings.clip_ranges(),
        policy_kwargs={"features_extractor_kwargs": settings.arguments(("hidden", "rounds", "prior"))},
        device="cpu",
        **settings.arguments(PPO_ARGUMENTS),
    )


def network_of(model: MaskablePPO) -> TorchPointerNetwork:
    """Return the network of an agent."""
    return cast(PointerFeatures, model.policy.features_extractor).network


def baseline_of(model: MaskablePPO) -> ProgramBaseline:
    """Return the wrapper around an agent's environments."""
    return cast(ProgramBaseline, model.get_env())
