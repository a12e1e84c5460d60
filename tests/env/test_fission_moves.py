"""Tests of environments whose actions include fissions."""

import numpy as np

from env.environments import FusionEnv


def test_fissions_are_actions_on_request_and_lead_back() -> None:
    env = FusionEnv("quickstart", splits=True)
    env.reset(seed=0, options={"program": "softmax"})
    plain = len([m for m in env.moves if str(m).startswith("fission")])
    assert plain == 0
    _, first, *_ = env.step(0)
    names = [str(m) for m in env.moves]
    fissions = [n for n, t in enumerate(names) if t.startswith("fission")]
    assert fissions
    observation, second, terminated, *_ = env.step(fissions[0])
    assert not terminated
    assert all(np.isfinite(v).all() for v in observation.values())
    # The only fusion is gone, and with it what it saved.
    assert abs(float(first) + float(second)) < 1e-6


def test_fissions_are_no_actions_by_default() -> None:
    env = FusionEnv("quickstart")
    env.reset(seed=0, options={"program": "softmax"})
    env.step(0)
    assert not any(str(m).startswith("fission") for m in env.moves)


def test_moves_are_actions_on_request() -> None:
    env = FusionEnv("quickstart", splits=True)
    env.reset(seed=0, options={"program": "layer_norm_backward"})
    for _ in range(10):
        moves = [n for n, m in enumerate(env.moves) if str(m).startswith("move")]
        if moves:
            break
        env.step(0)
    assert moves
    observation, reward, terminated, _, info = env.step(moves[0])
    assert info["refused"] == ""
    assert not terminated
    assert np.isfinite(reward)
    assert all(np.isfinite(v).all() for v in observation.values())
    assert "move" in info["plan"][-1]
