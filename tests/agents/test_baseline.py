"""Returns relative to a program's running mean."""

from pathlib import Path

import numpy as np
import pytest

from agents.baseline import RATE, ProgramBaseline
from env.environments import FusionEnv
from tests.env.small_programs import write_suite


def total(env: ProgramBaseline, seed: int) -> tuple[float, float]:
    """Run an episode of random actions; return the sum of its rewards and the log of its speedup."""
    rng = np.random.default_rng(seed)
    env.reset(options={"program": "chain"})
    rewards = 0.0
    while True:
        action = np.int64(rng.choice(np.flatnonzero(env.action_masks())))
        _, reward, terminated, _, info = env.step(action)
        rewards += reward
        if terminated:
            return rewards, float(np.log(info["speedup"]))


def test_rewards_are_relative_to_the_mean_of_earlier_episodes(tmp_path: Path) -> None:
    env = ProgramBaseline(FusionEnv(write_suite(tmp_path)))
    mean: float | None = None
    for seed in range(4):
        rewards, found = total(env, seed)
        mean = found if mean is None else mean
        assert rewards == pytest.approx(found - mean, abs=1e-6)
        mean += RATE * (found - mean)
        assert env.means == {"chain": pytest.approx(mean, abs=1e-6)}
