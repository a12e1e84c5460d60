"""Vector loops that store from the beginning of cache lines on: results, and which loops are divided."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

STENCIL = """
    a = {t}[{rows},{n}] parameter(0)
    last = {t}[{rows},1] slice(a), slice={{[0:{rows}],[{left}:{n}]}}
    most = {t}[{rows},{left}] slice(a), slice={{[0:{rows}],[0:{left}]}}
    b = {t}[{rows},{n}] concatenate(last, most), dimensions={{1}}
    ROOT r = {t}[{rows},{n}] {op}(a, b)
"""
FIRST = r"for \(index_t (i\w+)a = 0; \1a < (\d+); \1a\+\+\)"


def _first(source: str) -> list[int]:
    """Return the lengths of the loops over what comes before the first whole line."""
    return [int(n) for _, n in re.findall(FIRST, source)]


def _stencil(n: int, t: str = "f32", op: str = "add") -> str:
    return STENCIL.format(t=t, rows=3, n=n, left=n - 1, op=op)


@pytest.mark.parametrize(
    ("t", "n", "first"), [("f32", 512, 15), ("s32", 1024, 15), ("f64", 512, 7), ("s16", 1024, 31), ("u8", 2048, 63)]
)
def test_rows_after_a_border_begin_with_the_elements_before_a_line(t: str, n: int, first: int) -> None:
    assert _first(checked(_stencil(n, t), Schedule())) == [first]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_stencil(256), "short rows"),
        (_stencil(510), "rows that begin anywhere in a line"),
        (_stencil(512, op="power"), "long functions"),
        ("a = f32[3,512] parameter(0)\n ROOT r = f32[3,512] negate(a)", "rows that begin with a line"),
    ],
)
def test_other_loops_are_left(text: str, why: str) -> None:
    assert not _first(checked(text, Schedule())), why


def test_without_vectors_no_loop_is_divided() -> None:
    assert not _first(checked(_stencil(512), Schedule(vector=0)))


def test_results_that_begin_at_different_places_are_left() -> None:
    text = """
    a = f32[3,512] parameter(0)
    b = f32[3,511] slice(a), slice={[0:3],[0:511]}
    c = f32[3,511] slice(a), slice={[0:3],[1:512]}
    d = f32[3,511] add(b, c)
    z = f32[] constant(0)
    p = f32[3,512] pad(d, z), padding=0_0x1_0
    q = f32[3,512] pad(d, z), padding=0_0x0_1
    ROOT r = (f32[3,512], f32[3,512]) tuple(p, q)
    """
    checked(text, Schedule())


@pytest.mark.parametrize("n", [1024, 100_000])
def test_one_row_that_threads_share(n: int) -> None:
    text = f"""
    a = f32[{n}] parameter(0)
    last = f32[3] slice(a), slice={{[{n - 3}:{n}]}}
    most = f32[{n - 3}] slice(a), slice={{[0:{n - 3}]}}
    b = f32[{n}] concatenate(last, most), dimensions={{0}}
    c = f32[{n}] multiply(a, b)
    ROOT r = f32[{n}] add(c, b)
    """
    assert _first(checked(text, Schedule())) == [13]
