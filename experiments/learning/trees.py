"""Growing regression trees and forests from weighted samples, with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.learned.forest import Forest

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
    rng: np.random.Generator | None = None,
    samples: npt.NDArray[np.int64] | None = None,
    always: frozenset[int] = frozenset(),
    bounds: tuple[tuple[int, bool, float], ...] = (),
) -> Grown:
    """Return the tree that greedily reduces the weighted squared error.

    Args:
        rows: [n, features].
        targets: [n].
        weights: [n].
        depth: greatest depth.
        least: least number of samples in a leaf.
        columns: the features that may be used; None: all.
        rng: draws a third of the features for each split; None: all are tried.
        always: features that are tried for every split in any case.
        samples: positions of the samples, which may repeat; None: all.
        bounds: of the tree itself, as part of a larger one.
    """
    samples = np.arange(len(rows)) if samples is None else samples
    allowed = list(range(rows.shape[1]) if columns is None else columns)
    drawn = allowed if rng is None else rng.choice(allowed, max(1, len(allowed) // 3), replace=False).tolist()
    tried = sorted({*drawn, *always})
    split = _best_split(rows[samples], targets[samples], weights[samples], tried, least) if depth > 0 else None
    if split is None:
        return Grown(Leaf(samples, bounds))
    column, threshold = split
    below = rows[samples, column] <= threshold
    sides = [
        grow_tree(
            rows, targets, weights, depth - 1, least, allowed, rng, part, always, (*bounds, (column, is_low, threshold))
        )
        for is_low, part in ((True, samples[below]), (False, samples[~below]))
    ]
    return Grown(None, column, threshold, sides[0], sides[1])


def _best_split(
    rows: Floats, targets: Floats, weights: Floats, columns: Sequence[int], least: int
) -> tuple[int, float] | None:
    """Return the column and the threshold of the best split; None if no split reduces the error."""
    n = len(targets)
    if n < 2 * least:
        return None
    whole = float(np.sum(weights * targets)) ** 2 / float(np.sum(weights))
    best, found = whole * (1 + 1e-9) + 1e-12, None
    for column in columns:
        order = np.argsort(rows[:, column], kind="stable")
        values, w = rows[order, column], weights[order]
        total = np.cumsum(w * targets[order])
        mass = np.cumsum(w)
        cut = np.arange(least - 1, n - least)
        cut = cut[values[cut] < values[cut + 1]]
        if not len(cut):
            continue
        left, right = total[cut], total[-1] - total[cut]
        gains = left**2 / mass[cut] + right**2 / (mass[-1] - mass[cut])
        at = int(np.argmax(gains))
        if gains[at] > best:
            best = float(gains[at])
            found = column, _between(float(values[cut[at]]), float(values[cut[at] + 1]))
    return found


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
    always: frozenset[int] = frozenset(),
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
        always: features that are tried for every split; of the others a third is drawn.
    """
    rng = np.random.default_rng(seed)
    members: dict[str, list[int]] = {}
    for n, group in enumerate(groups):
        members.setdefault(group, []).append(n)
    names = sorted(members)
    always = frozenset(c for c in always if np.ptp(rows[:, c]) > 0)
    varying = [c for c in range(rows.shape[1]) if np.ptp(rows[:, c]) > 0] or [0]
    flat = _Flat()
    for _ in range(trees):
        drawn = rng.integers(len(names), size=len(names))
        samples = np.array([n for g in drawn for n in members[names[g]]], dtype=np.int64)
        flat.add(grow_tree(rows, targets, weights, depth, least, varying, rng, samples, always), targets, weights)
    return flat.forest(rows)


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
        return Forest(
            np.array(self.roots, np.int64), column[0].astype(np.int64), column[1], column[2].astype(np.int64),
            column[3].astype(np.int64), column[4], column[5], rows.min(axis=0), rows.max(axis=0),
        )  # fmt: skip
