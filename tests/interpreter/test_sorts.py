"""Sorts in the interpreter whose comparators are no orders."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.text import parse

SORT = """HloModule m
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}
ENTRY e {
  x = f32[4,65] parameter(0)
  i = s32[4,65] iota(), iota_dimension=1
  ROOT r = (f32[4,65], s32[4,65]) sort(x, i), dimensions={1}, is_stable=true, to_apply=less
}"""


@pytest.mark.parametrize("seed", range(5))
def test_a_comparator_that_contradicts_itself_gives_a_permutation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 65)).astype(np.float32)
    x[:3] = np.where(rng.random((3, 65)) < 0.3, np.float32(np.nan), x[:3])  # NaN is neither less nor greater
    values, order = evaluate(parse(SORT), [x])
    np.testing.assert_array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(65), (4, 65)))
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(values[3], np.sort(x[3]))
