"""Boosted regression trees, whose leaves add up to a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError
from compiler.learned.tree_nodes import NODE_ARRAYS, TreeNodes

__all__ = ["BoostedTrees"]

Floats: TypeAlias = npt.NDArray[np.float64]
_NAMES = (*NODE_ARRAYS, "value")


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Trees of which each corrects those before it.

    Attributes:
        nodes: of all trees.
        value: [nodes] what a leaf adds.
    """

    nodes: TreeNodes
    value: Floats

    def with_features(self, columns: Sequence[int]) -> BoostedTrees:
        """Return the trees for wider rows, whose entries at `columns` are those that these trees look at."""
        moved = np.where(self.nodes.feature >= 0, np.array(columns, np.int64)[self.nodes.feature], -1)
        return BoostedTrees(replace(self.nodes, feature=moved), self.value)

    def to_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the arrays by name, as weights files hold them."""
        return {**self.nodes.to_arrays(), "value": self.value.astype(np.float32)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[np.float32]], features: int) -> BoostedTrees:
        """Return the trees of the arrays of a file.

        Raises:
            PolicyError: they are not those of trees for rows of `features` values.
        """
        if set(arrays) != set(_NAMES) or any(a.ndim != 1 for a in arrays.values()):
            raise PolicyError(f"its weights must be the vectors {', '.join(_NAMES)}")
        return BoostedTrees(TreeNodes.from_arrays(arrays, features), arrays["value"].astype(np.float64))
