"""The model of what choices of kernels may gain: its inputs, files, training, and what a search makes of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from agents.kernel_arms import expected_gain, gain_belief
from compiler.errors import PolicyError
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.choice_gains import GAIN_INPUTS, ChoiceGains, gain_inputs, shipped_choice_gains
from compiler.learned.features.kernel_costs import COST_FEATURES
from compiler.learned.kernel_model import LearnedKernelCost, shipped_kernel_cost
from compiler.learned.policy_folder import WEIGHTS_FILE
from compiler.learned.tree_nodes import TreeNodes
from experiments.kernel_times.gains import share_found, write_gains
from experiments.kernel_times.matrices import TimesMatrix, joined
from experiments.kernel_times.training import GainOptions, gain_rows, train_gains
from tests.session.test_kernel_sites import TRANSPOSE, fused

WIDTH = len(COST_FEATURES)


def _costs() -> LearnedKernelCost:
    costs = shipped_kernel_cost()
    assert costs is not None
    return costs


def _one_split(column: int, bound: float, below: float, above: float) -> BoostedTrees:
    nodes = TreeNodes(
        np.array([0]), np.array([column, -1, -1]), np.array([bound, 0.0, 0.0]), np.array([1, 1, 2]), np.array([2, 1, 2])
    )
    return BoostedTrees(nodes, np.array([0.0, below, above]))


def test_inputs_are_the_kernel_the_change_and_the_predicted_gain() -> None:
    features = np.arange(3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
    rows = gain_inputs(features, np.array([-3.0, -3.5, -2.0]), np.array([0, 0, 1]))
    assert rows.shape == (3, len(GAIN_INPUTS))
    assert rows[:, :WIDTH].tolist() == features[[0, 0, 1]].tolist()
    assert rows[0, WIDTH:].tolist() == [0.0] * WIDTH + [0.0]
    assert rows[1, WIDTH:].tolist() == [float(WIDTH)] * WIDTH + [0.5]
    assert rows[2, -1] == -1.5


def test_no_mean_gain_is_negative(tmp_path: Path) -> None:
    model = ChoiceGains(_one_split(len(GAIN_INPUTS) - 1, 0.1, -0.02, 0.05), _costs().digest)
    rows = np.zeros((2, len(GAIN_INPUTS)), np.float32)
    rows[1, -1] = 0.2
    assert model.predict(rows).tolist() == pytest.approx([0.0, 0.05])
    model.save(tmp_path)
    assert ChoiceGains.load(tmp_path, _costs()).predict(rows) == pytest.approx(model.predict(rows))


def test_a_model_for_other_costs_or_with_other_weights_is_refused(tmp_path: Path) -> None:
    costs = _costs()
    ChoiceGains(_one_split(0, 0.1, 0.0, 0.05), costs.digest).save(tmp_path / "good")
    other = dataclasses.replace(costs, prices=costs.prices + 1)
    with pytest.raises(PolicyError, match="other features or costs"):
        ChoiceGains.load(tmp_path / "good", other)
    ChoiceGains(_one_split(len(GAIN_INPUTS), 0.1, 0.0, 0.05), costs.digest).save(tmp_path / "wide")
    with pytest.raises(PolicyError, match="cannot be used"):
        ChoiceGains.load(tmp_path / "wide", costs)
    (tmp_path / "good" / WEIGHTS_FILE).write_bytes(b"")
    with pytest.raises(PolicyError):
        ChoiceGains.load(tmp_path / "good", costs)


def test_the_model_that_ships_fits_the_cost_model_and_knows_all_neighbours() -> None:
    model, (site,) = shipped_choice_gains(), fused(TRANSPOSE).kernel_sites()
    assert model is not None
    choices = [site.default, *site.neighbours(site.default)]
    gains = model.of_choices(_costs(), site, choices)
    assert len(gains) == len(choices) - 1
    assert (gains >= 0).all()
    assert np.ptp(gains) > 0
    other = model.of_choices(_costs(), site, [choices[1], choices[0]])
    assert len(other) == 1


@pytest.mark.parametrize("mean", [0.0005, 0.01, 0.05, 0.3])
def test_a_belief_expects_the_mean_gain(mean: float) -> None:
    assert expected_gain(gain_belief(mean)) == pytest.approx(mean, rel=0.02)


def test_training_finds_the_change_that_gains() -> None:
    # Kernels of two choices each: the default, and one that changes a feature; every second one is 20 % faster.
    kernels, rng = 400, np.random.default_rng(0)
    features = np.repeat(rng.random((kernels, WIDTH)).astype(np.float32), 2, axis=0)
    column, helps = COST_FEATURES.index("field: unroll"), np.arange(kernels) % 2 == 0
    features[1::2, column] += np.where(helps, 1.0, -1.0)
    seconds = np.full((kernels, 2), 1e-5)
    seconds[:, 1] = np.where(helps, 0.8e-5, 2e-5)
    logs = np.log(seconds.ravel())
    data = TimesMatrix(
        features, logs, np.zeros(2 * kernels, np.float32), np.stack([logs, logs], axis=1),
        np.repeat(np.arange(kernels), 2), np.repeat(2 * np.arange(kernels), 2),
    )  # fmt: skip
    costs = _costs()
    model = train_gains(data, costs, GainOptions(trees=200, least=10, damping=1.0), {})
    inputs, gains = gain_rows(data, costs)
    assert gains[:2] == pytest.approx([np.log(1.25), 0.0])
    predicted = model.predict(inputs)
    assert predicted[helps].min() > 0.15
    assert predicted[~helps].max() < 0.05
    short = dataclasses.replace(data, log_seconds=logs - 10)
    with pytest.raises(ValueError, match="nothing to train on"):
        train_gains(short, costs, GainOptions(), {})


def test_the_share_of_the_gains_that_come_first() -> None:
    # By hand: of gains that add up to 4 the first half in order has 3.
    gains = np.array([1.0, -0.5, 3.5, 0.0])
    assert share_found(gains, np.array([1.0, 2.0, 3.0, 0.0]), 0.5) == pytest.approx(0.75)
    assert share_found(np.zeros(4), gains, 0.5) == 0.0


def _times(kernels: int, seconds: float) -> TimesMatrix:
    """Return kernels with two choices each, the second of which is a tenth faster."""
    count = 2 * kernels
    logs = np.log(seconds) - 0.1 * (np.arange(count) % 2)
    kernel = np.arange(count) // 2
    return TimesMatrix(
        np.random.default_rng(0).random((count, WIDTH), np.float32), logs, np.zeros(count, np.float32),
        np.stack([logs, logs], axis=1), kernel, 2 * kernel,
    )  # fmt: skip


def test_joined_datasets_keep_their_kernels_apart_and_their_gains() -> None:
    first, second = _times(2, 1e-5), _times(3, 1e-4)
    both = joined([first, second])
    assert both.kernel.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert both.default.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    gains = gain_rows(both, _costs())[1]
    assert (
        gains.tolist() == [*gain_rows(first, _costs())[1], *gain_rows(second, _costs())[1]] == pytest.approx([0.1] * 5)
    )


def test_the_page_has_the_shares_on_each_machine(tmp_path: Path) -> None:
    model = ChoiceGains(_one_split(0, 1e9, 0.0, 0.0), _costs().digest, {"rows": 7})
    machines = [({"machine": f"Processor {n}, 2 cores"}, _times(20, 1e-5)) for n in (1, 2)]
    page = write_gains(tmp_path / "page.md", "gains", machines, _costs(), model)
    for name in ("Processor 1", "Processor 2"):
        assert f"| {name} | of the gains | 5% | 10% | 20% | 30% | 50% | 100% |" in page
        assert f"- {name}: 20 choices, of which 100.0% are faster" in page
