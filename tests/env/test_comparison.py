"""Outputs are compared by what their type can hold."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from env.comparison import difference
from env.suites import Tolerance

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64]


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint8, np.bool_, ml_dtypes.int4])
def test_equal_is_equal_and_another_value_is_not(dtype: type) -> None:
    want: npt.NDArray[Any] = np.ones((3, 2), dtype)
    wrong = want.copy()
    wrong[2, 1] = 0
    assert difference([want], [want]) is None
    finding = difference([wrong], [want])
    assert finding is not None
    assert "[2, 1]" in finding


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounding_is_no_difference(dtype: type) -> None:
    want: npt.NDArray[Any] = np.linspace(1, 2, 50).astype(dtype)
    got = np.nextafter(want, dtype(3))
    assert difference([got], [want]) is None


def test_nan_and_infinity_must_stand_in_the_same_places() -> None:
    want = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert difference([want], [want]) is None
    for i in range(3):
        wrong = want.copy()
        wrong[i] = 1
        assert difference([wrong], [want]) is not None


def test_shapes_types_and_counts_matter() -> None:
    a = np.ones(3, np.float32)
    assert difference([a], [a, a]) is not None
    assert difference([a.reshape(1, 3)], [a]) is not None
    assert difference([a.astype(np.float64)], [a]) is not None


def test_a_fraction_of_mismatches_may_be_allowed() -> None:
    want = np.zeros(100, np.float32)
    got = want.copy()
    got[:2] = 5
    assert difference([got], [want], Tolerance(1e-4, 1e-4, 0.02)) is None
    assert difference([got], [want], Tolerance(1e-4, 1e-4, 0.01)) is not None
