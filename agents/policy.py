"""The policy of MaskablePPO over decision graphs: a score per candidate, and a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from agents.network import GraphBatch, TorchPointerNetwork
from compiler.learned.features import decisions as features
from compiler.learned.features.candidates import KERNEL_LOOP_COLUMN, SAVING_COLUMN
from compiler.learned.fusion_policy import network_shape
from compiler.support.untrusted import short_repr

__all__ = ["PointerFeatures", "PointerPolicy", "graph_batch"]


def graph_batch(observations: dict[str, torch.Tensor]) -> GraphBatch:
    """Return observations of `env.observations` as a batch of padded graphs."""
    rows = observations["counts"].shape[0]
    return GraphBatch(
        nodes=observations["nodes"].float().reshape(rows, -1, features.NODE_FEATURES),
        edges=observations["edges"].reshape(rows, -1, 2).long(),
        candidates=observations["candidates"].float().reshape(rows, -1, features.CANDIDATE_FEATURES),
        endpoints=observations["endpoints"].reshape(rows, -1, 2).long(),
        globals=observations["globals"].float(),
        counts=observations["counts"].long(),
    )


class PointerFeatures(BaseFeaturesExtractor):
    """Scores of all candidates, padded to the size of the action space, with the value in the last column."""

    def __init__(self, observation_space: spaces.Dict, hidden: int = 64, rounds: int = 2, prior: float = 0.0) -> None:
        if not isinstance(observation_space, spaces.Dict) or "endpoints" not in observation_space.spaces:
            raise TypeError(
                "PointerPolicy needs the observation of a decision, which Fusion, Unroll, Expansions, Kernels and "
                f"Compile have, not {short_repr(observation_space)}; use MlpPolicy for PassOrder"
            )
        candidates = observation_space["endpoints"].shape
        assert candidates is not None  # noqa: S101 - a Box always has a shape
        self.actions = candidates[0] // 2
        super().__init__(observation_space, self.actions + 1)
        self.network = TorchPointerNetwork(network_shape(hidden, rounds))
        self.prior = prior

    def start_from_prior(self) -> None:
        """Initialize near the compiler's defaults: fuse by expected saving, run loops inside one kernel."""
        with torch.no_grad():
            self.network.score.weight.mul_(0.01)
            self.network.prior.weight.zero_()
            self.network.prior.weight[0, SAVING_COLUMN] = self.prior
            self.network.prior.weight[0, KERNEL_LOOP_COLUMN] = self.prior

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return scores and value, [b, actions + 1]."""
        scores, value = self.network(graph_batch(observations).trimmed())
        padded = nn.functional.pad(scores, (0, self.actions - scores.shape[1]))
        return torch.cat([padded, value], dim=1)


class _Split(nn.Module):
    """Gives the scores to the actor and the value to the critic, without further layers."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = actions, 1

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return features[:, :-1]

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        return features[:, -1:]


class PointerPolicy(MaskableActorCriticPolicy):
    """Use as `MaskablePPO(PointerPolicy, env, policy_kwargs={"features_extractor_kwargs": {"hidden": 64}})`."""

    features_extractor: PointerFeatures

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Callable[[float], float],
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("features_extractor_class", PointerFeatures)
        kwargs.setdefault("net_arch", [])
        # SB3's orthogonal initialization is meant for its own MLPs and would overwrite the prior.
        kwargs["ortho_init"] = False
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        super()._build(lr_schedule)
        self.features_extractor.start_from_prior()
        # SB3 declares the types of its own layers here; any module works.
        self.action_net = nn.Identity()
        self.value_net = nn.Identity()  # type: ignore[assignment]
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = _Split(self.features_extractor.actions)  # type: ignore[assignment]
