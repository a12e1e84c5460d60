"""Tests in vector loops that hold for one element, whose bounds the C compiler does not know."""

from __future__ import annotations

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

ROLLED = """
    x = f32[9,{m}] parameter(0)
    w = f32[9,{m}] parameter(1)
    p = f32[9,{m}] multiply(x, w)
    last = f32[9,{k}] slice(p), slice={{[0:9], [{start}:{m}]}}
    rest = f32[9,{start}] slice(p), slice={{[0:9], [0:{start}]}}
    rolled = f32[9,{m}] concatenate(last, rest), dimensions={{1}}
    y = f32[9,{m}] multiply(x, rolled)
    ROOT r = f32[9,{m}] subtract(y, x)
"""
MINIMUM = """
min_f32 {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] minimum(x, y)
}
"""


@pytest.mark.parametrize("m", [2, 3, 12, 40])
@pytest.mark.parametrize("k, hidden", [(1, True), (2, False)])
def test_bounds_of_single_elements_are_hidden(m: int, k: int, hidden: bool) -> None:
    if k >= m - 1:
        k, hidden = 1, True
    source = checked(ROLLED.format(m=m, k=k, start=m - k), Schedule(threads=0, edges=0, stages=0, tile=0, short=0))
    assert ("hlogym_opaque(0LL)" in source) == hidden


@pytest.mark.parametrize("m", [12, 16, 192])
def test_choices_between_two_elements_of_a_loop_of_vectors(m: int) -> None:
    text = ROLLED.format(m=m, k=1, start=m - 1).replace("slice(p)", "slice(x)")
    source = checked(text, Schedule(threads=0, edges=0, stages=0, tile=0, short=0))
    assert "hlogym_opaque(0LL)" in source


@pytest.mark.parametrize("m", [40, 320, 333])
@pytest.mark.parametrize("columns", [16, 64, 256])
def test_minima_of_rolled_columns(m: int, columns: int) -> None:
    text = f"""
    x = f32[9,{m}] parameter(0)
    first = f32[9,1] slice(x), slice={{[0:9], [0:1]}}
    rest = f32[9,{m - 1}] slice(x), slice={{[0:9], [1:{m}]}}
    rolled = f32[9,{m}] concatenate(rest, first), dimensions={{1}}
    y = f32[9,{m}] multiply(x, rolled)
    most = f32[] constant(inf)
    ROOT r = f32[{m}] reduce(y, most), dimensions={{0}}, to_apply=min_f32
    """
    checked(text, Schedule(threads=0, columns=columns), MINIMUM)


@pytest.mark.parametrize("columns", [2, 3, 5, 8])
@pytest.mark.parametrize("rows", [8, 40, 100])
def test_sums_beside_products_behind_a_known_test(rows: int, columns: int) -> None:
    shape, rest = f"f32[{rows},{columns}]", f"f32[{rows - 1},{columns}]"
    text = f"""
    x = {shape} parameter(0)
    first = f32[1,{columns}] slice(x), slice={{[0:1], [0:{columns}]}}
    two = f32[] constant(2)
    twos = f32[1,{columns}] broadcast(two), dimensions={{}}
    twice = f32[1,{columns}] multiply(first, twos)
    upper = {rest} slice(x), slice={{[0:{rows - 1}], [0:{columns}]}}
    lower = {rest} slice(x), slice={{[1:{rows}], [0:{columns}]}}
    steps = {rest} subtract(lower, upper)
    c = {shape} concatenate(twice, steps), dimensions={{0}}
    rolled = {shape} concatenate(lower, first), dimensions={{0}}
    ROOT r = {shape} multiply(c, rolled)
    """
    checked(text, Schedule(threads=0, edges=0))
