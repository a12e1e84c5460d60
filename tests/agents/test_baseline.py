"""Returns relative to a program's running mean."""

from pathlib import Path

import numpy as np
import pytest

from agents.baseline import RATE, ProgramBaseline
from env.environments import FusionEnv
from tests.env.small_programs import write_suite


def total(env: ProgramBaseline, seed: int) -> tuple[float, float]:
    """What an episode of random actions paid, and the log of the speedup it found."""
    rng = np.random.default_rng(seed)
    env.reset(options={"program": "chain"})
    paid = 0.0
    while True:
        action = np.int64(rng.choice(np.flatnonzero(env.action_masks())))
        _, reward, terminated, _, info = env.step(action)
        paid += reward
        if terminated:
            return paid, float(np.log(info["speedup"]))


def test_episodes_are_paid_relative_to_those_before(tmp_path: Path) -> None:
    env = ProgramBaseline(FusionEnv(write_suite(tmp_path)))
    mean: float | None = None
    for seed in range(4):
        paid, found = total(env, seed)
        mean = found if mean is None else mean
        assert paid == pytest.approx(found - mean, abs=1e-6)
        mean += RATE * (found - mean)
        assert env.means == {"chain": pytest.approx(mean, abs=1e-6)}
