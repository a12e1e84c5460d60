"""Reductions of rows, whose lanes are combined in registers."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from compiler.support.processor import AVX2, AVX512, VectorUnit
from tests.codegen import running
from tests.codegen.test_stages import checked

ROWS = """
    x = {t}[5,{n}] parameter(0)
    start = {t}[] constant({start})
    ROOT r = {t}[5] reduce(x, start), dimensions={1}, to_apply=reduce
"""
SEVERAL = """
    x = s32[5,300] parameter(0)
    zero = s32[] constant(0)
    zeros = s32[5,300] broadcast(zero), dimensions={}
    above = pred[5,300] compare(x, zeros), direction=GT
    below = pred[5,300] compare(x, zeros), direction=LT
    true = pred[] constant(true)
    every = pred[5] reduce(above, true), dimensions={1}, to_apply=reduce
    all = pred[5] reduce(below, true), dimensions={1}, to_apply=reduce
    ROOT r = (pred[5], pred[5]) tuple(every, all)
"""
COUNT = """
    x = u8[9,{n}] parameter(0)
    three = u8[] constant(3)
    threes = u8[9,{n}] broadcast(three), dimensions={}
    above = pred[9,{n}] compare(x, threes), direction=GT
    one = s32[9,{n}] convert(above)
    zero = s32[] constant(0)
    ROOT r = s32[9] reduce(one, zero), dimensions={1}, to_apply=reduce
"""
REDUCER = "reduce {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT s = {t}[] {op}(a, b) }}"
LENGTHS = [1, 15, 16, 63, 64, 65, 130, 517, 1100]


STORED = """
    x = {t}[70,{n}] parameter(0)
    v = {t}[{n}] parameter(1)
    w = {t}[70,{n}] broadcast(v), dimensions={1}
    y = {t}[70,{n}] multiply(x, w)
    start = {t}[] constant({start})
    s = {t}[] reduce(y, start), dimensions={0,1}, to_apply=reduce
    ROOT r = ({t}[], {t}[70,{n}]) tuple(s, y)
"""
"""What is reduced is stored as well, so that no element may be computed twice."""


def sources(text: str, reducer: str) -> list[str]:
    """Return the sources of kernels for rows of all lengths, after comparing them with the interpreter."""
    cases = []
    for n in LENGTHS:
        fused = running.fused(text.replace("{n}", str(n)), reducer)
        args = running.random_args(fused.parameter_shapes, np.random.default_rng(n))
        cases.append(running.case_of(fused, args, "c", Schedule(threads=0)))
    for case, outputs in zip(cases, running.run_c(cases), strict=True):
        assert running.problem(outputs, case) is None
    return [c.spec.source for c in cases]


@pytest.mark.parametrize("t", ["u8", "s8", "u16", "s32", "s64"])
@pytest.mark.parametrize("op", ["minimum", "maximum", "add", "multiply", "and", "or"])
def test_rows_of_integers(t: str, op: str) -> None:
    found = sources(ROWS.replace("{t}", t).replace("{start}", "3"), REDUCER.format(t=t, op=op))
    assert not any("_2[2]" in source for source in found)  # the last two lanes
    assert all("omp simd reduction(" in source for source in found[-5:])


@pytest.mark.parametrize(
    ("t", "op", "vector"),
    [("f32", "add", 16), ("f64", "add", 8), ("f32", "maximum", 16), ("s32", "add", 16), ("u8", "or", 64)],
)
def test_the_last_elements_of_stored_rows_have_accumulators_of_their_own(t: str, op: str, vector: int) -> None:
    found = sources(STORED.replace("{t}", t).replace("{start}", "1"), REDUCER.format(t=t, op=op))
    assert ["_rest_lanes[" in source for source in found] == [n > vector and n % vector > 0 for n in LENGTHS]


@pytest.mark.parametrize(
    ("steps", "columns", "kept"), [(40, 32, True), (40, 16, False), (40, 320, False), (4, 32, False)]
)
def test_few_vectors_of_long_bodies_are_not_computed_at_once(steps: int, columns: int, kept: bool) -> None:
    lines = [f"x = s32[70,{columns}] parameter(0)", f"y0 = s32[70,{columns}] not(x)"]
    for k in range(steps):
        lines.append(f"m{k} = s32[70,{columns}] multiply(y{k}, y{k})")
        lines.append(f"y{k + 1} = s32[70,{columns}] add(m{k}, x)")
    lines += [
        "zero = s32[] constant(0)",
        f"r = s32[70] reduce(y{steps}, zero), dimensions={{1}}, to_apply=reduce",
        f"ROOT t = (s32[70], s32[70,{columns}]) tuple(r, y{steps})",
    ]
    source = checked("\n".join(lines), Schedule(threads=0), REDUCER.format(t="s32", op="add"))
    assert ("#pragma GCC unroll 1" in source) == kept


@pytest.mark.parametrize(("unit", "sums", "lanes"), [(AVX512, 1, 64), (AVX512, 3, 64), (AVX2, 1, 64), (AVX2, 3, 32)])
def test_accumulators_fit_into_registers(unit: VectorUnit, sums: int, lanes: int) -> None:
    lines = ["x0 = f32[5,1000] parameter(0)", "zero = f32[] constant(0)"]
    lines += [f"x{k + 1} = f32[5,1000] multiply(x{k}, x0)" for k in range(sums)]
    lines += [f"s{k} = f32[5] reduce(x{k}, zero), dimensions={{1}}, to_apply=reduce" for k in range(sums)]
    lines.append(f"ROOT t = ({', '.join(['f32[5]'] * sums)}) tuple({', '.join(f's{k}' for k in range(sums))})")
    source = checked("\n".join(lines), Schedule(threads=0, unit=unit), REDUCER.format(t="f32", op="add"))
    assert source.count(f"_lanes[{lanes}]") == sums


@pytest.mark.parametrize(("op", "start"), [("and", "true"), ("or", "false")])
def test_rows_of_bools_are_combined_as_bytes(op: str, start: str) -> None:
    found = sources(ROWS.replace("{t}", "pred").replace("{start}", start), REDUCER.format(t="pred", op=op))
    assert all("_byte_sum" in source for source in found[-5:])


def test_several_rows_of_bools() -> None:
    source = checked(SEVERAL, Schedule(threads=0), REDUCER.format(t="pred", op="and"))
    assert source.count("reduction(&:") == 2


def test_bytes_beside_wider_integers() -> None:
    found = sources(COUNT, REDUCER.format(t="s32", op="add"))
    assert not any("_lanes[16]" in source for source in found)  # a quarter of a vector of bytes


@pytest.mark.parametrize("op", ["and", "or"])
def test_short_rows_of_tests_of_integers_run_in_vectors(op: str) -> None:
    text = f"""
    x = s32[40] parameter(0)
    y = s32[20] parameter(1)
    a = s32[40,20] broadcast(x), dimensions={{0}}
    b = s32[40,20] broadcast(y), dimensions={{1}}
    m = s32[40,20] remainder(a, b)
    t = pred[40,20] compare(m, b), direction=LT
    start = pred[] constant({"true" if op == "and" else "false"})
    ROOT r = pred[40] reduce(t, start), dimensions={{1}}, to_apply=reduce
    """
    source = checked(text, Schedule(threads=0), REDUCER.format(t="pred", op=op))
    assert "_bits_sum)" in source  # gcc makes no vectors of loops with an accumulator of type bool


@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.parametrize("op", ["minimum", "maximum", "add"])
def test_rows_of_floats(t: str, op: str) -> None:
    found = sources(ROWS.replace("{t}", t).replace("{start}", "3"), REDUCER.format(t=t, op=op))
    name = {"add": "sum"}.get(op, op)
    assert all(f"{name}_of_{8 if t == 'f32' else 4}_{t}(" in source for source in found[-5:])


@pytest.mark.parametrize("op", ["minimum", "maximum"])
@pytest.mark.parametrize("n", [4, 8, 16, 48, 100])
def test_extremes_propagate_nan_from_every_lane(op: str, n: int) -> None:
    text = f"""
    x = f32[{n},{n}] parameter(0)
    start = f32[] constant(1)
    ROOT r = f32[{n}] reduce(x, start), dimensions={{1}}, to_apply=reduce
    """
    fused = running.fused(text, REDUCER.format(t="f32", op=op))
    x = np.random.default_rng(n).standard_normal((n, n)).astype(np.float32)
    with_nan = x.copy()
    np.fill_diagonal(with_nan, np.nan)
    cases = [running.case_of(fused, [a], "c", Schedule(threads=0)) for a in (x, with_nan)]
    numbers, nans = running.run_c(cases)
    assert running.problem(numbers, cases[0]) is None
    assert np.isnan(nans[0]).all()


def test_sums_start_with_the_zero_that_changes_no_value() -> None:
    text = """
    x = f32[9,64] parameter(0)
    start = f32[] constant(-0.0)
    ROOT r = f32[9] reduce(x, start), dimensions={1}, to_apply=reduce
    """
    fused = running.fused(text, REDUCER.format(t="f32", op="add"))
    case = running.case_of(fused, [np.full((9, 64), -0.0, np.float32)], "c", Schedule(threads=0))
    (outputs,) = running.run_c([case])
    assert np.signbit(outputs[0]).all()
