"""Summaries of paired speedups: values by hand, coverage by simulation."""

import math

import numpy as np
import pytest

from env.summaries import (
    hierarchical_interval,
    paired_ratios,
    performance_profile,
    probability_of_improvement,
    rank_correlation,
    summarise,
)

FOUR = {"a": [[2.0]], "b": [[0.5]], "c": [[1.0]], "d": [[1.005]]}


def test_ratios_are_paired_by_round() -> None:
    assert paired_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        paired_ratios([1.0, 2.0], [1.0])


def test_a_summary_by_hand() -> None:
    found = summarise(FOUR)
    assert found.mean.value == pytest.approx(1.005**0.25)
    assert found.median.value == pytest.approx(math.sqrt(1.005))
    assert [found.worst, found.best] == pytest.approx([0.5, 2.0])
    assert (found.slower, found.faster, found.programs) == (0.25, 0.25, 4)  # 1.005 is within the noise floor
    assert found.mean.low < 1 < found.mean.high


def test_the_value_is_the_mean_over_seeds_of_the_median_over_rounds() -> None:
    found = hierarchical_interval({"a": [[1.0, 2.0, 100.0], [8.0]]})
    assert found.value == pytest.approx(4.0)
    assert found.low <= 4.0 <= found.high


def test_one_sample_has_no_bounds_and_no_sample_is_an_error() -> None:
    assert not hierarchical_interval({"a": [[1.5]]}).is_known
    damaged: list[dict[str, list[list[float]]]] = [{}, {"a": []}, {"a": [[]]}, {"a": [[0.0]]}, {"a": [[-1.0]]}]
    for bad in damaged:
        with pytest.raises(ValueError, match="positive speedups"):
            hierarchical_interval(bad)


def test_the_interval_covers_other_programs_seeds_and_rounds() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        speedups = {
            f"{p}": [np.exp(rng.normal(level, 0.05) + rng.normal(0, 0.1, 7)).tolist() for _ in range(2)]
            for p, level in enumerate(rng.normal(0.1, 0.2, 25))
        }
        found = hierarchical_interval(speedups, seed=trial, resamples=400)
        hits += found.low <= math.exp(0.1) <= found.high
    assert hits / 200 >= 0.9


def test_a_profile_by_hand() -> None:
    shares = performance_profile(FOUR, [0.4, 0.9, 1.5, 3.0])
    assert [s.value for s in shares] == pytest.approx([1.0, 0.75, 0.25, 0.0])
    assert all(0 <= s.low <= s.high <= 1 for s in shares)


def test_a_probability_of_improvement_by_hand() -> None:
    # a: 2 and 3 against 1 and 2: wins 3 of 4, one tie. b: one tie. c is not shared.
    found = probability_of_improvement(
        {"a": [[2.0, 3.0]], "b": [[1.0]], "c": [[1.0]]}, {"a": [[1.0], [2.0]], "b": [[1.0]]}
    )
    assert found.value == pytest.approx((0.875 + 0.5) / 2)
    with pytest.raises(ValueError, match="same programs"):
        probability_of_improvement({"a": [[1.0]]}, {"b": [[1.0]]})


def test_rank_correlations_by_hand() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2, 2, 4], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))  # ranks 1 2.5 2.5 4
    assert math.isnan(rank_correlation([1, 1], [1, 2]))
    with pytest.raises(ValueError, match="same length"):
        rank_correlation([1], [1])
