"""Divisions by a value that is the same for all elements of a vector loop: which loops multiply, and results."""

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
