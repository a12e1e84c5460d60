"""A sum of a whole array and an array that needs the same values: one loop computes both."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running

ADD = "add { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT s = {t}[] add(a, b) }"
LOSS = """
    x = {t}[{n}] parameter(0)
    y = {t}[{n}] parameter(1)
    zero = {t}[] constant(0)
    third = {t}[] constant(0.333)
    thirds = {t}[{n}] broadcast(third), dimensions={{}}
    e = {t}[{n}] exponential(x)
    d = {t}[{n}] subtract(e, y)
    loss = {t}[] reduce(d, zero), dimensions={{0}}, to_apply=add
    scaled = {t}[{n}] multiply(d, thirds)
    ROOT r = ({t}[], {t}[{n}]) tuple(loss, scaled)
"""
SHARES = """
    x = f32[{n}] parameter(0)
    zero = f32[] constant(0)
    e = f32[{n}] exponential(x)
    total = f32[] reduce(e, zero), dimensions={{0}}, to_apply=add
    totals = f32[{n}] broadcast(total), dimensions={{}}
    share = f32[{n}] divide(e, totals)
    ROOT r = (f32[], f32[{n}]) tuple(total, share)
"""


def checked(text: str, t: str, schedule: Schedule) -> str:
    """Return the source of the kernel of a computation, after comparing it with the interpreter."""
    fused = running.fused(text, ADD.replace("{t}", t))
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.source


@pytest.mark.parametrize("n", [100, 1023, 400_000])
@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule(threads=0, splits=3), Schedule(stages=0, accumulators=1), Schedule(vector=256)]
)
def test_a_sum_and_an_array_of_its_values(n: int, schedule: Schedule) -> None:
    for t in ("f32", "bf16", "f64"):
        checked(LOSS.format(t=t, n=n), t, schedule)


def test_what_both_need_is_computed_once() -> None:
    source = checked(LOSS.format(t="f32", n=8192), "f32", Schedule(threads=0, accumulators=1))
    assert source.count("= expf(") == 1


@pytest.mark.parametrize("n", [100, 300_000])
def test_an_array_that_needs_the_sum_follows_it(n: int) -> None:
    checked(SHARES.format(n=n), "f32", Schedule())


TABLE = """
    x = f32[{m},{n}] parameter(0)
    y = f32[{n}] parameter(1)
    zero = f32[] constant(0)
    rows = f32[{m},{n}] broadcast(y), dimensions={{1}}
    e = f32[{m},{n}] exponential(x)
    d = f32[{m},{n}] {inner}
    loss = f32[] reduce(d, zero), dimensions={{0,1}}, to_apply=add
    scaled = f32[{m},{n}] multiply(e, rows)
    ROOT r = (f32[], f32[{m},{n}]) tuple(loss, scaled)
"""


@pytest.mark.parametrize("inner", ["multiply(e, rows)", "multiply(e, e)"])  # the loops of the latter are merged
@pytest.mark.parametrize(("m", "n"), [(50, 64), (7, 13), (900, 300)])
@pytest.mark.parametrize("threads", [0, 1])
def test_a_sum_over_two_dimensions_and_an_array(inner: str, m: int, n: int, threads: int) -> None:
    source = checked(TABLE.format(m=m, n=n, inner=inner), "f32", Schedule(threads=threads, splits=1, accumulators=1))
    if n == 64 and not threads:
        assert source.count("= expf(") == 1


COLUMNS = """
    x = f32[{m},{n}] parameter(0)
    low = f32[] constant({start})
    first = f32[{m},1] slice(x), slice={{[0:{m}], [0:1]}}
    rest = f32[{m},{less}] slice(x), slice={{[0:{m}], [1:{n}]}}
    rolled = f32[{m},{n}] concatenate({pieces}), dimensions={{1}}
    other = f32[{m},{n}] concatenate({others}), dimensions={{1}}
    d = f32[{m},{n}] subtract(rolled, x)
    e = f32[{m},{n}] tanh(d)
    h = f32[{m},{n}] subtract(other, x)
    g = f32[{m},{n}] tanh(h)
    most = f32[{n}] reduce(e, low), dimensions={{0}}, to_apply=add
    ROOT r = (f32[{n}], f32[{m},{n}]) tuple(most, {stored})
"""


@pytest.mark.parametrize("stored", ["e", "g"])
@pytest.mark.parametrize(("m", "n"), [(50, 32), (9, 17), (300, 100)])
def test_columns_of_a_concatenation_and_their_summands(stored: str, m: int, n: int) -> None:
    text = COLUMNS.format(m=m, n=n, less=n - 1, start="-0.0", pieces="rest, first", others="first, rest", stored=stored)
    source = checked(text, "f32", Schedule(threads=0, splits=1))
    if m == 50:  # shorter columns are written out, and loops over longer rows have edges
        assert source.count("= tanh_f32(") == (1 if stored == "e" else 2)


WHOLE = """
    x = f32[{m},{n}] parameter(0)
    y = f32[{m},{n}] parameter(1)
    zero = f32[] constant(0)
    e = f32[{m},{n}] exponential(x)
    d = f32[{m},{n}] subtract(e, y)
    sums = f32[{n}] reduce(d, zero), dimensions={{0}}, to_apply=add
    ROOT r = (f32[{n}], f32[{m},{n}]) tuple(sums, d)
"""


@pytest.mark.parametrize(("m", "n"), [(50, 64), (7, 13), (900, 300)])
@pytest.mark.parametrize("threads", [0, 1])
def test_sums_over_columns_and_their_summands_in_one_loop_over_all_elements(m: int, n: int, threads: int) -> None:
    source = checked(WHOLE.format(m=m, n=n), "f32", Schedule(threads=threads, splits=1))
    if (m, n) == (50, 64):
        assert source.count("= expf(") == 1


@pytest.mark.parametrize("function", ["exponential(d)", "maximum(d, y)", "add(m, clamped)"])
def test_summands_with_a_value_for_each_row(function: str) -> None:
    text = f"""
    x = f32[90,48] parameter(0)
    row = f32[90] parameter(1)
    y = f32[90,48] parameter(2)
    zero = f32[] constant(0)
    one = f32[] constant(1)
    rows = f32[90,48] broadcast(row), dimensions={{0}}
    d = f32[90,48] subtract(x, rows)
    m = f32[90,48] maximum(d, y)
    p = f32[90,48] multiply(m, y)
    q = f32[90,48] add(p, d)
    clamped = f32[90,48] clamp(zero, q, one)
    e = f32[90,48] {function}
    total = f32[48] reduce(e, zero), dimensions={{0}}, to_apply=add
    ROOT r = (f32[48], f32[90,48]) tuple(total, e)
    """
    source = checked(text, "f32", Schedule(threads=0))
    little = function == "maximum(d, y)"  # a loop of its own stores them
    assert source.count("= p0[") == (2 if little else 1)
