"""Vector loops that compute several values by long functions: the results, and the order of the functions."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked
from tests.codegen.test_tails import REDUCERS

ROWS = """
    x = f32[{rows},{n}] parameter(0)
    b = f32[{n}] parameter(1)
    w = f32[{rows},{n}] broadcast(b), dimensions={{1}}
    e = f32[{rows},{n}] exponential(x)
    m = f32[{rows},{n}] multiply(e, w)
    t = f32[{rows},{n}] tanh(m)
    s = f32[{rows},{n}] add(t, x)
    l = f32[{rows},{n}] logistic(s)
    start = f32[] constant({start})
    ROOT r = f32[{rows}] reduce(l, start), dimensions={{1}}, to_apply=add
"""


def functions_of(source: str) -> list[str]:
    """Return the long functions of the first vector loop in order."""
    loop = source[source.index("#pragma omp simd") :]
    return re.findall(r"(tanh|exp)(?:_f32|f)\(", loop[: loop.index("  }\n")])


@pytest.mark.parametrize(("rows", "n"), [(64, 3), (33, 8), (100, 10), (1000, 16), (17, 4)])
@pytest.mark.parametrize(("op", "start"), [("add", 0), ("maximum", -2), ("multiply", 1)])
def test_sums_of_short_rows(rows: int, n: int, op: str, start: int) -> None:
    checked(ROWS.format(rows=rows, n=n, start=start), Schedule(), REDUCERS.format(t="f32", op=op))


@pytest.mark.parametrize("n", [4, 10, 16])
def test_functions_of_a_row_are_computed_in_turn(n: int) -> None:
    # Longer loops than this one run in stages.
    source = checked(ROWS.format(rows=24, n=n, start=0), Schedule(), REDUCERS.format(t="f32", op="add"))
    assert functions_of(source) == [*["exp"] * n, *["tanh"] * n, *["exp"] * n]


def test_a_result_may_be_in_the_memory_of_what_is_read() -> None:
    text = """
    x = f32[64,2] parameter(0)
    a = f32[64] parameter(1)
    y = f32[64,2] reverse(x), dimensions={1}
    e = f32[64,2] exponential(y)
    t = f32[64,2] tanh(e)
    w = f32[64,2] broadcast(a), dimensions={0}
    ROOT r = f32[64,2] add(t, w)"""
    source = checked(text, Schedule(), REDUCERS.format(t="f32", op="add"))
    assert source.rindex(" = p0[") < source.index("o0[")
