"""Reductions over rolled and padded rows, whose edges are split out: results, and which loops have no tests left."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running
from tests.codegen.test_edges import loops_of

REDUCERS = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
min { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] minimum(a, b) }
"""


def rolled(dims: tuple[int, ...], reduced: str, kept: str, reducer: str = "add", by: int = 1) -> str:
    """Return a reduction of the products of an array with itself rolled by some columns."""
    *outer, n = dims
    shape = ",".join(map(str, dims))
    rest = "".join(f"[0:{d}]," for d in outer)
    part = [",".join(map(str, (*outer, k))) for k in (by, n - by)]
    last = len(outer)
    start = {"add": "0", "min": "inf"}[reducer]
    return f"""
    x = f32[{shape}] parameter(0)
    a = f32[{part[0]}] slice(x), slice={{{rest}[{n - by}:{n}]}}
    b = f32[{part[1]}] slice(x), slice={{{rest}[0:{n - by}]}}
    c = f32[{shape}] concatenate(a, b), dimensions={{{last}}}
    p = f32[{shape}] multiply(c, x)
    z = f32[] constant({start})
    ROOT r = f32[{kept}] reduce(p, z), dimensions={{{reduced}}}, to_apply={reducer}
    """


PADDED = """
    x = f32[40,90] parameter(0)
    z = f32[] constant(0)
    p = f32[40,96] pad(x, z), padding=0_0x2_4
    s = f32[40,96] exponential(p)
    m = f32[40] reduce(s, z), dimensions={1}, to_apply=add
    mb = f32[40,96] broadcast(m), dimensions={0}
    ROOT r = f32[40,96] divide(s, mb)
"""
PIECES = """
    x = f32[40,512] parameter(0)
    y = f32[40,96] parameter(1)
    v = f32[40,4] parameter(2)
    w = f32[40,80] parameter(3)
    c = f32[40,692] concatenate(x, y, v, w), dimensions={1}
    s = f32[40,692] multiply(c, c)
    z = f32[] constant(0)
    ROOT r = f32[40] reduce(s, z), dimensions={1}, to_apply=add
"""
"""Three long pieces and a short one."""
PROGRAMS = {
    "pieces": PIECES,
    "all of two halves": rolled((8192,), "0", "", by=4096),
    "rows": rolled((50, 321), "1", "50"),
    "minima of rows": rolled((50, 323), "1", "50", "min", 3),
    "columns": rolled((50, 320), "0", "320", "min"),
    "many columns": rolled((9, 1000), "0", "1000"),
    "all of one dimension": rolled((4993,), "0", ""),
    "all of two dimensions": rolled((64, 300), "0,1", ""),
    "many rows": rolled((3000, 256), "1", "3000"),
    "by half": rolled((20, 128), "1", "20", by=64),
    "short rows": rolled((50, 12), "1", "50"),
    "block": PADDED,
}


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule(edges=0), Schedule(accumulators=1, stages=0), Schedule(splits=3)]
)
def test_results_are_those_of_the_interpreter(schedule: Schedule) -> None:
    rng = np.random.default_rng(0)
    cases = {}
    for name, text in PROGRAMS.items():
        f = running.fused(text, REDUCERS)
        cases[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c", schedule)
    found = running.run_c(list(cases.values()))
    problems = {n: running.problem(r, c) for (n, c), r in zip(cases.items(), found, strict=True)}
    assert {n: p for n, p in problems.items() if p is not None} == {}


@pytest.mark.parametrize("name", ["rows", "minima of rows", "columns", "all of one dimension", "by half", "pieces"])
def test_the_middle_has_no_tests(name: str) -> None:
    assert not any(tests for _, tests in loops_of(PROGRAMS[name], Schedule(accumulators=1), REDUCERS))
    assert any(tests for _, tests in loops_of(PROGRAMS[name], Schedule(edges=0, accumulators=1), REDUCERS))


def test_each_long_piece_of_a_row_has_a_loop() -> None:
    halves = [n for n, _ in loops_of(PIECES, Schedule(accumulators=1), REDUCERS) if n == 8]
    assert len(halves) == 3  # by which the lanes of each loop are combined


def test_a_reduction_that_threads_divide_stays_one() -> None:
    assert any(tests for _, tests in loops_of(PROGRAMS["all of two halves"], Schedule(accumulators=1), REDUCERS))


def test_short_rows_stay_whole() -> None:
    text = PROGRAMS["short rows"]
    assert loops_of(text, reducers=REDUCERS) == loops_of(text, Schedule(edges=0), REDUCERS)
