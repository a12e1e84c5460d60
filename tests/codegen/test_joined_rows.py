"""Sums of columns, of which several rows are added in one iteration."""

from __future__ import annotations

import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.observed import ObservedSchedule
from compiler.codegen.schedules.schedule import Schedule
from compiler.support.processor import AVX2, AVX512, VectorUnit
from tests.codegen.running import fused
from tests.codegen.test_stages import checked

SUMS = """
    x = {t}[{m},{n}] parameter(0)
    wide = {to}[{m},{n}] convert(x)
    zero = {to}[] constant(0)
    ROOT r = {to}[{n}] reduce(wide, zero), dimensions={{0}}, to_apply=reduce
"""
REDUCER = "reduce {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT s = {t}[] {op}(a, b) }}"


@pytest.mark.parametrize(("t", "to"), [("f32", "f32"), ("u8", "u32"), ("s8", "s32"), ("f16", "f32"), ("f64", "f64")])
@pytest.mark.parametrize("m", [7, 8, 9, 50, 103])
@pytest.mark.parametrize("splits", [1, 3])
def test_sums_over_rows(t: str, to: str, m: int, splits: int) -> None:
    reducer = REDUCER.format(t=to, op="add")
    source = checked(SUMS.format(t=t, to=to, m=m, n=150), Schedule(threads=0, splits=splits), reducer)
    if (t, m, splits) == ("f32", 50, 1):
        assert "r2j < 12;" in source  # 12 groups of four rows, and two rows


@pytest.mark.parametrize("op", ["maximum", "multiply"])
def test_other_reductions_over_rows(op: str) -> None:
    reducer = REDUCER.format(t="f32", op=op)
    checked(SUMS.format(t="f32", to="f32", m=30, n=150), Schedule(threads=0, splits=1), reducer)


@pytest.mark.parametrize(
    ("m", "n", "is_joined"),
    [(3000, 2000, False), (1500, 6000, True), (1000, 2000, True), (300, 20000, True)],
    ids=["whole rows from memory", "parts of rows from memory", "whole rows from a cache", "wide rows from memory"],
)
def test_an_array_from_memory_is_read_in_order(m: int, n: int, is_joined: bool) -> None:
    reducer = REDUCER.format(t="f32", op="add")
    source = checked(SUMS.format(t="f32", to="f32", m=m, n=n), Schedule(threads=0, splits=1), reducer)
    assert ("r2j" in source) == is_joined


@pytest.mark.parametrize(
    ("m", "op", "is_row"), [(1500, "tanh", True), (300, "tanh", False), (1500, "abs", True), (200, "abs", False)],
    ids=["from memory", "from a cache", "cheap from memory", "cheap from a cache"],
)  # fmt: skip
def test_whole_rows_are_one_tile_if_functions_of_them_are_stored(m: int, op: str, is_row: bool) -> None:
    text = f"""
    x = f32[{m},1024] parameter(0)
    y = f32[{m},1024] {op}(x)
    zero = f32[] constant(0)
    s = f32[1024] reduce(y, zero), dimensions={{0}}, to_apply=reduce
    ROOT r = (f32[1024], f32[{m},1024]) tuple(s, y)
    """
    source = checked(text, Schedule(threads=0), REDUCER.format(t="f32", op="add"))
    assert ("_lanes[1024]" in source) == is_row


def test_whole_rows_from_memory_are_one_tile() -> None:
    reducer = REDUCER.format(t="f32", op="maximum")
    assert "_lanes[3000]" in checked(SUMS.format(t="f32", to="f32", m=1500, n=3000), Schedule(threads=0), reducer)
    narrow = checked(SUMS.format(t="f32", to="f32", m=80, n=3000), Schedule(threads=0), reducer)
    assert "_lanes[3000]" not in narrow


@pytest.mark.parametrize(
    ("unit", "n", "body", "is_row"),
    [
        (AVX2, 1000, "ROOT r = f32[1000] reduce(x, zero), dimensions={0}, to_apply=reduce", True),
        (AVX512, 1000, "ROOT r = f32[1000] reduce(x, zero), dimensions={0}, to_apply=reduce", False),
        (AVX2, 5000, "ROOT r = f32[5000] reduce(x, zero), dimensions={0}, to_apply=reduce", False),
        (AVX2, 1000, """s = f32[1000] reduce(x, zero), dimensions={0}, to_apply=reduce
    y = f32[30,1000] negate(x)
    ROOT r = (f32[1000], f32[30,1000]) tuple(s, y)""", False),
        (AVX2, 1000, """s = f32[1000] reduce(x, zero), dimensions={0}, to_apply=reduce
    b = f32[30,1000] broadcast(s), dimensions={1}
    ROOT r = f32[30,1000] divide(x, b)""", True),
    ],
    ids=["a sum", "in registers", "more than the first-level cache", "stored rows", "rows that are read again"],
)  # fmt: skip
def test_whole_rows_are_one_tile_where_registers_hold_none(unit: VectorUnit, n: int, body: str, is_row: bool) -> None:
    text = f"""
    x = f32[30,{n}] parameter(0)
    zero = f32[] constant(0)
    {body}
    """
    source = checked(text, Schedule(threads=0, unit=unit), REDUCER.format(t="f32", op="add"))
    assert (f"_lanes[{n}]" in source) == is_row


@pytest.mark.parametrize(("m", "unit"), [(30, AVX2), (5000, AVX512)], ids=["in a cache", "in memory"])
def test_the_fields_are_known_on_which_whole_rows_depend(m: int, unit: VectorUnit) -> None:
    reducer = REDUCER.format(t="f32", op="add")
    nest = lower(fused(SUMS.format(t="f32", to="f32", m=m, n=1000), reducer))
    observed = ObservedSchedule.of(Schedule(unit=unit))
    bind_c(nest, observed)
    assert {"columns", "unit"} <= observed.reads
