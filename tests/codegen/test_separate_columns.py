"""Vector loops over rows of several columns: the C compiler does not know how far apart the columns are."""

from __future__ import annotations

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_short_loops import SUM
from tests.codegen.test_stages import checked

ENTROPY = """
    a = f32[64,{n}] parameter(0)
    zero = f32[] constant(0)
    e = f32[64,{n}] exponential(a)
    s = f32[64] reduce(e, zero), dimensions={{1}}, to_apply=add_f32
    l = f32[64] log(s)
    w = f32[64,{n}] broadcast(l), dimensions={{0}}
    p = f32[64,{n}] subtract(a, w)
    q = f32[64,{n}] multiply(p, e)
    ROOT r = f32[64] reduce(q, zero), dimensions={{1}}, to_apply=add_f32
"""


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(threads=0, stages=0)])
def test_sums_of_short_rows(n: int, schedule: Schedule) -> None:
    source = checked(ENTROPY.format(n=n), schedule, SUM)
    assert "opaque" not in source or n not in (2, 3, 4, 8)


@pytest.mark.parametrize("length, distant", [(2, False), (3, False), (8, False), (5, True), (10, True), (12, True)])
def test_columns_are_separate_where_the_c_compiler_cannot_take_rows_apart(length: int, distant: bool) -> None:
    text = f"""
    a = f32[100,{length}] parameter(0)
    x = f32[100,1] slice(a), slice={{[0:100], [0:1]}}
    y = f32[100,1] slice(a), slice={{[0:100], [1:2]}}
    z = f32[100,1] power(x, y)
    ROOT r = f32[100,1] exponential(z)
    """
    assert ("hlogym_opaque(1LL)" in checked(text, Schedule(threads=0, stages=0))) == distant


def test_columns_of_light_loops_are_not_hidden() -> None:
    text = """
    a = f32[100,10] parameter(0)
    zero = f32[] constant(0)
    ROOT r = f32[100] reduce(a, zero), dimensions={1}, to_apply=add_f32
    """
    assert "opaque" not in checked(text, Schedule(), SUM)


def test_one_column_is_not_hidden() -> None:
    text = """
    a = f32[100,10] parameter(0)
    x = f32[100,1] slice(a), slice={[0:100], [3:4]}
    ROOT r = f32[100,1] multiply(x, x)
    """
    assert "opaque" not in checked(text, Schedule(threads=0, stages=0))


@pytest.mark.parametrize("reducer, distant", [("max_f32", True), ("add_f32", False)])
def test_columns_whose_extremes_are_added_up_are_separate(reducer: str, distant: bool) -> None:
    text = f"""
    a = f32[3000,7] parameter(0)
    zero = f32[] constant(0)
    m = f32[3000] reduce(a, zero), dimensions={{1}}, to_apply={reducer}
    ROOT r = f32[] reduce(m, zero), dimensions={{0}}, to_apply=add_f32
    """
    maximum = "max_f32 { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }"
    assert ("opaque" in checked(text, Schedule(), f"{SUM}\n{maximum}")) == distant
