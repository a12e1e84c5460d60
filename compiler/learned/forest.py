"""A forest of regression trees that predicts with its uncertainty, with NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError

__all__ = ["Forest"]

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
_MOST_NODES = 1 << 22
_LARGEST_INDEX = 1 << 24
"""Up to here float32, the type of stored weights, holds every integer."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees in arrays: the nodes of all trees one after the other, children behind their parents.

    Attributes:
        roots: [trees] positions of the first nodes.
        feature: [nodes] column of a row that a node looks at; -1 for a leaf.
        threshold: [nodes] a row goes left if its value is at most this.
        left, right: [nodes] positions of the children; the node itself for a leaf.
        mean: [nodes] mean of the samples in a leaf.
        variance: [nodes] their variance.
        low, high: [features] least and greatest values of the samples.
    """

    roots: Indices
    feature: Indices
    threshold: Floats
    left: Indices
    right: Indices
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
        values = np.asarray(rows, dtype=np.float64)
        lines = np.arange(len(values))[:, None]
        at = np.tile(self.roots, (len(values), 1))
        while True:
            columns = self.feature[at]
            inner = columns >= 0
            if not inner.any():
                break
            goes_left = values[lines, np.maximum(columns, 0)] <= self.threshold[at]
            at = np.where(goes_left, self.left[at], self.right[at])
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
        return {name: np.asarray(getattr(self, name), np.float32) for name in _ARRAYS}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[np.float32]], features: int) -> Forest:
        """Return the forest of the arrays of a file.

        Raises:
            PolicyError: they are not those of a forest for rows of `features` values.
        """
        missing = [name for name in _ARRAYS if name not in arrays or arrays[name].ndim != 1]
        if missing or set(arrays) - set(_ARRAYS):
            raise PolicyError(f"its weights must be the vectors {', '.join(_ARRAYS)}")
        nodes, trees = len(arrays["feature"]), len(arrays["roots"])
        if not 0 < trees <= nodes <= _MOST_NODES:
            raise PolicyError(f"a forest cannot have {trees} trees and {nodes} nodes")
        for name in ("threshold", "left", "right", "mean", "variance"):
            if len(arrays[name]) != nodes:
                raise PolicyError(f"its {name} has {len(arrays[name])} entries instead of {nodes}")
        if len(arrays["low"]) != features or len(arrays["high"]) != features:
            raise PolicyError(f"it is made for {len(arrays['low'])} features, and this compiler has {features}")
        found = Forest(
            _indices(arrays["roots"], "roots", 0, nodes),
            _indices(arrays["feature"], "feature", -1, features),
            arrays["threshold"].astype(np.float64),
            _indices(arrays["left"], "left", 0, nodes),
            _indices(arrays["right"], "right", 0, nodes),
            arrays["mean"].astype(np.float64),
            arrays["variance"].astype(np.float64),
            arrays["low"].astype(np.float64),
            arrays["high"].astype(np.float64),
        )
        own, inner = np.arange(nodes), found.feature >= 0
        children = np.minimum(found.left, found.right)
        # Children behind their parents make every path end.
        if (children[inner] <= own[inner]).any() or (found.left[~inner] != own[~inner]).any():
            raise PolicyError("its nodes do not form trees")
        if (found.right[~inner] != own[~inner]).any() or (found.variance < 0).any():
            raise PolicyError("its nodes do not form trees")
        return found


_ARRAYS = ("roots", "feature", "threshold", "left", "right", "mean", "variance", "low", "high")


def _indices(array: npt.NDArray[np.float32], name: str, low: int, high: int) -> Indices:
    found = np.clip(array, -1, _LARGEST_INDEX).astype(np.int64)
    if (found != array).any() or (found < low).any() or (found >= high).any():
        raise PolicyError(f"its {name} must be integers from {low} to {high - 1}")
    return found
