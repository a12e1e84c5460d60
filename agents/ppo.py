"""MaskablePPO over decision graphs."""

from __future__ import annotations

from typing import cast

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.baseline import ProgramBaseline
from agents.network import TorchPointerNetwork
from agents.policy import PointerFeatures, PointerPolicy
from agents.settings import PPO_ARGUMENTS, PointerSettings
from env.decision import DecisionEnv

__all__ = ["baseline_of", "make_ppo", "network_of"]


def make_ppo(env: DecisionEnv, settings: PointerSettings) -> MaskablePPO:
    """Return an untrained agent on one environment; the same settings and seed give the same agent."""
    # Networks this small are slower on several threads, and the measured kernels need those threads.
    torch.set_num_threads(1)
    return MaskablePPO(
        PointerPolicy,
        DummyVecEnv([lambda: ProgramBaseline(env)]),
        n_steps=settings.n_steps,
        policy_kwargs={"features_extractor_kwargs": settings.arguments(("hidden", "rounds", "prior"))},
        device="cpu",
        **settings.arguments(PPO_ARGUMENTS),
    )


def network_of(model: MaskablePPO) -> TorchPointerNetwork:
    """Return the network of an agent."""
    return cast(PointerFeatures, model.policy.features_extractor).network


def baseline_of(model: MaskablePPO) -> ProgramBaseline:
    """Return the wrapper around an agent's environment."""
    vector = cast(DummyVecEnv, model.get_env())
    return cast(ProgramBaseline, vector.envs[0])
