"""Short loops that only move elements, which are written out with their loads before their stores."""

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

PAD = """
    x = f32[50,{c}] parameter(0)
    y = f32[] parameter(1)
    ROOT r = f32[50,{w}] pad(x, y), padding=0_0x{low}_{high}
"""
CONCATENATE = """
    x = f32[50,{c}] parameter(0)
    y = f32[50,{c}] parameter(1)
    ROOT r = f32[50,{w}] concatenate(x, y), dimensions={{1}}
"""
REVERSE = """
    x = f32[20,50,{c}] parameter(0)
    ROOT r = f32[20,50,{c}] reverse(x), dimensions={{1}}
"""
SCALED = """
    x = f32[50,{c}] parameter(0)
    y = f32[] parameter(1)
    p = f32[50,{w}] pad(x, y), padding=0_0x{low}_{high}
    ROOT r = f32[50,{w}] cosine(p)
"""


def loads_before_stores(source: str) -> bool:
    """Check whether some loads of the last kernel are followed by stores without a loop around them."""
    return bool(re.search(r"(?:const float \w+_e\d+ = p\d\[[^\n]*\n\s*){2,}o0\[", source))


@pytest.mark.parametrize(("c", "low", "high"), [(3, 1, 2), (5, 1, 2), (14, 1, 1), (7, 3, 0), (9, 0, 7)])
def test_the_padding_of_short_rows_is_written_out(c: int, low: int, high: int) -> None:
    source = checked(PAD.format(c=c, w=c + low + high, low=low, high=high), Schedule(threads=0))
    assert loads_before_stores(source)
    assert "if (" not in source[source.rindex("void hk") if "void hk" in source else 0 :]


@pytest.mark.parametrize(("c", "is_written"), [(2, True), (3, True), (4, False), (5, False)])
def test_concatenations_of_short_rows(c: int, is_written: bool) -> None:
    source = checked(CONCATENATE.format(c=c, w=2 * c), Schedule(threads=0))
    assert loads_before_stores(source) == is_written


@pytest.mark.parametrize(("c", "is_written"), [(2, True), (3, True), (4, True), (5, False)])
def test_pixels_in_another_order(c: int, is_written: bool) -> None:
    assert loads_before_stores(checked(REVERSE.format(c=c), Schedule(threads=0))) == is_written


def test_loops_that_compute_or_are_long_stay() -> None:
    assert not loads_before_stores(checked(PAD.format(c=20, w=22, low=1, high=1), Schedule(threads=0)))
    assert not loads_before_stores(checked(SCALED.format(c=5, w=8, low=1, high=2), Schedule(threads=0)))
