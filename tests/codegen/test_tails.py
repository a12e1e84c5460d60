"""Loops whose lengths are no multiples of a vector: results, and how the elements that remain over are computed."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

REDUCERS = """
add {{
  x = {t}[] parameter(0)
  y = {t}[] parameter(1)
  ROOT s = {t}[] {op}(x, y)
}}
"""
ROWS = """
    a = {t}[{rows},{n}] parameter(0)
    start = {t}[] constant({start})
    e = {t}[{rows},{n}] {function}(a)
    ROOT s = {t}[{rows}] reduce(e, start), dimensions={{1}}, to_apply=add
"""
COLUMNS = """
    a = f32[{rows},{n}] parameter(0)
    b = f32[{n}] parameter(1)
    zero = f32[] constant(0)
    w = f32[{rows},{n}] broadcast(b), dimensions={{1}}
    d = f32[{rows},{n}] subtract(a, w)
    e = f32[{rows},{n}] exponential(d)
    s = f32[{n}] reduce(e, zero), dimensions={{0}}, to_apply=add
    ROOT r = (f32[{n}], f32[{rows},{n}]) tuple(s, e)
"""
SUMS = REDUCERS.format(t="f32", op="add")


@pytest.mark.parametrize("n", [16, 17, 20, 24, 31, 36, 47, 70, 100, 130])
@pytest.mark.parametrize(("op", "start"), [("add", 0), ("maximum", -2), ("multiply", 1)])
@pytest.mark.parametrize("accumulators", [1, 4])
def test_rows_end_with_a_whole_vector(n: int, op: str, start: int, accumulators: int) -> None:
    text = ROWS.format(t="f32", rows=21, n=n, start=start, function="tanh")
    source = checked(text, Schedule(accumulators=accumulators), REDUCERS.format(t="f32", op=op))
    assert not re.search(r"r\d+t < (?!16;|32;|48;|64;)", source)


@pytest.mark.parametrize("t", ["f64", "f16", "bf16", "s32", "u8"])
@pytest.mark.parametrize("op", ["add", "minimum"])
def test_rows_of_other_types(t: str, op: str) -> None:
    for n in (9, 19, 37, 75):
        text = ROWS.format(t=t, rows=5, n=n, start=1, function="negate")
        checked(text, Schedule(), REDUCERS.format(t=t, op=op))


@pytest.mark.parametrize(("n", "loops"), [(36, {32, 4}), (47, {32, 8, 4, 3}), (15, {8, 4, 3}), (40, {40}), (32, {32})])
def test_functions_end_with_narrower_vectors(n: int, loops: set[int]) -> None:
    text = f"""
    a = f32[9,{n}] parameter(0)
    b = f32[{n}] parameter(1)
    w = f32[9,{n}] broadcast(b), dimensions={{1}}
    d = f32[9,{n}] subtract(a, w)
    ROOT e = f32[9,{n}] exponential(d)
    """
    source = checked(text, Schedule(threads=0))
    assert {int(x) for x in re.findall(r"simd\n +for \(.*?< (\d+);", source)} == loops
    assert "w4" not in checked(text, Schedule(threads=0, narrow=0))


@pytest.mark.parametrize("rows", [5, 300, 3000])
@pytest.mark.parametrize("n", [8, 16, 33, 100, 350])
@pytest.mark.parametrize("splits", [0, 7])
def test_summands_of_columns_are_stored_by_the_loop_that_computes_them(rows: int, n: int, splits: int) -> None:
    text = COLUMNS.format(rows=rows, n=n)
    for cache in (0, 1):
        checked(text, Schedule(grain=1000, splits=min(splits, rows), cache=cache), SUMS)


@pytest.mark.parametrize("n", [8, 16, 100])
def test_summands_of_few_columns_are_computed_twice(n: int) -> None:
    text = COLUMNS.format(rows=300, n=n)
    for cache in (0, 1):
        source = checked(text, Schedule(threads=0, splits=1, narrow=0, cache=cache), SUMS)
        # Blocks of rows of 8 are followed by a loop over the rows that remain.
        assert source.count("expf(") == (1 if cache and n >= 16 else 3 if n == 8 else 2)


def test_stored_summands_do_not_overwrite_what_is_read_again() -> None:
    text = """
    a = f32[50,32] parameter(0)
    zero = f32[] constant(0)
    e = f32[50,32] exponential(a)
    s = f32[32] reduce(e, zero), dimensions={0}, to_apply=add
    m = f32[32] reduce(a, zero), dimensions={0}, to_apply=add
    ROOT r = (f32[32], f32[32], f32[50,32]) tuple(s, m, e)
    """
    checked(text, Schedule(threads=0), SUMS)


@pytest.mark.parametrize(("n", "loops"), [(127, {64, 32, 16, 8, 4, 3}), (254, {192, 32, 16, 8, 4, 2}), (70, {70})])
def test_rows_of_bytes_beside_floats_end_with_narrower_vectors(n: int, loops: set[int]) -> None:
    text = f"""
    a = f32[9,{n}] parameter(0)
    m = pred[9,{n}] parameter(1)
    k = s8[9,{n}] parameter(2)
    b = f32[{n}] parameter(3)
    w = f32[9,{n}] broadcast(b), dimensions={{1}}
    f = f32[9,{n}] convert(k)
    c = f32[9,{n}] multiply(a, f)
    d = f32[9,{n}] add(c, w)
    e = f32[9,{n}] subtract(d, f)
    ROOT s = f32[9,{n}] select(m, e, a)
    """
    source = checked(text, Schedule(threads=0))
    assert {int(x) for x in re.findall(r"simd\n +for \(.*?< (\d+);", source)} == loops


@pytest.mark.parametrize(
    ("n", "loops"),
    [
        (9, [8, 1]),
        (16, [16]),
        (25, [16, 8, 1]),
        (50, [16, 16, 16, 2]),
        (120, [64, 16, 16, 16, 8]),
        (64, [64]),
        (12, [8, 4]),
    ],
)
def test_rows_of_bytes_beside_functions_end_with_widened_bytes(n: int, loops: list[int]) -> None:
    text = f"""
    a = f32[{n}] parameter(0)
    m = pred[{n}] parameter(1)
    e = f32[{n}] exponential(a)
    l = f32[{n}] log-plus-one(e)
    ROOT s = f32[{n}] select(m, l, a)
    """
    source = checked(text, Schedule(threads=0, stages=0))
    assert [int(x) for x in re.findall(r"simd\n +for \(.*?< (\d+);", source)] == loops
    assert source.count("_wide[16]") == loops.count(16)
    assert source.count("_wide[8]") == loops.count(8)
