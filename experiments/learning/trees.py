"""Growing regression trees and forests from weighted samples, by scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeRegressor

from compiler.learned.forest import Forest
from compiler.learned.tree_nodes import TreeNodes

__all__ = ["Grown", "Leaf", "grow_forest", "grow_tree", "leaves", "merged_leaves"]

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Leaf:
    """The samples of a leaf, by their positions, and the bounds that lead to it: column, at most (or above), bound."""

    samples: npt.NDArray[np.int64]
    bounds: tuple[tuple[int, bool, float], ...] = ()


@dataclass(frozen=True)
class Grown:
    """A tree: a leaf, or a split of a column with a tree on either side."""

    leaf: Leaf | None = None
    column: int = -1
    threshold: float = 0.0
    low: Grown | None = None
    high: Grown | None = None


def grow_tree(
    rows: Floats,
    targets: Floats,
    weights: Floats,
    depth: int,
    least: int,
    columns: Sequence[int] | None = None,
    share: float = 1.0,
    seed: int = 0,
    samples: npt.NDArray[np.int64] | None = None,
) -> Grown:
    """Return the tree that greedily reduces the weighted squared error.

    Args:
        rows: [n, features].
        targets: [n].
        weights: [n].
        depth: greatest depth.
        least: least number of samples in a leaf.
        columns: the features that may be used; None: all.
        share: of the features, drawn for each split, that are tried.
        seed: of these draws.
        samples: positions of the samples, which may repeat; None: all.
    """
    at = np.arange(len(rows)) if samples is None else samples
    used = np.arange(rows.shape[1]) if columns is None else np.array(columns, dtype=np.int64)
    fitted = DecisionTreeRegressor(max_depth=depth, min_samples_leaf=least, max_features=share, random_state=seed)
    fitted.fit(rows[at][:, used], targets[at], sample_weight=weights[at])
    return _grown(fitted.tree_, 0, used, np.asarray(rows, np.float32), at, ())


def _grown(
    tree: Any,
    node: int,
    used: npt.NDArray[np.int64],
    rows: npt.NDArray[np.float32],
    samples: npt.NDArray[np.int64],
    bounds: tuple[tuple[int, bool, float], ...],
) -> Grown:
    """Return a node of a fitted tree, whose thresholds become numbers that rules can show."""
    if tree.children_left[node] < 0:
        return Grown(Leaf(samples, bounds))
    column = int(used[tree.feature[node]])
    values = rows[samples, column]
    below = values <= tree.threshold[node]
    threshold = _between(float(values[below].max()), float(values[~below].min()))
    low, high = (
        _grown(tree, child, used, rows, part, (*bounds, (column, is_low, threshold)))
        for child, is_low, part in (
            (tree.children_left[node], True, samples[below]), (tree.children_right[node], False, samples[~below]),
        )
    )  # fmt: skip
    return Grown(None, column, threshold, low, high)


def _between(low: float, high: float) -> float:
    """Return a float32 in [low, high): the geometric mean of positive bounds, because sizes differ by factors."""
    middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
    rounded = float(np.float32(middle))
    return rounded if low <= rounded < high else low


def leaves(tree: Grown) -> list[Leaf]:
    """Return the leaves of a tree from left to right."""
    if tree.leaf is not None:
        return [tree.leaf]
    return [leaf for side in (tree.low, tree.high) if side is not None for leaf in leaves(side)]


def merged_leaves(tree: Grown, wanted: Callable[[Leaf], bool]) -> list[Leaf]:
    """Return the wanted leaves of a tree; a part of it in which all leaves are wanted becomes one leaf."""
    return _merged(tree, wanted, 0)[0]


def _merged(tree: Grown, wanted: Callable[[Leaf], bool], depth: int) -> tuple[list[Leaf], bool]:
    """Return the leaves, and whether all leaves of the tree are wanted."""
    if tree.leaf is not None:
        keep = wanted(tree.leaf)
        return [tree.leaf] if keep else [], keep
    parts = [_merged(side, wanted, depth + 1) for side in (tree.low, tree.high) if side is not None]
    found = [leaf for part, _ in parts for leaf in part]
    if not all(whole for _, whole in parts):
        return found, False
    return [Leaf(np.concatenate([leaf.samples for leaf in found]), found[0].bounds[:depth])], True


def grow_forest(
    rows: Floats,
    targets: Floats,
    weights: Floats,
    groups: Sequence[str],
    trees: int,
    depth: int,
    least: int,
    seed: int,
    share: float = 1 / 3,
    seen: int = 1,
) -> Forest:
    """Return a forest whose trees are grown on resampled groups.

    Args:
        rows: [n, features].
        targets: [n].
        weights: [n].
        groups: [n]; samples of one group, such as a program, are drawn together.
        trees: number of trees.
        depth: greatest depth of a tree.
        least: least number of samples in a leaf.
        seed: of all draws.
        share: of the features, drawn for each split, that are tried.
        seen: least number of groups that have a feature, which is not 0 there. Of a row that has another feature the
            forest knows nothing, see `Forest.knows`.
    """
    rng = np.random.default_rng(seed)
    members: dict[str, list[int]] = {}
    for n, group in enumerate(groups):
        members.setdefault(group, []).append(n)
    names = sorted(members)
    varying = [c for c in range(rows.shape[1]) if np.ptp(rows[:, c]) > 0] or [0]
    flat = _Flat()
    for number in range(trees):
        drawn = rng.integers(len(names), size=len(names))
        samples = np.array([n for g in drawn for n in members[names[g]]], dtype=np.int64)
        tree = grow_tree(rows, targets, weights, depth, least, varying, share, seed + number, samples)
        flat.add(tree, targets, weights)
    groups_with = np.array([(rows[at] != 0).any(axis=0) for at in members.values()]).sum(axis=0)
    return flat.forest(np.where(groups_with >= seen, rows, 0.0))


class _Flat:
    """Trees as arrays."""

    def __init__(self) -> None:
        self.roots: list[int] = []
        self.nodes: list[list[float]] = []

    def add(self, tree: Grown, targets: Floats, weights: Floats) -> None:
        self.roots.append(len(self.nodes))
        self._add(tree, targets, weights)

    def _add(self, tree: Grown, targets: Floats, weights: Floats) -> int:
        at = len(self.nodes)
        self.nodes.append([])
        if tree.low is not None and tree.high is not None:
            low, high = (self._add(side, targets, weights) for side in (tree.low, tree.high))
            self.nodes[at] = [tree.column, tree.threshold, low, high, 0.0, 0.0]
            return at
        samples = tree.leaf.samples if tree.leaf is not None else np.zeros(0, np.int64)
        mean = float(np.average(targets[samples], weights=weights[samples]))
        variance = float(np.average((targets[samples] - mean) ** 2, weights=weights[samples]))
        self.nodes[at] = [-1, 0.0, at, at, mean, variance]
        return at

    def forest(self, rows: Floats) -> Forest:
        table = np.array(self.nodes)
        column = [table[:, n] for n in range(table.shape[1])]
        nodes = TreeNodes(
            np.array(self.roots, np.int64), column[0].astype(np.int64), column[1], column[2].astype(np.int64),
            column[3].astype(np.int64),
        )  # fmt: skip
        return Forest(nodes, column[4], column[5], rows.min(axis=0), rows.max(axis=0))
