"""Forests predict as their trees say, and arrays that do not form trees are refused."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from compiler.errors import PolicyError
from compiler.learned.forest import Forest
from compiler.learned.tree_nodes import TreeNodes
from experiments.learning.trees import grow_forest, grow_tree, leaves

FLOAT = np.float64


def stumps() -> Forest:
    """Two trees over two features: one splits the first at 4 into 1 and 3, the other is always 5."""
    return Forest(
        nodes=TreeNodes(
            roots=np.array([0, 3]),
            feature=np.array([0, -1, -1, -1]),
            threshold=np.array([4.0, 0, 0, 0]),
            left=np.array([1, 1, 2, 3]),
            right=np.array([2, 1, 2, 3]),
        ),
        mean=np.array([0, 1.0, 3.0, 5.0]),
        variance=np.array([0, 0.0, 2.0, 0.0]),
        low=np.array([0.0, -1.0]),
        high=np.array([10.0, 1.0]),
    )


def test_predictions_are_means_over_trees_with_both_kinds_of_spread() -> None:
    mean, deviation = stumps().predict([[4.0, 0.0], [4.5, 0.0]])
    np.testing.assert_allclose(mean, [3.0, 4.0])
    # Between the trees: (5 - 1) / 2 and (5 - 3) / 2; within the leaves: the mean of 2 and 0.
    np.testing.assert_allclose(deviation, [2.0, np.sqrt(1.0 + 1.0)])


def test_rows_unlike_the_samples_are_not_known() -> None:
    forest = stumps()
    assert forest.knows([[5.0, 0.0], [21.0, 0.0], [-1.0, 0.0], [5.0, -2.5]]).tolist() == [True, False, False, False]


def test_arrays_are_read_back() -> None:
    forest = stumps()
    again = Forest.from_arrays(forest.to_arrays(), 2)
    rows = [[3.0, 0.0], [9.0, 1.0]]
    for a, b in zip(forest.predict(rows), again.predict(rows), strict=True):
        np.testing.assert_allclose(a, b)


def _changed(name: str, values: list[float]) -> dict[str, npt.NDArray[np.float32]]:
    return {**stumps().to_arrays(), name: np.array(values, np.float32)}


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("left", [0, 1, 2, 3], "do not form trees"),  # a node that is its own child
        ("left", [1, 2, 2, 3], "do not form trees"),  # a leaf with a child
        ("right", [9, 1, 2, 3], "integers from 0 to 3"),
        ("right", [1.5, 1, 2, 3], "integers"),
        ("feature", [2, -1, -1, -1], "integers from -1 to 1"),
        ("roots", [4], "integers"),
        ("roots", [], "cannot have 0 trees"),
        ("mean", [0, 1], "2 entries instead of 4"),
        ("variance", [0, -1, 0, 0], "do not form trees"),
        ("low", [0], "made for 1 features"),
    ],
)
def test_damaged_arrays_are_refused(name: str, values: list[float], problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        Forest.from_arrays(_changed(name, values), 2)


def test_missing_and_unknown_arrays_are_refused() -> None:
    arrays = stumps().to_arrays()
    for wrong in ({k: v for k, v in arrays.items() if k != "mean"}, {**arrays, "more": arrays["mean"]}):
        with pytest.raises(PolicyError, match="weights must be the vectors"):
            Forest.from_arrays(wrong, 2)


def test_a_tree_finds_the_split_that_explains_the_targets() -> None:
    rows = np.array([[x, y] for x in (1, 2, 8, 16) for y in (0, 1)], FLOAT)
    targets = np.where(rows[:, 0] > 4, 1.0, -1.0)
    tree = grow_tree(rows, targets, np.ones(8), depth=3, least=2)
    assert tree.column == 0
    assert 2 < tree.threshold < 8
    assert [sorted(leaf.samples.tolist()) for leaf in leaves(tree)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_leaves_have_the_bounds_that_lead_to_them() -> None:
    rows = np.array([[x, y] for x in (1, 9) for y in (1, 9)] * 3, FLOAT)
    targets = rows[:, 0] * 10 + rows[:, 1]
    for leaf in leaves(grow_tree(rows, targets, np.ones(12), depth=2, least=2)):
        for column, at_most, bound in leaf.bounds:
            assert ((rows[leaf.samples, column] <= bound) == at_most).all()


def test_forests_are_reproducible_and_generalise() -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 100, (200, 3))
    targets = np.where(rows[:, 1] > 50, 0.5, -0.5)
    groups = [f"program {n // 4}" for n in range(200)]
    first, second = (grow_forest(rows, targets, np.ones(200), groups, 8, depth=4, least=4, seed=3) for _ in range(2))
    arrays = first.to_arrays(), second.to_arrays()
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in ("feature", "threshold", "mean"))
    mean, _ = first.predict([[50, 20, 50], [50, 80, 50]])
    assert mean[0] < -0.2 < 0.2 < mean[1]
    assert Forest.from_arrays(first.to_arrays(), 3).features == 3
    assert replace(first, low=first.low).features == 3


def test_features_that_few_groups_have_are_not_known() -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 2, (60, 3))
    groups = [f"program {n // 3}" for n in range(60)]
    rows[9:, 2] = 0  # three programs have it
    targets = np.where(rows[:, 1] > 1.5, 0.5, -0.5)
    few, enough = (grow_forest(rows, targets, np.ones(60), groups, 4, 4, 2, seed=0, seen=n) for n in (4, 3))
    with_it, without = [1.5, 1.2, 1.5], [1.5, 1.2, 0.0]
    assert few.knows([with_it, without]).tolist() == [False, True]
    assert enough.knows([with_it, without]).tolist() == [True, True]
