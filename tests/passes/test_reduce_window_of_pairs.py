"""Windows reduced by more than one op, such as to a maximum and its index, become slices that have kernels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes import make_pass
from compiler.text import parse

Array = npt.NDArray[Any]
TEXT = """
HloModule m

%larger (a: f32[], i: s32[], b: f32[], j: s32[]) -> (f32[], s32[]) {{
  %a = f32[] parameter(0)
  %i = s32[] parameter(1)
  %b = f32[] parameter(2)
  %j = s32[] parameter(3)
  %keep = pred[] compare(%a, %b), direction=GE
  %x = f32[] select(%keep, %a, %b)
  %k = s32[] select(%keep, %i, %j)
  ROOT %t = (f32[], s32[]) tuple(%x, %k)
}}

ENTRY %main (x: f32[6,7]) -> (f32[{rows},{columns}], s32[{rows},{columns}]) {{
  %x = f32[6,7] parameter(0)
  %i = s32[42] iota(), iota_dimension=0
  %n = s32[6,7] reshape(%i)
  %least = f32[] constant(-inf)
  %none = s32[] constant(-1)
  ROOT %w = (f32[{rows},{columns}], s32[{rows},{columns}]) reduce-window(%x, %n, %least, %none),
    window={{size={size}x{size} stride={stride}x{stride} pad={pad}_{pad}x{pad}_{pad}}}, to_apply=%larger
}}
"""


def maxima(x: Array, size: int, stride: int, pad: int) -> tuple[Array, Array]:
    """Return the maximum of each window and its position, the first of equal ones; no position is -1."""
    rows, columns = ((n + 2 * pad - size) // stride + 1 for n in x.shape)
    best, where = np.full((rows, columns), -np.inf, np.float32), np.full((rows, columns), -1, np.int32)
    for r, c, k, m in itertools.product(range(rows), range(columns), range(size), range(size)):
        i, j = r * stride + k - pad, c * stride + m - pad
        if 0 <= i < x.shape[0] and 0 <= j < x.shape[1] and x[i, j] > best[r, c]:
            best[r, c], where[r, c] = x[i, j], i * x.shape[1] + j
    return best, where


@pytest.mark.parametrize(("size", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (2, 1, 0), (3, 1, 1)])
def test_maxima_and_their_indices(size: int, stride: int, pad: int) -> None:
    x = np.random.default_rng(3).standard_normal((6, 7)).astype(np.float32)
    best, where = maxima(x, size, stride, pad)
    rows, columns = best.shape
    module = parse(TEXT.format(rows=rows, columns=columns, size=size, stride=stride, pad=pad))
    assert make_pass("reduce-window-to-slices").run(module)
    assert check_module(module) == []
    assert all(i.opcode is not Opcode.REDUCE_WINDOW for i in module.entry.instructions)
    found = evaluate(module, [x])
    np.testing.assert_array_equal(found[0], best)
    np.testing.assert_array_equal(found[1], where)


@pytest.mark.parametrize(("limits", "expanded"), [("max_ops=71", False), ("max_ops=72", True), ("max_parts=8", False)])
def test_the_number_of_ops_is_limited(limits: str, expanded: bool) -> None:
    module = parse(TEXT.format(rows=6, columns=7, size=3, stride=1, pad=1))  # nine times eight instructions
    assert make_pass(f"reduce-window-to-slices{{{limits}}}").run(module) == expanded
