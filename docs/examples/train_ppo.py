"""PPO on hlogym/Fusion-v0, and the policy used by the compiler.

Run it with `python docs/examples/train_ppo.py [TIMESTEPS]`. The default takes some ten seconds and
shows the steps; 20 000 steps learn something.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.monitor import Monitor

import hlogym
from agents.export import export_policy
from agents.policy import PointerPolicy
from agents.ppo import network_of
from env.suites import find_program, random_inputs


def main(timesteps: int) -> None:
    # The reward is the logarithm of the speedup over the unfused program, by the cost model: fast and
    # deterministic. `hlogym/FusionMeasured-v0` rewards measured run time instead.
    env = Monitor(gym.make("hlogym/Fusion-v0", suite="train", backend="cpu"))

    torch.set_num_threads(1)  # networks this small are slower on several threads
    # PointerPolicy is a graph network that scores the legal moves.
    # No discount because only the whole episode counts: how fast the finished program is.
    rollout = min(256, timesteps)
    model = MaskablePPO(
        PointerPolicy, env, n_steps=rollout, batch_size=64, gamma=1.0, gae_lambda=1.0, seed=0, device="cpu"
    )
    model.learn(timesteps)
    returns = env.get_episode_rewards()
    speedup = np.exp(np.mean(returns[-20:]))
    print(f"{len(returns)} episodes, mean speedup {speedup:.2f}x over the unfused programs")

    with tempfile.TemporaryDirectory() as folder:
        # The compiler reads the exported policy with NumPy alone.
        export_policy(network_of(model), Path(folder), provenance={"timesteps": timesteps})
        policy = hlogym.load_policy(folder)

    program = find_program("softmax")
    module = hlogym.parse(program.text())
    arrays = random_inputs(program, [(s.dtype, s.dimensions) for s in module.parameter_shapes], seed=0)
    exe = hlogym.compile(module, fusion_policy=policy)
    (expected,) = hlogym.compile(module, backend="interpreter")(*arrays)
    np.testing.assert_allclose(exe(*arrays)[0], expected, rtol=1e-4, atol=1e-6)
    count = len(exe.kernels)
    print(f"softmax by the learned policy: {count} kernels, equal to the interpreter's result")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
