"""Agents that order passes: MaskablePPO, A2C and DQN of Stable-Baselines3 on the observations of `PassOrder`.

All three try only passes that are not known to be idle. MaskablePPO asks the environment for the mask; A2C and DQN have
no masks in SB3, so they read it from the end of the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork

from agents.settings import A2C_ARGUMENTS, PPO_ARGUMENTS, LearningSettings
from agents.vectors import make_vector
from compiler.errors import UnknownNameError
from compiler.learned.features.passes import mask_of
from compiler.learned.pass_order import Activation, Layer, LearnedPassOrder
from env.pass_order import PassOrderEnv

__all__ = ["PASS_AGENTS", "PassAgent", "layers_of", "make_pass_agent"]

PassAgent: TypeAlias = MaskablePPO | A2C | DQN
_NEVER = -1e8


class MaskedActorCritic(ActorCriticPolicy):
    """SB3's actor-critic network with action probabilities of zero where the mask of the observation is zero."""

    def extract_features(self, obs: PyTorchObs, features_extractor: Any = None) -> Any:
        """Extract features, and keep the mask for the action distribution that is made from them next."""
        self._mask = _mask(cast(torch.Tensor, obs), int(cast(Any, self.action_space).n))
        return super().extract_features(obs, features_extractor)

    def get_distribution(self, obs: PyTorchObs) -> Distribution:
        """Return the action distribution; SB3 does not call `extract_features` above here."""
        self._mask = _mask(cast(torch.Tensor, obs), int(cast(Any, self.action_space).n))
        return super().get_distribution(obs)

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> Distribution:
        logits = self.action_net(latent_pi).masked_fill(~self._mask, _NEVER)
        return self.action_dist.proba_distribution(logits)


class MaskedQNetwork(QNetwork):
    """SB3's Q-network with very low values for masked actions."""

    def forward(self, obs: PyTorchObs) -> torch.Tensor:
        """Return the values of the actions, [batch, actions]."""
        mask = _mask(cast(torch.Tensor, obs), int(cast(Any, self.action_space).n))
        return super().forward(obs).masked_fill(~mask, _NEVER)


class MaskedDQNPolicy(DQNPolicy):
    """SB3's DQN policy with `MaskedQNetwork`."""

    def make_q_net(self) -> QNetwork:
        """Return a network; called twice, for the target network too."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return MaskedQNetwork(**arguments).to(self.device)


class MaskedDQN(DQN):
    """A DQN that explores only what the mask allows."""

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        last = cast(npt.NDArray[Any], self._last_obs)
        explore = self.num_timesteps < learning_starts
        greedy, _ = self.policy.predict(last, deterministic=True)
        masks = mask_of(last, int(cast(Any, self.action_space).n))
        chosen = [
            np.random.choice(np.flatnonzero(m)) if explore or np.random.rand() < self.exploration_rate else g
            for m, g in zip(masks, greedy, strict=True)
        ]
        actions = np.array(chosen)
        return actions, actions


def _mask(observations: torch.Tensor, actions: int) -> torch.Tensor:
    return observations[..., -actions:] > 0.5


def _ppo(environments: VecEnv, s: LearningSettings) -> PassAgent:
    return MaskablePPO(
        "MlpPolicy", environments, n_steps=max(1, s.n_steps // environments.num_envs),
        learning_rate=s.learning_rates(), clip_range=s.clip_ranges(),
        policy_kwargs={"net_arch": [s.hidden, s.hidden]}, device="cpu", **s.arguments(PPO_ARGUMENTS),
    )  # fmt: skip


def _a2c(environments: VecEnv, s: LearningSettings) -> PassAgent:
    return A2C(
        MaskedActorCritic, environments, n_steps=max(1, s.n_steps // environments.num_envs // 16),
        learning_rate=s.learning_rates(),
        policy_kwargs={"net_arch": [s.hidden, s.hidden]}, device="cpu", **s.arguments(A2C_ARGUMENTS),
    )  # fmt: skip


def _dqn(environments: VecEnv, s: LearningSettings) -> PassAgent:
    return MaskedDQN(
        MaskedDQNPolicy, environments, learning_rate=s.learning_rates(), buffer_size=100_000, learning_starts=2_000,
        batch_size=s.batch_size, gamma=s.gamma, train_freq=4, gradient_steps=environments.num_envs, n_steps=8,
        target_update_interval=2_000, exploration_fraction=s.exploration_fraction, exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [s.hidden, s.hidden]}, seed=s.seed, device="cpu",
    )  # fmt: skip


PASS_AGENTS: dict[str, Callable[[VecEnv, LearningSettings], PassAgent]] = {
    "maskable-ppo": _ppo,
    "a2c": _a2c,
    "dqn": _dqn,
}


def make_pass_agent(kind: str, environments: Sequence[PassOrderEnv] | VecEnv, settings: LearningSettings) -> PassAgent:
    """Return an untrained agent; the same settings and seed give the same agent.

    Raises:
        UnknownNameError: no such agent.
    """
    if kind not in PASS_AGENTS:
        raise UnknownNameError("agent for pass orders", kind, PASS_AGENTS)
    torch.set_num_threads(1)  # networks this small are slower on several threads
    if not isinstance(environments, VecEnv):
        environments = make_vector([lambda env=env: env for env in environments])  # type: ignore[misc]
    return PASS_AGENTS[kind](environments, settings)


def layers_of(agent: PassAgent) -> list[Layer]:
    """Return the layers of the part of an agent's network that ranks actions."""
    policy: Any = agent.policy
    activation: Activation
    if isinstance(agent, DQN):
        modules, activation = list(policy.q_net.q_net), "relu"
    else:
        modules, activation = [*policy.mlp_extractor.policy_net, policy.action_net], "tanh"
    linear = [m for m in modules if isinstance(m, torch.nn.Linear)]
    last = len(linear) - 1
    return [
        Layer(m.weight.detach().numpy().copy(), m.bias.detach().numpy().copy(), activation if n < last else "none")
        for n, m in enumerate(linear)
    ]


def learned_order(agent: PassAgent, env: PassOrderEnv, provenance: dict[str, Any]) -> LearnedPassOrder:
    """Return the pass order of an agent.

    An agent rewarded for a whole compilation is followed by the default pipeline, as in its environment. One rewarded
    for the module it left, as by op counts, continues after its stop with passes that add no ops.
    """
    layers = tuple(layers_of(agent))
    if env.reward.completes:
        return LearnedPassOrder(env.actions, layers, env.max_steps, 0, "default", provenance)
    return LearnedPassOrder(env.actions, layers, env.max_steps, env.max_steps, "fewer-ops", provenance)
