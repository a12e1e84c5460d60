"""Rows in blocks: the same results for every number of rows, width and type, and which loops are divided."""

from __future__ import annotations

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

REDUCERS = """
add { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] add(a, b) }
max { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] maximum(a, b) }
"""
SOFTMAX = """
    x = {t}[{n},{w}] parameter(0)
    low = {t}[] constant(-inf)
    zero = {t}[] constant(0)
    m = {t}[{n}] reduce(x, low), dimensions={{1}}, to_apply=max
    mb = {t}[{n},{w}] broadcast(m), dimensions={{0}}
    d = {t}[{n},{w}] subtract(x, mb)
    e = {t}[{n},{w}] exponential(d)
    s = {t}[{n}] reduce(e, zero), dimensions={{1}}, to_apply=add
    sb = {t}[{n},{w}] broadcast(s), dimensions={{0}}
    ROOT r = {t}[{n},{w}] divide(e, sb)
"""
MOMENTS = """
    x = f32[{n},{w}] parameter(0)
    given = f32[{n}] parameter(1)
    k = s32[{n}] iota(), iota_dimension=0
    zero = f32[] constant(0)
    s = f32[{n}] reduce(x, zero), dimensions={{1}}, to_apply=add
    kf = f32[{n}] convert(k)
    sk = f32[{n}] add(s, kf)
    mean = f32[{n}] tanh(sk)
    mb = f32[{n},{w}] broadcast(mean), dimensions={{0}}
    c = f32[{n},{w}] subtract(x, mb)
    q = f32[{n},{w}] multiply(c, c)
    v = f32[{n}] reduce(q, zero), dimensions={{1}}, to_apply=add
    root = f32[{n}] sqrt(v)
    scale = f32[{n}] multiply(root, given)
    rb = f32[{n},{w}] broadcast(scale), dimensions={{0}}
    o = f32[{n},{w}] multiply(c, rb)
    ROOT r = (f32[{n},{w}], f32[{n}], f32[{n}]) tuple(o, mean, scale)
"""
LENGTHS = """
    x = f32[{n},{w}] parameter(0)
    zero = f32[] constant(0)
    q = f32[{n},{w}] multiply(x, x)
    s = f32[{n}] reduce(q, zero), dimensions={{1}}, to_apply=add
    root = f32[{n}] sqrt(s)
    sb = f32[{n},{w}] broadcast(root), dimensions={{0}}
    ROOT r = f32[{n},{w}] {op}(x, sb)
"""


def quantised(steps: int) -> str:
    """Return rows that are divided by their maximum several times."""
    lines = ["x0 = f32[64,128] parameter(0)", "low = f32[] constant(-inf)"]
    for k in range(steps):
        lines.append(f"a{k} = f32[64,128] abs(x{k})")
        lines.append(f"m{k} = f32[64] reduce(a{k}, low), dimensions={{1}}, to_apply=max")
        lines.append(f"b{k} = f32[64,128] broadcast(m{k}), dimensions={{0}}")
        lines.append(f"q{k} = f32[64,128] divide(x{k}, b{k})")
        lines.append(f"x{k + 1} = f32[64,128] floor(q{k})")
    return "\n".join([*lines, f"ROOT r = f32[64,128] negate(x{steps})"])


def _is_blocked(source: str) -> bool:
    return "_of_rows[" in source


@pytest.mark.parametrize("n", [1, 3, 7, 16, 33, 97, 2048])
@pytest.mark.parametrize(("t", "w"), [("f32", 48), ("f32", 301), ("bf16", 64), ("f16", 33), ("f64", 40)])
def test_softmax(n: int, t: str, w: int) -> None:
    source = checked(SOFTMAX.format(t=t, n=n, w=w), Schedule(), REDUCERS.replace("{t}", t))
    if n <= 7 or n >= 97:  # between them, it depends on the work of a row
        assert _is_blocked(source) == (n > 7)


@pytest.mark.parametrize("n", [5, 64, 100, 3000])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(cache=2, accumulators=1), Schedule(vector=0, threads=0)])
def test_values_of_rows_that_are_outputs(n: int, schedule: Schedule) -> None:
    source = checked(MOMENTS.format(n=n, w=52), schedule, REDUCERS.replace("{t}", "f32"))
    assert _is_blocked(source) == (bool(schedule.vector) and n > 5)


def test_rows_that_overlap_by_themselves_stay_whole() -> None:
    add = REDUCERS.replace("{t}", "f32")
    assert not _is_blocked(checked(LENGTHS.format(n=128, w=192, op="multiply"), Schedule(), add))
    assert not _is_blocked(checked(SOFTMAX.format(t="f32", n=16, w=8192), Schedule(), add))
    assert not _is_blocked(checked(MOMENTS.format(n=128, w=640), Schedule(), add))


@pytest.mark.parametrize(("n", "w"), [(16, 64), (128, 100), (300, 512), (9000, 128)])
def test_rows_that_come_from_caches_wait_for_cheap_reductions(n: int, w: int) -> None:
    source = checked(MOMENTS.format(n=n, w=w), Schedule(), REDUCERS.replace("{t}", "f32"))
    assert _is_blocked(source) == (n < 9000)  # 9,000 rows have 4.6 MB, which are read from memory


@pytest.mark.parametrize(("n", "w"), [(16, 48), (100, 64), (37, 128), (9000, 128)])
def test_rows_that_are_scaled_by_a_root(n: int, w: int) -> None:
    source = checked(LENGTHS.format(n=n, w=w, op="multiply"), Schedule(), REDUCERS.replace("{t}", "f32"))
    assert _is_blocked(source) == (n < 9000)


@pytest.mark.parametrize(("n", "w"), [(8, 128), (16, 128), (97, 100), (2048, 256), (512, 512), (64, 2048)])
def test_rows_that_are_divided_by_their_norm(n: int, w: int) -> None:
    source = checked(LENGTHS.format(n=n, w=w, op="divide"), Schedule(), REDUCERS.replace("{t}", "f32"))
    assert _is_blocked(source) == (n > 8 and w < 2048)  # a block has several rows in the first-level cache


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_rows_that_are_divided_several_times(steps: int) -> None:
    assert _is_blocked(checked(quantised(steps), Schedule(), REDUCERS.replace("{t}", "f32")))
