"""Outputs are compared element by element, by the precision of their type and the effect of rounding."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from env.comparison import Spread, difference, find_difference, usual_deviation
from env.suites import ManifestError, Tolerance

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64]
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint8, np.bool_, ml_dtypes.int4])
def test_equal_values_pass_and_different_ones_fail(dtype: type) -> None:
    want: npt.NDArray[Any] = np.ones((3, 2), dtype)
    wrong = want.copy()
    wrong[2, 1] = 0
    assert difference([want], [want]) is None
    finding = difference([wrong], [want])
    assert finding is not None
    assert "[2, 1]" in finding


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_rounding_is_not_a_difference(dtype: type) -> None:
    want: npt.NDArray[Any] = np.linspace(1, 2, 50).astype(dtype)
    got = np.nextafter(want, dtype(3))
    assert difference([got], [want]) is None


def test_nan_and_infinity_must_be_at_the_same_positions() -> None:
    want = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert difference([want], [want]) is None
    for i, value in enumerate((1, 1, 1, np.nan)):
        wrong = want.copy()
        wrong[i] = value
        assert difference([wrong], [want]) is not None
    assert difference([-want], [want]) is not None


def test_shapes_types_and_counts_matter() -> None:
    a = np.ones(3, np.float32)
    assert difference([a], [a, a]) is not None
    assert difference([a.reshape(1, 3)], [a]) is not None
    assert difference([a.astype(np.float64)], [a]) is not None


# ---- no element hides another


def test_a_gradient_of_zeros_is_wrong_beside_a_few_large_elements() -> None:
    want = RNG.normal(0, 1e-6, 3000).astype(np.float32)
    want[::300] = 1.0
    got = np.where(want == 1.0, want, np.float32(0))
    finding = difference([got], [want])
    assert finding is not None
    assert finding.startswith("output 0: 2990 of 3000")


@pytest.mark.parametrize("masked", [0.5, 0.95])
def test_masked_elements_do_not_hide_differences(masked: float) -> None:
    want = RNG.normal(size=(64, 64)).astype(np.float32)
    want[RNG.random(want.shape) < masked] = -1e9
    got = want.copy()
    at = np.flatnonzero(want != -1e9)[17]
    got.reshape(-1)[at] *= 1.001
    assert difference([want.copy()], [want]) is None
    finding = find_difference([got], [want])
    assert finding is not None
    assert finding.elements == 1


@pytest.mark.parametrize("size", [1e-6, 1e-12, 1e-30])
def test_small_numbers_differ_from_zero(size: float) -> None:
    want = RNG.normal(0, size, 50).astype(np.float32)
    assert difference([np.zeros_like(want)], [want]) is not None


def test_numbers_flushed_to_zero_are_right() -> None:
    want = np.array([1e-40, 1.0], np.float32)
    assert difference([np.array([0.0, 1.0], np.float32)], [want]) is None


def test_a_narrow_computation_of_a_wide_result_is_wrong() -> None:
    want = RNG.normal(size=100).astype(np.float32)
    assert difference([want.astype(ml_dtypes.bfloat16).astype(np.float32)], [want]) is not None
    assert difference([want.astype(np.float16).astype(np.float32)], [want]) is not None
    wide = RNG.normal(size=100)
    assert difference([wide.astype(np.float32).astype(np.float64)], [wide]) is not None


def test_the_parts_of_a_complex_number_are_compared_separately() -> None:
    want = np.array([1e6 + 1j, 2 + 3e-5j], np.complex64)
    for wrong in (np.array([1e6 + 1.01j, 2 + 3e-5j]), np.array([1e6 + 1j, 2 + 0j])):
        assert difference([wrong.astype(np.complex64)], [want]) is not None
    assert difference([np.nextafter(want.view(np.float32), np.float32(9)).view(np.complex64)], [want]) is None


def test_large_integers_must_be_equal_in_every_digit() -> None:
    want = np.array([2**62 + 1], np.int64)
    assert difference([want], [want]) is None
    assert difference([want - 1], [want]) is not None


# ---- tolerances of manifests


def test_each_output_has_its_own_absolute_part() -> None:
    want = np.array([0.0, 1e-3], np.float32)
    got = np.array([5e-4, 1e-3], np.float32)
    assert difference([got, want], [want, want], Tolerance(atol=(1e-3, 0.0))) is None
    finding = difference([want, got], [want, want], Tolerance(atol=(1e-3, 0.0)))
    assert finding is not None
    assert finding.startswith("output 1")
    assert difference([want, got], [want, want], Tolerance(atol=1e-3)) is None
    with pytest.raises(ManifestError, match="2 values of atol for 1 outputs"):
        difference([want], [want], Tolerance(atol=(1e-3, 0.0)))


def test_missing_parts_of_a_tolerance_follow_from_the_type() -> None:
    want = np.array([1.0, 1e-3], np.float32)
    assert difference([want * np.float32(1.05)], [want], Tolerance(rtol=0.1)) is None
    assert difference([want * np.float32(1.05)], [want], Tolerance(mismatch_fraction=0.4)) is not None


def test_a_fraction_of_mismatches_may_be_allowed() -> None:
    want = np.zeros(100, np.float32)
    got = want.copy()
    got[[3, 60]] = 5
    assert difference([got], [want], Tolerance(1e-4, 1e-4, 0.02)) is None
    assert difference([got], [want], Tolerance(1e-4, 1e-4, 0.01)) is not None


def test_mismatches_are_counted_output_by_output() -> None:
    large, scalar = np.zeros(1000, np.float32), np.zeros((), np.float32)
    assert difference([large, scalar + 1], [large, scalar], Tolerance(mismatch_fraction=0.5)) is not None
    assert difference([large, large[:1] + 1], [large, large[:1]], Tolerance(mismatch_fraction=0.5)) is not None


def test_a_wrong_region_does_not_count_as_scattered_mismatches() -> None:
    want = np.zeros((2000, 4), np.float32)
    loose = Tolerance(mismatch_fraction=0.01)
    scattered, tile = want.copy(), want.copy()
    scattered[[5, 700, 701, 1500]] = 1  # whole rows: environments that went another way
    tile[-8:] = 1
    assert difference([scattered], [want], loose) is None
    assert difference([tile], [want], loose) is not None
    assert difference([want + 1], [want], Tolerance(mismatch_fraction=1.0)) is not None


# ---- spreads


def spread_of(deviation: npt.ArrayLike, want: npt.NDArray[Any], unsettled: npt.ArrayLike = False) -> list[Spread]:
    wide = np.asarray(deviation, np.float64)
    return [Spread.of(wide, np.broadcast_to(np.asarray(unsettled), wide.shape), want)]


def test_a_spread_allows_differences_only_at_its_own_elements() -> None:
    want = np.array([1.0, 1.0, 1.0], np.float32)
    spread = spread_of([0.0, 0.1, 0.0], want)
    assert find_difference([np.array([1, 1.1, 1], np.float32)], [want], None, spread) is None
    assert find_difference([np.array([1.1, 1, 1], np.float32)], [want], None, spread) is not None


def test_the_deviation_of_similar_elements_counts_for_one_that_hardly_moved() -> None:
    want = np.linspace(1.0, 1.9, 40).astype(np.float32)
    deviation = np.full(40, 0.1)
    deviation[7] = 0.0
    got = want.copy()
    got[7] += np.float32(0.1)
    assert find_difference([got], [want], None, spread_of(deviation, want)) is None


def test_only_elements_of_similar_magnitude_share_their_deviation() -> None:
    size = np.concatenate([np.full(200, 1e9), np.full(20, 1.0), np.full(20, 0.0), [np.inf] * 20])
    deviation = np.concatenate([np.full(200, 64.0), np.full(20, 1e-6), np.zeros(40)])
    usual = usual_deviation(deviation, size)
    assert set(usual[:200]) == {64.0}
    assert set(usual[200:220]) == {1e-6}
    assert set(usual[220:]) == {0.0}


def test_integers_may_differ_only_as_far_as_rounding_moves_them() -> None:
    want = np.array([3, 3, 3], np.int32)
    spread = spread_of([0.0, 1.0, 0.0], want)
    assert find_difference([np.array([3, 4, 3], np.int32)], [want], None, spread) is None
    assert find_difference([np.array([3, 5, 3], np.int32)], [want], None, spread) is not None
    assert find_difference([np.array([4, 3, 3], np.int32)], [want], None, spread) is not None


def test_both_are_right_if_rounding_decides_whether_a_number_is_finite() -> None:
    want = np.array([1.0, np.nan, 1.0], np.float32)
    spread = spread_of([0.0, 0.0, 0.0], want, [True, True, False])
    assert find_difference([np.array([np.nan, 5.0, 1.0], np.float32)], [want], None, spread) is None
    assert find_difference([np.array([2.0, np.nan, 1.0], np.float32)], [want], None, spread) is not None
    assert find_difference([np.array([1.0, np.nan, np.nan], np.float32)], [want], None, spread) is not None
