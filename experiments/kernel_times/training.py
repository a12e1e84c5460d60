"""Training of the cost model of kernels, and of what choices may gain, on measured times, by LightGBM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.choice_gains import ChoiceGains, gain_inputs
from compiler.learned.kernel_model import LearnedKernelCost, model_inputs, priced_amounts
from compiler.learned.tree_nodes import TreeNodes
from experiments.kernel_times.matrices import TimesMatrix

__all__ = ["GainOptions", "TrainingOptions", "fit_prices", "fitted_gains", "gain_rows", "train", "train_gains"]

NOISE = 0.05
"""Noise of a time that halves its weight."""
LEAST_SECONDS = 1e-6
"""Time of a default from which its choices say what they gain: the clock resolves those of shorter kernels badly."""
LARGEST_GAIN = 0.3
"""Log of a gain up to which it counts, so that a few kernels with a fault do not decide."""
LEAST_GAIN = 0.01
"""Log of a gain from which a search takes a choice."""
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BoostingOptions:
    """The hyperparameters of boosted trees.

    Attributes:
        trees: their number.
        leaves: most leaves of a tree.
        least: least number of rows in a leaf.
        learning_rate: share of its error that a tree corrects.
        columns: share of the inputs that a tree looks at.
        rows: share of the rows that a tree sees.
        seed: of all draws.
    """

    trees: int = 1000
    leaves: int = 31
    least: int = 5
    learning_rate: float = 0.05
    columns: float = 0.3
    rows: float = 0.7
    seed: int = 0

    def parameters(self, seed: int) -> dict[str, Any]:
        """Return the parameters of LightGBM, with which equal seeds give equal trees."""
        return {
            "learning_rate": self.learning_rate, "num_leaves": self.leaves, "min_data_in_leaf": self.least,
            "feature_fraction": self.columns, "bagging_fraction": self.rows, "bagging_freq": 1, "seed": seed,
            "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1,
        }  # fmt: skip


@dataclass(frozen=True)
class TrainingOptions(BoostingOptions):
    """The hyperparameters of the cost model, whose rows are times.

    Attributes:
        members: number of members of the ensemble.
        depth: most nodes above a leaf.
        sampled: share of the kernels that a member sees.
    """

    members: int = 3
    depth: int = 10
    sampled: float = 0.85


@dataclass(frozen=True)
class GainOptions(BoostingOptions):
    """The hyperparameters of the model of gains, whose rows are choices.

    Attributes:
        damping: weight of the square of a leaf's value.
    """

    trees: int = 600
    least: int = 60
    learning_rate: float = 0.03
    damping: float = 20.0


def train(
    data: TimesMatrix, options: TrainingOptions, provenance: Mapping[str, Any], threads: int = 1
) -> LearnedKernelCost:
    """Return a model trained on all rows.

    Raises:
        ValueError: there are no rows.
    """
    if not len(data.log_seconds):
        raise ValueError("there is nothing to train on")
    prices = fit_prices(data)
    linear, inputs = model_inputs(data.features, prices)
    members = tuple(_member(data, inputs, linear, options, options.seed + m) for m in range(options.members))
    varied = (np.ptp(data.features, axis=0) > 0).astype(np.float32)
    facts = {**provenance, "rows": len(data.log_seconds), "options": asdict(options)}
    return LearnedKernelCost(prices, varied, members, threads, facts)


def gain_rows(data: TimesMatrix, costs: LearnedKernelCost) -> tuple[Floats, Doubles]:
    """Return the inputs of the model of gains for the choices of kernels that are long enough, and what they gain.

    A gain is the logarithm of the time of the default over that of the choice, and counts if the choice is taken: if
    it exceeds `LEAST_GAIN`. It is taken by one half of the measurements and valued by the other, both ways, and the
    mean counts, so that the luck of the measurement by which it is taken is no gain.
    """
    kept = (np.arange(len(data.default)) != data.default) & (data.log_seconds[data.default] >= np.log(LEAST_SECONDS))
    inputs = gain_inputs(data.features, costs.log_seconds(data.features).mean(0), data.default)
    halves = (data.halves[data.default] - data.halves)[kept]
    return inputs[kept], np.where(halves > LEAST_GAIN, halves[:, ::-1], 0.0).mean(1)


def train_gains(
    data: TimesMatrix, costs: LearnedKernelCost, options: GainOptions, provenance: Mapping[str, Any]
) -> ChoiceGains:
    """Return a model of what choices gain, trained on all rows.

    Raises:
        ValueError: there are no rows.
    """
    inputs, gains = gain_rows(data, costs)
    if not len(gains):
        raise ValueError("there is nothing to train on")
    trees = fitted_gains(inputs, gains, options)
    facts = {**provenance, "rows": len(gains), "options": asdict(options)}
    return ChoiceGains(trees, costs.digest, facts)


def fitted_gains(inputs: Floats, gains: Doubles, options: GainOptions) -> BoostedTrees:
    """Return trees that predict gains from their inputs."""
    import lightgbm

    parameters = {**options.parameters(options.seed), "objective": "regression", "lambda_l2": options.damping}
    rows = lightgbm.Dataset(inputs, np.clip(gains, -LARGEST_GAIN, LARGEST_GAIN))
    return _trees_of(lightgbm.train(parameters, rows, options.trees).dump_model())


def fit_prices(data: TimesMatrix) -> Floats:
    """Return the prices of the linear part that minimize the squared relative error; none is negative."""
    from scipy.optimize import nnls

    seconds = np.exp(data.log_seconds)
    amounts = priced_amounts(data.features)
    largest = np.maximum((amounts / seconds[:, None]).max(0), 1e-30)  # columns of like size, for the solver
    found, _ = nnls(amounts / seconds[:, None] / largest, np.ones(len(seconds)), maxiter=20 * amounts.shape[1])
    return np.asarray(found / largest, np.float32)


def _member(data: TimesMatrix, inputs: Floats, linear: Doubles, options: TrainingOptions, seed: int) -> BoostedTrees:
    """Return boosted trees for the error of the linear part, trained on a sample of the kernels."""
    import lightgbm

    rng = np.random.default_rng(seed)
    kernels = np.unique(data.kernel)
    seen = np.isin(data.kernel, kernels[rng.random(len(kernels)) < options.sampled] if len(kernels) > 4 else kernels)
    parameters = {**options.parameters(seed), "objective": "regression_l1", "max_depth": options.depth}
    weight = 1.0 / (1.0 + (data.noise[seen] / NOISE) ** 2)
    rows = lightgbm.Dataset(inputs[seen], (data.log_seconds - linear)[seen], weight=weight)
    return _trees_of(lightgbm.train(parameters, rows, options.trees).dump_model())


def _trees_of(dumped: Mapping[str, Any]) -> BoostedTrees:
    """Return the trees of a model as LightGBM describes it."""
    nodes: list[list[float]] = []

    def place(node: Mapping[str, Any]) -> int:
        at = len(nodes)
        nodes.append([-1, 0.0, at, at, float(node.get("leaf_value", 0.0))])
        if "split_feature" in node:
            left, right = place(node["left_child"]), place(node["right_child"])
            nodes[at] = [int(node["split_feature"]), _rounded_down(float(node["threshold"])), left, right, 0.0]
        return at

    roots = [place(tree["tree_structure"]) for tree in dumped["tree_info"]]
    feature, threshold, left, right, value = np.array(nodes, np.float64).T
    found = TreeNodes(
        np.array(roots, np.int64), feature.astype(np.int64), threshold, left.astype(np.int64), right.astype(np.int64)
    )
    return BoostedTrees(found, value.astype(np.float32).astype(np.float64))


def _rounded_down(threshold: float) -> float:
    """Return the greatest float32 that is not above a threshold: inputs are float32, so that it separates the same."""
    near = np.float32(threshold)
    return float(near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf)))
