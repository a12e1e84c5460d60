"""A forest of regression trees that predicts with its uncertainty, with NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError
from compiler.learned.tree_nodes import NODE_ARRAYS, TreeNodes

__all__ = ["Forest"]

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees of which each predicts for itself.

    Attributes:
        nodes: of all trees.
        mean: [nodes] mean of the samples in a leaf.
        variance: [nodes] their variance.
        low, high: [features] least and greatest values of the samples; 0 for a feature that too few of them have.
    """

    nodes: TreeNodes
    mean: Floats
    variance: Floats
    low: Floats
    high: Floats

    @property
    def features(self) -> int:
        """Length of a row."""
        return len(self.low)

    def predict(self, rows: Sequence[Sequence[float]] | Floats) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation of a prediction for each row of [n, features].

        The deviation covers both that trees disagree and that the samples of their leaves differ.
        """
        at = self.nodes.leaves(np.asarray(rows, dtype=np.float64))
        means = self.mean[at]
        return means.mean(axis=1), np.sqrt(means.var(axis=1) + self.variance[at].mean(axis=1))

    def knows(self, rows: Sequence[Sequence[float]] | Floats, beyond: float = 1.0) -> npt.NDArray[np.bool_]:
        """Check for each row whether its values lie within those of the samples, or at most a share beyond them."""
        values = np.asarray(rows, dtype=np.float64)
        slack = beyond * np.maximum(np.abs(self.high), np.abs(self.low))
        inside = (values >= self.low - slack * (self.low < 0)) & (values <= self.high + slack)
        return np.asarray(inside.all(axis=1))

    def to_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the arrays by name, as weights files hold them."""
        own = {name: np.asarray(getattr(self, name), np.float32) for name in (*_LEAVES, *_BOUNDS)}
        return {**self.nodes.to_arrays(), **own}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[np.float32]], features: int) -> Forest:
        """Return the forest of the arrays of a file.

        Raises:
            PolicyError: they are not those of a forest for rows of `features` values.
        """
        names = (*NODE_ARRAYS, *_LEAVES, *_BOUNDS)
        missing = [name for name in names if name not in arrays or arrays[name].ndim != 1]
        if missing or set(arrays) - set(names):
            raise PolicyError(f"its weights must be the vectors {', '.join(names)}")
        if len(arrays["low"]) != features or len(arrays["high"]) != features:
            raise PolicyError(f"it is made for {len(arrays['low'])} features, and this compiler has {features}")
        nodes = TreeNodes.from_arrays({n: arrays[n] for n in (*NODE_ARRAYS, *_LEAVES)}, features)
        mean, variance, low, high = (arrays[name].astype(np.float64) for name in (*_LEAVES, *_BOUNDS))
        if (variance < 0).any():
            raise PolicyError("its nodes do not form trees")
        return Forest(nodes, mean, variance, low, high)


_LEAVES, _BOUNDS = ("mean", "variance"), ("low", "high")
