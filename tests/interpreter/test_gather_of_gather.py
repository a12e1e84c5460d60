import numpy as np

from compiler.interpreter import evaluate
from compiler.text import parse
from tests.oracle import run_xla

TEXT = """HloModule m
ENTRY e {
  p = f32[4,2,5] parameter(0)
  c = s32[1] constant({3})
  g = f32[3,1,5] gather(p, c), offset_dims={0,2}, collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=1,
    slice_sizes={3,1,5}
  ROOT h = f32[1,1,5] gather(g, c), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,1,5}
}
"""


def test_the_inner_start_is_clamped_to_the_inner_gather() -> None:
    x = np.arange(40, dtype=np.float32).reshape(4, 2, 5)
    # By hand: index 3 is clamped to 1 in a dimension of 2, then to 2 in one of 3.
    (found,) = evaluate(parse(TEXT), [x])
    np.testing.assert_array_equal(np.asarray(found)[0, 0], x[2, 1])


def test_xla_still_loses_that_clamping() -> None:
    """If this fails, jaxlib has fixed the bug, and the entry in tests/fuzz/compare_modules.py can be removed."""
    x = np.arange(40, dtype=np.float32).reshape(4, 2, 5)
    (found,) = run_xla(TEXT, [x])
    np.testing.assert_array_equal(found[0, 0], x[3, 1])
