"""An agent of your own: REINFORCE with one weight per feature of a candidate, in NumPy.

Run it with `python docs/examples/agent.py [ROUNDS]`. It needs no PyTorch and takes some ten seconds.
"""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import hlogym  # noqa: F401 - registers the environments
from env.observations import Observation, unflatten
from env.suites import load_suite

Floats = npt.NDArray[np.float64]


class LinearAgent:
    """Score legal moves by weighted sums of their features, and draw from the softmax of the scores."""

    def __init__(self, features: int, seed: int, learning_rate: float = 0.1) -> None:
        self.weights = np.zeros(features)
        self.learning_rate = learning_rate
        self.rng = np.random.default_rng(seed)
        self.mean: dict[str, float] = {}

    def act(self, observation: Observation) -> tuple[int, Floats]:
        """Return an action, and the gradient of the logarithm of its probability."""
        # The rows of the candidates are the legal moves, so no other mask is needed.
        candidates = unflatten(observation).candidates.astype(np.float64)
        scores = candidates @ self.weights
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        action = int(self.rng.choice(len(chances), p=chances))
        return action, candidates[action] - chances @ candidates

    def learn(self, program: str, total: float, gradients: list[Floats]) -> None:
        """Make the actions of an episode more likely if its return is above the mean of its program."""
        # Programs differ in how much there is to gain, so each is compared with itself.
        mean = self.mean.setdefault(program, total)
        self.weights += self.learning_rate * (total - mean) * np.sum(gradients, axis=0)
        self.mean[program] = mean + 0.1 * (total - mean)


def episode(env: gym.Env[Observation, np.int64], agent: LinearAgent, program: str) -> float:
    """Play one episode, learn from it, and return the logarithm of the speedup."""
    observation, _ = env.reset(options={"program": program})
    total, done, gradients = 0.0, False, []
    while not done:
        action, gradient = agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(np.int64(action))
        gradients.append(gradient)
        total += float(reward)
        done = terminated or truncated
    agent.learn(program, total, gradients)
    return total


def main(rounds: int) -> None:
    env: gym.Env[Observation, np.int64] = gym.make("hlogym/Fusion-v0", suite="train", backend="cpu")
    observation, _ = env.reset(seed=0)
    agent = LinearAgent(unflatten(observation).candidates.shape[1], seed=0)
    # Each round plays every program once, so that the first and the last rounds can be compared.
    names = [p.name for p in load_suite("train").programs]
    means = [np.mean([episode(env, agent, name) for name in names]) for _ in range(rounds)]
    for what, part in (("first", means[: rounds // 3]), ("last", means[-(rounds // 3) :])):
        speedup = np.exp(np.mean(part))
        print(f"{what} third of the rounds: mean speedup over the unfused programs {speedup:.2f}x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
