"""Values and conditions that are the same for all elements of a vector loop: where they are computed, and results."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType as T
from tests.codegen import running
from tests.codegen.test_stages import checked

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"
MASKED_SUMS = """
    x = f32[{m},{n}] parameter(0)
    y = f32[{n}] parameter(1)
    limit = f32[{m}] parameter(2)
    one = f32[] constant(1)
    ones = f32[{m}] broadcast(one), dimensions={{}}
    short = pred[{m}] compare(limit, ones), direction=LT
    mask = pred[{m},{n}] broadcast(short), dimensions={{0}}
    kept = f32[{m},{n}] convert(mask)
    rows = f32[{m},{n}] broadcast(y), dimensions={{1}}
    away = f32[{m},{n}] subtract(x, rows)
    part = f32[{m},{n}] multiply(away, kept)
    zero = f32[] constant(0)
    ROOT r = f32[{n}] reduce(part, zero), dimensions={{0}}, to_apply=add
"""
GUARDED = """
    x = {t}[{m},{n}] parameter(0)
    y = {t}[{m},{n}] parameter(1)
    norm = {t}[{m}] parameter(2)
    zero = {t}[] constant(0)
    zeros = {t}[{m}] broadcast(zero), dimensions={{}}
    none = pred[{m}] compare(norm, zeros), direction=EQ
    nowhere = pred[{m},{n}] broadcast(none), dimensions={{0}}
    norms = {t}[{m},{n}] broadcast(norm), dimensions={{0}}
    share = {t}[{m},{n}] divide(x, norms)
    empty = {t}[{m},{n}] broadcast(zero), dimensions={{}}
    safe = {t}[{m},{n}] select(nowhere, empty, share)
    other = {t}[{m},{n}] select(nowhere, y, safe)
    sum = {t}[{m},{n}] add(safe, other)
    a = {t}[{m},{n}] multiply(sum, y)
    b = {t}[{m},{n}] subtract(a, x)
    c = {t}[{m},{n}] multiply(b, b)
    d = {t}[{m},{n}] add(c, y)
    e = {t}[{m},{n}] subtract(d, sum)
    f = {t}[{m},{n}] multiply(e, a)
    g = {t}[{m},{n}] add(f, b)
    h = {t}[{m},{n}] subtract(g, c)
    i = {t}[{m},{n}] add(h, x)
    ROOT r = {t}[{m},{n}] multiply(i, share)
"""
ROLLED = """
    x = f32[{m},{n}] parameter(0)
    y = f32[{m}] parameter(1)
    zero = f32[] constant(0)
    zeros = f32[{m}] broadcast(zero), dimensions={{}}
    large = pred[{m}] compare(y, zeros), direction=GT
    one = f32[] constant(1)
    ones = f32[{m}] broadcast(one), dimensions={{}}
    weight = f32[{m}] select(large, ones, y)
    weights = f32[{m},{n}] broadcast(weight), dimensions={{0}}
    scaled = f32[{m},{n}] multiply(x, weights)
    last = f32[1,{n}] slice(scaled), slice={{[{end}:{m}], [0:{n}]}}
    rest = f32[{end},{n}] slice(scaled), slice={{[0:{end}], [0:{n}]}}
    rolled = f32[{m},{n}] concatenate(last, rest), dimensions={{0}}
    away = f32[{m},{n}] subtract(scaled, rolled)
    ROOT r = f32[{m},{n}] multiply(away, away)
"""


def loops_with_fixed_bools(text: str, reducer: str) -> int:
    """Return how many vector loops compute a bool that is the same for all of their elements."""
    body = bind_c(lower(running.fused(text, reducer)), Schedule(threads=0)).body
    loops = [s for s in walk(body) if isinstance(s, lir.For) and s.kind.is_vector]
    loads = [(f, x) for f in loops for x in f.body if isinstance(x, lir.Let) and x.type is T.PRED]
    return sum(isinstance(x.value, lir.Load) and f.var not in x.value.offset.variables() for f, x in loads)


@pytest.mark.parametrize(("m", "n"), [(40, 8), (33, 20), (300, 70)])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(threads=0), Schedule(vector=256), Schedule(hoist=0)])
def test_the_mask_of_a_row(m: int, n: int, schedule: Schedule) -> None:
    checked(MASKED_SUMS.format(m=m, n=n), schedule, ADD)


def test_the_mask_of_a_row_is_found_before_the_loop_over_its_columns() -> None:
    text = MASKED_SUMS.format(m=300, n=70).replace(
        "short = pred[300] compare(limit, ones), direction=LT", "short = pred[300] parameter(3)"
    )
    assert loops_with_fixed_bools(text, ADD) == 0


@pytest.mark.parametrize("t", ["f32", "f64", "bf16", "s32"])
@pytest.mark.parametrize(("m", "n"), [(5, 100), (3, 17)])
def test_selects_by_the_condition_of_a_row(t: str, m: int, n: int) -> None:
    source = checked(GUARDED.format(m=m, n=n, t=t), Schedule(threads=0))
    masks = re.findall(r"const uint\d+_t (\w+) = \(uint\d+_t\)hlogym_opaque\(-", source)
    assert len(set(masks)) == len(masks)
    if t == "f32":
        assert "choose_float(" in source
        assert masks


@pytest.mark.parametrize(("m", "n"), [(20, 64), (9, 30)])
@pytest.mark.parametrize("threads", [0, 1])
def test_rows_that_a_test_decides_have_loops_of_their_own(m: int, n: int, threads: int) -> None:
    source = checked(ROLLED.format(m=m, n=n, end=m - 1), Schedule(threads=threads))
    inner = source[source.index("#pragma omp simd") :]
    assert "if (" not in inner.split("}")[0]


def test_loops_that_define_the_same_names() -> None:
    text = """
        mask = pred[37] parameter(0)
        x = f32[37,9] parameter(1)
        y = s32[37,9] parameter(2)
        rows = pred[37,9] broadcast(mask), dimensions={0}
        columns = pred[37,9] parameter(3)
        both = pred[37,9] and(rows, columns)
        zero = f32[] constant(0)
        zeros = f32[37,9] broadcast(zero), dimensions={}
        kept = f32[37,9] select(both, x, zeros)
        wide = f32[37,9] convert(y)
        sum = f32[37,9] add(kept, wide)
        e = f32[37,9] exponential(sum)
        ROOT r = f32[9] reduce(e, zero), dimensions={0}, to_apply=add
    """
    for schedule in (Schedule(), Schedule(threads=0, splits=1), Schedule(splits=4, unroll=2), Schedule(stages=0)):
        checked(text, schedule, ADD)


LOGIC = """
    x = s32[{m},{n}] parameter(0)
    y = pred[{m},{n}] parameter(1)
    row = s32[{m}] parameter(2)
    zero = s32[] constant(0)
    zeros = s32[{m}] broadcast(zero), dimensions={{}}
    negative = pred[{m}] compare(row, zeros), direction=LT
    low = pred[{m},{n}] broadcast(negative), dimensions={{0}}
    none = s32[{m},{n}] broadcast(zero), dimensions={{}}
    below = pred[{m},{n}] compare(x, none), direction=LT
    differs = pred[{m},{n}] compare(below, low), direction=NE
    both = pred[{m},{n}] and(differs, y)
    chosen = pred[{m},{n}] select(both, low, y)
    sum = s32[{m},{n}] add(x, x)
    other = s32[{m},{n}] select(differs, sum, x)
    ROOT r = (pred[{m},{n}], s32[{m},{n}]) tuple(chosen, other)
"""
REACHED = """
    edges = pred[{n},{n}] parameter(0)
    steps = s32[{n}] parameter(1)
    zero = s32[] constant(0)
    zeros = s32[{n}] broadcast(zero), dimensions={{}}
    known = pred[{n}] compare(steps, zeros), direction=GE
    rows = pred[{n},{n}] broadcast(known), dimensions={{0}}
    used = pred[{n},{n}] and(edges, rows)
    none = pred[] constant(false)
    ROOT r = pred[{n}] reduce(used, none), dimensions={{0}}, to_apply=either
"""
EITHER = "either { a = pred[] parameter(0) b = pred[] parameter(1) ROOT s = pred[] or(a, b) }"


@pytest.mark.parametrize(("m", "n"), [(40, 8), (7, 100), (3, 17)])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(threads=0), Schedule(vector=256), Schedule(short=0)])
def test_conditions_of_rows_beside_those_of_elements(m: int, n: int, schedule: Schedule) -> None:
    checked(LOGIC.format(m=m, n=n), schedule)


@pytest.mark.parametrize("n", [16, 100, 129])
def test_rows_of_bools_that_conditions_choose(n: int) -> None:
    source = checked(REACHED.format(n=n), Schedule(threads=0), EITHER)
    assert re.search(r"const uint8_t (\w+) = \(uint8_t\)hlogym_opaque\(", source)


def test_bools_are_selected_by_logic() -> None:
    source = checked(LOGIC.format(m=7, n=100), Schedule(threads=0))
    assert not re.search(r"bool v\d+\w* = \(v\d+\w* \?", source)
