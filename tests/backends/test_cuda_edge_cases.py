"""Programs at the edges of what is defined, compiled for a GPU and run on the stand-in, against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from compiler import compile
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.text import parse

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")
NAN, INF, LARGEST, SMALLEST = np.nan, np.inf, 2**31 - 1, -(2**31)
RNG = np.random.default_rng
ARGMAX = """HloModule m
greater {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  above = pred[] compare(a, b), direction=GT
  nan = pred[] compare(a, a), direction=NE
  first = pred[] or(above, nan)
  same = pred[] compare(a, b), direction=EQ
  before = pred[] compare(i, j), direction=LT
  tie = pred[] and(same, before)
  kept = pred[] or(first, tie)
  v = f32[] select(first, a, b)
  k = s32[] select(kept, i, j)
  ROOT r = (f32[], s32[]) tuple(v, k)
}
ENTRY e {
  x = f32[4,1021] parameter(0)
  i = s32[4,1021] iota(), iota_dimension=1
  least = f32[] constant(-inf)
  zero = s32[] constant(0)
  ROOT r = (f32[4], s32[4]) reduce(x, i, least, zero), dimensions={1}, to_apply=greater
}"""
ARGMAX_OF_BYTES = (
    ARGMAX.replace("f32[4,1021]", "s8[4,121]").replace("s32[4,1021]", "s32[4,121]").replace("-inf", "-128")
)
ARGMAX_OF_BYTES = ARGMAX_OF_BYTES.replace("f32", "s8")
REPLACING = """HloModule m
second {
  a = s8[] parameter(0)
  ROOT b = s8[] parameter(1)
}
ENTRY e {
  x = s8[5,7] parameter(0)
  i = s32[51,1] parameter(1)
  u = s8[51,7] parameter(2)
  ROOT r = s8[5,7] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second
}"""
EMPTY = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
ENTRY e {
  x = f32[0,5] parameter(0)
  y = f32[7,0] parameter(1)
  three = f32[] constant(3)
  sums = f32[5] reduce(x, three), dimensions={0}, to_apply=add
  none = f32[0,5] tanh(x)
  product = f32[7,5] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f32[5], f32[0,5], f32[7,5]) tuple(sums, none, product)
}"""
SHIFTS = """HloModule m
ENTRY e {
  x = s8[77] parameter(0)
  y = s8[77] parameter(1)
  left = s8[77] shift-left(x, y)
  right = s8[77] shift-right-arithmetic(x, y)
  logical = s8[77] shift-right-logical(x, y)
  quotient = s8[77] divide(x, y)
  rest = s8[77] remainder(x, y)
  ROOT r = (s8[77], s8[77], s8[77], s8[77], s8[77]) tuple(left, right, logical, quotient, rest)
}"""
OUT_OF_BOUNDS = """HloModule m
ENTRY e {
  x = f32[13,7] parameter(0)
  i = s32[8] parameter(1)
  ROOT r = f32[8,3] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1,3}
}"""
SWAPPED = """HloModule m, input_output_alias={ {0}: (1, {}, may-alias), {1}: (0, {}, may-alias) }
ENTRY e {
  x = f32[33,33] parameter(0)
  y = f32[33,33] parameter(1)
  across = f32[33,33] transpose(x), dimensions={1,0}
  back = f32[33,33] reverse(y), dimensions={1}
  ROOT r = (f32[33,33], f32[33,33]) tuple(back, across)
}"""


def _with_nan() -> npt.NDArray[np.float32]:
    x = RNG(0).integers(-9, 9, (4, 1021)).astype(np.float32)  # with many ties
    x[1, [700, 44]] = NAN
    x[2] = -INF
    return x


ARGUMENTS: Mapping[str, tuple[str, list[npt.NDArray[np.generic]]]] = {
    "an argmax of ties, NaN and infinities": (ARGMAX, [_with_nan()]),
    "an argmax of bytes with ties": (ARGMAX_OF_BYTES, [RNG(5).integers(-128, -120, (4, 121)).astype(np.int8)]),
    "updates that replace each other or are outside": (
        REPLACING,
        [
            np.zeros((5, 7), np.int8),
            np.append(RNG(1).integers(-2, 7, 49), [LARGEST, SMALLEST]).reshape(51, 1).astype(np.int32),
            RNG(2).integers(-50, 50, (51, 7)).astype(np.int8),
        ],
    ),
    "arrays without elements": (EMPTY, [np.zeros((0, 5), np.float32), np.zeros((7, 0), np.float32)]),
    "shifts by more than the width, and divisions by zero": (
        SHIFTS,
        [np.arange(-38, 39).astype(np.int8), np.tile([0, -1, 7, 8, 9, -128, 127], 11).astype(np.int8)],
    ),
    "a gather out of bounds": (
        OUT_OF_BOUNDS,
        [
            RNG(3).normal(size=(13, 7)).astype(np.float32),
            np.array([-1, -100, 12, 13, LARGEST, SMALLEST, 0, 5], np.int32),
        ],
    ),
    "outputs in the buffers of each other's arguments": (SWAPPED, list(RNG(4).normal(size=(2, 33, 33)).astype("f4"))),
}


@needs_emulator
@pytest.mark.parametrize("name", ARGUMENTS)
def test_edge_cases_match_the_interpreter(name: str) -> None:
    text, args = ARGUMENTS[name]
    wanted = evaluate(parse(text), [a.copy() for a in args])
    with stand_in.installed():
        got = [r.get() for r in compile(text, backend="cuda")(*args)]
    for result, expected in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)
