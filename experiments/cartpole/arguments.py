"""Arguments of the naive Cartpole simulator, and how its results are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ENVS", "disagreement", "draw"]

Array = npt.NDArray[Any]

ENVS = 2048


def draw(steps: int, seed: int = 0, envs: int = ENVS) -> tuple[Array, Array, Array]:
    """Return a random key, state and actions."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, 1 << 32, 2, dtype=np.uint32)
    state = rng.uniform(-0.05, 0.05, (envs, 4)).astype(np.float32)
    return key, state, rng.integers(0, 2, (steps, envs), dtype=np.int32)


def disagreement(got: Sequence[Array], want: Sequence[Array]) -> float:
    """Return the share of environments whose final state or number of episodes differs.

    Rounding may end an episode one step earlier; the environment then differs until two of its episodes end together.

    Raises:
        ValueError: the rewards differ.
    """
    state = (np.abs(got[0] - want[0]) > 1e-3).any(1)
    if not np.array_equal(got[1], want[1]):
        raise ValueError("the rewards differ")
    return float((state | (np.abs(got[2] - want[2]) > 2)).mean())
