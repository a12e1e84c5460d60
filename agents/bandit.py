"""A gradient bandit over the decisions of a compilation: one preference per decision, whatever the state."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["GradientBandit"]

_NUMBERS = re.compile(r"\.\d+")


class GradientBandit:
    """The gradient bandit of Sutton and Barto, section 2.8, with the return of the whole episode as the reward.

    A decision is known by its text without the numbers of instructions, which differ from one order of passes to
    another. Decisions are drawn from the softmax of the preferences of those that are legal; all preferences are 0 at
    the start, so that the first episodes are uniformly random.

    Args:
        rate: step size; 0 does not learn, which is random search.
        seed: of the draws.

    Attributes:
        preferences: by decision.
        mean: running mean of the returns; None before the first episode.
    """

    def __init__(self, rate: float = 0.1, seed: int = 0) -> None:
        self.rate = rate
        self.preferences: dict[str, float] = {}
        self.mean: float | None = None
        self._rng = np.random.default_rng(seed)
        self._steps: list[tuple[list[str], npt.NDArray[np.float64], int]] = []

    def probabilities(self, names: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the probabilities of legal decisions, given as text; shape [decisions]."""
        values = np.array([self.preferences.get(_key(t), 0.0) for t in names])
        weights = np.exp(values - values.max())
        return np.asarray(weights / weights.sum())

    def draw(self, names: Sequence[str]) -> int:
        """Draw one of the legal decisions and return its position."""
        p = self.probabilities(names)
        chosen = int(self._rng.choice(len(names), p=p))
        self._steps.append(([_key(t) for t in names], p, chosen))
        return chosen

    def preferred(self, names: Sequence[str]) -> int:
        """Return the position of the most probable decision, of equal ones the first."""
        return int(self.probabilities(names).argmax())

    def learn(self, total: float) -> None:
        """End an episode with its return: decisions become more probable if it is above the mean of the others."""
        if self.mean is not None and self.rate:
            step = self.rate * (total - self.mean)
            for keys, p, chosen in self._steps:
                for n, key in enumerate(keys):
                    change = step * ((n == chosen) - p[n])
                    self.preferences[key] = self.preferences.get(key, 0.0) + float(change)
        self.mean = total if self.mean is None else self.mean + 0.1 * (total - self.mean)
        self._steps = []


def _key(text: str) -> str:
    return _NUMBERS.sub("", text)
