"""Divisions and reciprocal roots in vector loops: which loops multiply, and results."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running
from tests.codegen.test_stages import checked

SHARES = """
    x = {t}[{m},{n}] parameter(0)
    norm = {t}[{m}] parameter(1)
    norms = {t}[{m},{n}] broadcast(norm), dimensions={{0}}
    ROOT r = {t}[{m},{n}] divide(x, norms)
"""
EXPONENTIALS = SHARES.replace("ROOT r", "q") + "    ROOT r = {t}[{m},{n}] exponential(q)\n"
COLUMNS = SHARES.replace("norm = {t}[{m}]", "norm = {t}[{n}]").replace("dimensions={{0}}", "dimensions={{1}}")
MARK = "uniform_quotient_f32"
ROOTS = """
    x = {t}[{m},{n}] parameter(0)
    y = {t}[{m},{n}] parameter(1)
    z = {t}[{m},{n}] multiply(y, y)
    r = {t}[{m},{n}] rsqrt(z)
    ROOT p = {t}[{m},{n}] multiply(x, r)
"""
ROOT_MARK = "reciprocal_root_f32"


@pytest.mark.parametrize(("m", "n"), [(5, 100), (3, 4099)])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(threads=0), Schedule(vector=256), Schedule(unroll=2)])
def test_light_loops_over_rows_multiply(m: int, n: int, schedule: Schedule) -> None:
    assert MARK in checked(SHARES.format(t="f32", m=m, n=n), schedule)


@pytest.mark.parametrize(
    "text",
    [
        SHARES.format(t="f32", m=500, n=20),
        SHARES.format(t="f64", m=5, n=100),
        SHARES.format(t="bf16", m=5, n=100),
        SHARES.format(t="s32", m=5, n=100),
        EXPONENTIALS.format(t="f32", m=5, n=100),
        COLUMNS.format(t="f32", m=5, n=100),
    ],
    ids=["short", "f64", "bf16", "s32", "exponential", "columns"],
)
def test_other_loops_divide(text: str) -> None:
    assert MARK not in checked(text, Schedule(threads=0))


def test_quotients_are_those_of_a_division() -> None:
    rng = np.random.default_rng(0)
    sizes = np.asarray(
        [0, 1e-45, 3e-39, 2e-38, 1e-30, 2**-64, 1 / 3, 1, 7, 2**64, 1e30, 1e38, 3.4028235e38, np.inf, np.nan]
    )
    special = np.concatenate([sizes, -sizes]).astype(np.float32)
    divisors = np.concatenate([special, rng.uniform(1, 2, 300).astype(np.float32)])
    row = np.concatenate([special, rng.uniform(-2, 2, 3000).astype(np.float32)])
    x = np.tile(row, (len(divisors), 1))
    case = running.case_of(running.fused(SHARES.format(t="f32", m=len(divisors), n=len(row))), [x, divisors], "c")
    (found,) = running.run_c([case])[0]
    with np.errstate(all="ignore"):
        wanted = x / divisors[:, None]
    assert MARK in case.spec.source
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(wanted)[known])
    is_exact = known & ((np.abs(wanted) >= 1e-10) | (wanted == 0))
    np.testing.assert_array_equal(found[is_exact], wanted[is_exact])
    small = known & ~is_exact
    assert np.all(np.abs(found[small] - wanted[small]) <= np.spacing(np.abs(wanted[small])))


@pytest.mark.parametrize(("m", "n"), [(5, 100), (3, 4099)])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(threads=0), Schedule(vector=256), Schedule(unroll=2)])
def test_reciprocal_roots_of_elements_multiply(m: int, n: int, schedule: Schedule) -> None:
    assert ROOT_MARK in checked(ROOTS.format(t="f32", m=m, n=n), schedule)


def test_reciprocal_roots_beside_functions_divide() -> None:
    text = (
        ROOTS.format(t="f32", m=5, n=100).replace("ROOT p", "p")
        + """
        e = f32[5,100] exponential(p)
        ROOT w = f32[5,100] logistic(e)
    """
    )
    assert ROOT_MARK not in checked(text, Schedule(threads=0, stages=0))


def test_reciprocal_roots_are_as_close_as_a_quotient() -> None:
    bits = np.arange(0, 1 << 32, 9973).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.asarray([0, -0.0, np.inf, -np.inf, np.nan, 1e-45], np.float32)])
    text = f"x = f32[{len(x)}] parameter(0)\nROOT r = f32[{len(x)}] rsqrt(x)"
    case = running.case_of(running.fused(text), [x], "c")
    (found,) = running.run_c([case])[0]
    assert ROOT_MARK in case.spec.source
    with np.errstate(all="ignore"):
        wanted = 1 / np.sqrt(x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    is_finite = np.isfinite(wanted) & (wanted != 0)
    other = ~is_finite & ~np.isnan(wanted)
    np.testing.assert_array_equal(found[other], wanted[other])
    spacing = np.spacing(wanted[is_finite].astype(np.float32))
    assert np.all(np.abs(found[is_finite] - wanted[is_finite]) <= 1.5 * spacing)
