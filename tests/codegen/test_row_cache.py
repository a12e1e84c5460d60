"""Values of a row that several loops need, which the first one keeps."""

from __future__ import annotations

import itertools

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_short_loops import SUM
from tests.codegen.test_stages import checked

SHARES = """
    x = f32[30,70] parameter(0)
    y = f32[30] parameter(1)
    w = f32[30,70] broadcast(y), dimensions={{0}}
    q = f32[30,70] {op}(x, w)
    square = f32[30,70] multiply(q, q)
    zero = f32[] constant(0)
    total = f32[30] reduce(square, zero), dimensions={{1}}, to_apply=add_f32
    totals = f32[30,70] broadcast(total), dimensions={{0}}
    ROOT r = f32[30,70] add(q, totals)
"""


@pytest.mark.parametrize(("op", "kept"), [("divide", True), ("multiply", False), ("power", True)])
def test_quotients_are_kept(op: str, kept: bool) -> None:
    source = checked(SHARES.format(op=op), Schedule(threads=0), SUM)
    assert ("_row[70]" in source) == kept


@pytest.mark.parametrize(("op", "kept"), [("add", True), ("maximum", False)])
def test_only_rounded_results_of_16_bits_are_expensive(op: str, kept: bool) -> None:
    text = f"""
    x = bf16[30,70] parameter(0)
    y = bf16[30,70] parameter(1)
    a = bf16[30,70] {op}(x, y)
    b = bf16[30,70] {op}(a, x)
    q = bf16[30,70] {op}(b, y)
    wide = f32[30,70] convert(q)
    zero = f32[] constant(0)
    total = f32[30] reduce(wide, zero), dimensions={{1}}, to_apply=add_f32
    narrow = bf16[30] convert(total)
    totals = bf16[30,70] broadcast(narrow), dimensions={{0}}
    ROOT r = bf16[30,70] multiply(q, totals)
    """
    assert ("_row[70]" in checked(text, Schedule(threads=0), SUM)) == kept


@pytest.mark.parametrize(("clamps", "kept"), [(2, False), (3, True)])
def test_clamps_are_more_than_one_operation(clamps: int, kept: bool) -> None:
    values = ["x", *(f"c{n}" for n in range(clamps))]
    lines = [f"{b} = f32[30,70] clamp(low, {a}, high)" for a, b in itertools.pairwise(values)]
    text = f"""
    x = f32[30,70] parameter(0)
    one = f32[] constant(1)
    low = f32[30,70] broadcast(one), dimensions={{}}
    two = f32[] constant(2)
    high = f32[30,70] broadcast(two), dimensions={{}}
    {chr(10).join(lines)}
    zero = f32[] constant(0)
    total = f32[30] reduce({values[-1]}, zero), dimensions={{1}}, to_apply=add_f32
    totals = f32[30,70] broadcast(total), dimensions={{0}}
    ROOT r = f32[30,70] multiply({values[-1]}, totals)
    """
    assert ("_row[70]" in checked(text, Schedule(threads=0), SUM)) == kept
