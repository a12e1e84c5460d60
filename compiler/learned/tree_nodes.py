"""The nodes of decision trees in arrays, with NumPy only: which leaf a row reaches in each tree."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError

__all__ = ["NODE_ARRAYS", "TreeNodes"]

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
NODE_ARRAYS = ("roots", "feature", "threshold", "left", "right")
"""Names of the arrays, as weights files hold them."""
_MOST_NODES = 1 << 22
_LARGEST_INDEX = 1 << 24
"""Up to here float32, the type of stored weights, holds every integer."""
_AT_ONCE = 1 << 18
"""Rows times trees that are followed together."""


@dataclass(frozen=True, eq=False)
class TreeNodes:
    """Trees in arrays: the nodes of all trees one after the other, children behind their parents.

    Attributes:
        roots: [trees] positions of the first nodes.
        feature: [nodes] column of a row that a node looks at; -1 for a leaf.
        threshold: [nodes] a row goes left if its value is at most this.
        left, right: [nodes] positions of the children; the node itself for a leaf.
    """

    roots: Indices
    feature: Indices
    threshold: Floats
    left: Indices
    right: Indices

    def __len__(self) -> int:
        return len(self.feature)

    def leaves(self, values: Floats) -> Indices:
        """Return the positions of the leaves that rows of [n, features] reach: [n, trees]."""
        step = max(1, _AT_ONCE // max(1, len(self.roots)))
        parts = [self._leaves(values[n : n + step]) for n in range(0, len(values), step)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.roots)), np.int64)

    def _leaves(self, values: Floats) -> Indices:
        feature, threshold, children = self._steps
        flat, lines = values.ravel(), np.arange(len(values))[:, None] * values.shape[1]
        at = np.tile(self.roots, (len(values), 1))
        for _ in range(self._depth):  # a leaf is its own child
            right = flat.take(feature.take(at) + lines) > threshold.take(at)
            at = children.take(2 * at + right)
        return at

    @functools.cached_property
    def _steps(self) -> tuple[Indices, Floats, Indices]:
        """For each node the column that it looks at, its threshold, and its children, left and right in turns."""
        return np.maximum(self.feature, 0), self.threshold, np.stack([self.left, self.right], axis=1).ravel()

    @functools.cached_property
    def _depth(self) -> int:
        """Most nodes above a leaf."""
        depth, level = 0, self.roots[self.feature[self.roots] >= 0]
        while len(level):
            below = np.concatenate([self.left[level], self.right[level]])
            depth, level = depth + 1, below[self.feature[below] >= 0]
        return depth

    @staticmethod
    def joined(parts: Sequence[TreeNodes]) -> TreeNodes:
        """Return the trees of all parts, in order."""
        starts = np.cumsum([0, *(len(p) for p in parts[:-1])])
        moved = [[a + n for a in (p.roots, p.left, p.right)] for p, n in zip(parts, starts, strict=True)]
        roots, left, right = (np.concatenate(arrays) for arrays in zip(*moved, strict=True))
        feature, threshold = (np.concatenate([getattr(p, name) for p in parts]) for name in ("feature", "threshold"))
        return TreeNodes(roots, feature, threshold, left, right)

    def to_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the arrays by name, as weights files hold them."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in NODE_ARRAYS}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[np.float32]], features: int) -> TreeNodes:
        """Return the trees of the arrays of a file, which may have others for each node.

        Raises:
            PolicyError: they are not those of trees for rows of `features` values.
        """
        nodes, trees = len(arrays["feature"]), len(arrays["roots"])
        if not 0 < trees <= nodes <= _MOST_NODES:
            raise PolicyError(f"a forest cannot have {trees} trees and {nodes} nodes")
        for name in arrays:
            if len(arrays[name]) != nodes and name != "roots":
                raise PolicyError(f"its {name} has {len(arrays[name])} entries instead of {nodes}")
        found = TreeNodes(
            _indices(arrays["roots"], "roots", 0, nodes),
            _indices(arrays["feature"], "feature", -1, features),
            arrays["threshold"].astype(np.float64),
            _indices(arrays["left"], "left", 0, nodes),
            _indices(arrays["right"], "right", 0, nodes),
        )
        own, inner = np.arange(nodes), found.feature >= 0
        children = np.minimum(found.left, found.right)
        # Children behind their parents make every path end.
        if (children[inner] <= own[inner]).any() or (found.left[~inner] != own[~inner]).any():
            raise PolicyError("its nodes do not form trees")
        if (found.right[~inner] != own[~inner]).any():
            raise PolicyError("its nodes do not form trees")
        return found


def _indices(array: npt.NDArray[np.float32], name: str, low: int, high: int) -> Indices:
    found = np.clip(array, -1, _LARGEST_INDEX).astype(np.int64)
    if (found != array).any() or (found < low).any() or (found >= high).any():
        raise PolicyError(f"its {name} must be integers from {low} to {high - 1}")
    return found
