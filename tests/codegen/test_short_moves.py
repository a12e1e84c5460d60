"""Short loops that only move elements, which are written out with copies of adjacent ones."""

import re
from dataclasses import replace

import pytest

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.copied_runs import copy_runs
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType as T
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


def copied_bytes(source: str) -> set[int]:
    """Return the sizes of the copies in the source of a kernel."""
    return {int(n) for n in re.findall(r"__builtin_memcpy\(.*, (\d+)\);", source)}


@pytest.mark.parametrize(("c", "low", "high"), [(4, 1, 2), (5, 1, 2), (14, 1, 1), (7, 3, 0), (9, 0, 7), (15, 1, 1)])
def test_the_padding_of_short_rows_is_written_out(c: int, low: int, high: int) -> None:
    source = checked(PAD.format(c=c, w=c + low + high, low=low, high=high), Schedule(threads=0))
    assert copied_bytes(source) == {4 * c}
    assert "if (" not in source[source.rindex("void hk") if "void hk" in source else 0 :]


@pytest.mark.parametrize(("c", "is_written"), [(2, True), (3, True), (4, False), (5, False)])
def test_concatenations_of_short_rows(c: int, is_written: bool) -> None:
    source = checked(CONCATENATE.format(c=c, w=2 * c), Schedule(threads=0))
    assert copied_bytes(source) == ({4 * c} if is_written else set())


@pytest.mark.parametrize(("c", "is_written"), [(2, True), (3, False), (4, True), (5, False)])
def test_pixels_in_another_order(c: int, is_written: bool) -> None:
    assert copied_bytes(checked(REVERSE.format(c=c), Schedule(threads=0))) == ({4 * c} if is_written else set())


def test_loops_that_compute_or_are_long_stay() -> None:
    assert not copied_bytes(checked(PAD.format(c=40, w=42, low=1, high=1), Schedule(threads=0)))
    assert not copied_bytes(checked(SCALED.format(c=5, w=8, low=1, high=2), Schedule(threads=0)))


@pytest.mark.parametrize(("t", "size"), [("u8", 1), ("pred", 1), ("f16", 2), ("s64", 8)])
@pytest.mark.parametrize("c", range(2, 18))
def test_padding_of_elements_of_all_sizes(t: str, size: int, c: int) -> None:
    text = PAD.format(c=c, w=c + 3, low=1, high=2).replace("f32", t)
    whole = {size * c} if size * c <= 64 else {64, size * c % 64}
    assert copied_bytes(checked(text, Schedule(threads=0))) == {n for n in whole if n > size}


def test_what_shares_memory_with_a_result_is_not_copied() -> None:
    arguments = (lir.Argument("p0", T.F32, 8, False), lir.Argument("o0", T.F32, 8, True))
    moves = [(f"v{n}", ix.const(n)) for n in range(4)]
    body: lir.Body = (
        *(lir.Let(name, T.F32, lir.Load("p0", at)) for name, at in moves),
        *(lir.Store("o0", at, name) for name, at in moves),
    )
    apart = lir.Kernel("loop", arguments, body)
    assert copy_runs(apart).body == (lir.CopyElements("o0", ix.const(0), "p0", ix.const(0), 4),)
    assert copy_runs(replace(apart, in_place=((0, 1),))).body == body
