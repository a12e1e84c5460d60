"""A reward of your own: estimated speed, minus a price for every kernel.

Run it with `python docs/examples/reward.py`.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import hlogym  # noqa: F401 - registers the environments
from env.compilation import Compilation
from env.observations import Observation
from env.rewards import EstimatedTime, Reward


class PricedKernels(EstimatedTime):
    """The logarithm of the estimated speedup, minus a price per kernel of the finished program."""

    def __init__(self, price: float) -> None:
        self.price = price

    def finish(self, compilation: Compilation) -> float:
        """Return what is added at the end of an episode."""
        # `complete()` is the whole compilation: the agent's decisions, then the defaults.
        kernels = len(compilation.complete().kernels())
        return super().finish(compilation) - self.price * kernels


def play(reward: Reward, fuse: bool) -> float:
    """Return the return of an episode that takes every first legal move, or stops at once."""
    # Every id takes `reward=`. The environment works on a copy, so one object can be given to several.
    env: gym.Env[Observation, np.int64] = gym.make("hlogym/Fusion-v0", suite="train", reward=reward)
    observation, _ = env.reset(seed=0, options={"program": "softmax"})
    total, done = 0.0, False
    while not done:
        last = int(observation["action_mask"].sum()) - 1  # the last legal move is to stop
        observation, value, terminated, truncated, _ = env.step(np.int64(0 if fuse else last))
        total += float(value)
        done = terminated or truncated
    return total


def main() -> None:
    for name, reward in [("estimated time", EstimatedTime()), ("priced kernels", PricedKernels(0.1))]:
        stopped, fused = play(reward, fuse=False), play(reward, fuse=True)
        print(f"{name}: {stopped:+.3f} for stopping at once, {fused:+.3f} for fusing everything")


if __name__ == "__main__":
    main()
