"""Intervals have the coverage they promise."""

import numpy as np
import pytest

from env.statistics import Interval, geometric_mean, median_interval, ratio_interval, share_slower


def test_median_interval_has_the_promised_coverage() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(500):
        i = median_interval(rng.exponential(size=15).tolist())
        hits += i.low <= np.log(2) <= i.high
    assert hits / 500 >= 0.93


def test_median_interval_of_few_samples_is_their_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0)


def test_ratio_interval_cancels_common_slowdowns() -> None:
    rng = np.random.default_rng(1)
    load = rng.uniform(1, 5, 25)
    ratio = ratio_interval((2 * load).tolist(), load.tolist())
    assert ratio.value == pytest.approx(2)
    assert ratio.high - ratio.low < 1e-9


def test_the_same_samples_give_the_same_interval() -> None:
    samples = np.random.default_rng(2).uniform(1, 2, 20).tolist()
    assert ratio_interval(samples, samples[::-1]) == ratio_interval(samples, samples[::-1])


def test_geometric_mean_of_reciprocal_speedups_is_one() -> None:
    mean = geometric_mean([2.0, 0.5])
    assert mean.value == pytest.approx(1)
    assert mean.low <= 1 <= mean.high


def test_share_slower_counts_whole_intervals() -> None:
    assert share_slower([Interval(0.9, 0.8, 0.95), Interval(0.99, 0.9, 1.1), Interval(2, 1.9, 2.1)]) == pytest.approx(
        1 / 3
    )


@pytest.mark.parametrize("function", [median_interval, geometric_mean])
def test_no_samples_raise(function: object) -> None:
    assert callable(function)
    with pytest.raises(ValueError, match=r"no samples|positive"):
        function([])


def test_the_mean_of_one_value_has_no_bounds() -> None:
    mean = geometric_mean([1.5])
    assert mean.value == 1.5
    assert not mean.is_known
    assert mean.to_json() == [1.5, None, None]
    assert geometric_mean([1.5, 2.0]).is_known
