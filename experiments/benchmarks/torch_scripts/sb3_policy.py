"""Episodes of cart-pole played by a policy of Stable-Baselines3 in the loop of its environments."""

from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

ENVIRONMENTS, STEPS = 8, 64


def start() -> Any:
    """Return the environments and the compiled policy of an agent."""
    agent = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS, seed=0), seed=0, device="cpu")
    agent.policy.set_training_mode(False)
    policy: Any = agent.policy
    policy = torch.compile(policy)
    return agent.get_env(), policy


@torch.no_grad()
def step(state: Any) -> Any:
    """Play from the start of new episodes; return the state, and all observations, actions, values and rewards."""
    environments, policy = state
    environments.seed(0)
    observations, transitions = environments.reset(), []
    for _ in range(STEPS):
        actions, values, _ = policy(torch.as_tensor(observations), deterministic=True)
        after, rewards, _, _ = environments.step(actions.numpy())
        transitions.append((observations, actions.numpy(), values.numpy(), rewards))
        observations = after
    return state, tuple(map(np.stack, zip(*transitions, strict=True)))


if __name__ == "__main__":
    state, (observations, actions, values, rewards) = step(start())
    print(observations.shape, actions.mean(), values.mean(), rewards.sum())
