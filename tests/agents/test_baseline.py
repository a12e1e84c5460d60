"""Returns relative to a program's running mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.baseline import RATE, ProgramBaseline
from agents.vectors import make_vector
from env.environments import FusionEnv
from tests.env.small_programs import CHAIN


def test_rewards_are_relative_to_the_mean_of_earlier_episodes(tmp_path: Path) -> None:
    (tmp_path / "chain.hlo").write_text(CHAIN)
    vector = ProgramBaseline(make_vector([lambda: FusionEnv(tmp_path)] * 2))
    vector.reset()
    rng = np.random.default_rng(0)
    rewards, mean = np.zeros(2), None
    returns: list[float] = []
    for _ in range(200):
        masks: Any = vector.env_method("action_masks")
        actions = np.array([rng.choice(np.flatnonzero(m)) for m in masks])
        _, reward, dones, infos = vector.step(actions)
        rewards += reward
        for n in np.flatnonzero(dones):
            found = float(np.log(infos[n]["speedup"]))
            mean = found if mean is None else mean
            assert rewards[n] == pytest.approx(found - mean, abs=1e-5)
            assert infos[n]["episode"]["r"] == pytest.approx(found, abs=1e-5)
            mean += RATE * (found - mean)
            rewards[n] = 0
            returns.append(found)
        assert mean is None or vector.means == {"chain": pytest.approx(mean, abs=1e-5)}
    assert len(returns) > 4
    assert len(set(returns)) > 1


def test_a_truncated_episode_leaves_the_mean_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "chain.hlo").write_text(CHAIN)
    vector = ProgramBaseline(make_vector([lambda: FusionEnv(tmp_path, max_steps=2)]))
    vector.reset()
    raw = 0.0
    for _ in range(2):
        _, reward, dones, infos = vector.step(np.array([0]))
        raw += float(reward[0])
    assert dones[0]
    assert infos[0]["TimeLimit.truncated"]
    assert raw == pytest.approx(infos[0]["episode"]["r"], abs=1e-6)
    assert vector.means == {}
