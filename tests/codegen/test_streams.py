"""Stores past the caches: the same results as other stores, for whole and partial blocks and every output."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running

CHAIN = """
    a = {t}[{dims}] parameter(0)
    b = {t}[{dims}] parameter(1)
    c = {t}[{dims}] add(a, b)
    d = {t}[{dims}] multiply(c, a)
    ROOT r = ({t}[{dims}], {t}[{dims}]) tuple(c, d)
"""


@pytest.mark.parametrize("dims", ["4096", "4099", "300000", "3,5000", "70,4500"])
@pytest.mark.parametrize("threads", [0, 1])
def test_results_are_those_of_the_interpreter(dims: str, threads: int) -> None:
    rng = np.random.default_rng(1)
    cases = []
    for t in ("f32", "s64"):
        fused = running.fused(CHAIN.format(t=t, dims=dims))
        args = running.random_args(fused.parameter_shapes, rng)
        schedule = Schedule(stream=1, threads=threads, grain=2000)
        cases.append(running.case_of(fused, args, "c", schedule))

    results = running.run_c(cases)

    assert all("hlogym_stream(" in case.spec.source for case in cases)
    assert [running.problem(found, case) for found, case in zip(results, cases, strict=True)] == [None, None]


def test_a_transposed_result_and_half_types_are_stored_as_usual() -> None:
    for text in (
        "a = bf16[9000] parameter(0)\nROOT r = bf16[9000] negate(a)",
        "a = f32[9000] parameter(0)\nROOT r = f32[9000] reverse(a), dimensions={0}",
    ):
        fused = running.fused(text)
        args = running.random_args(fused.parameter_shapes, np.random.default_rng(0))
        case = running.case_of(fused, args, "c", Schedule(stream=1))
        assert running.problem(running.run_c([case])[0], case) is None
        assert ("hlogym_stream(" in case.spec.source) == ("f32" in text)
