"""The search over kernel choices, and what `hlogym tune` writes, with times given by a function of the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.kernel_search import KernelSearch
from agents.search import best_measured
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Comparison, KernelTime, Measurement, Measurer
from env.statistics import Interval
from env.suites import Program, load_suite
from experiments.tune import _report
from tests.env.test_kernels import COLUMNS
from tests.session.test_kernel_sites import fused

Times = Callable[[Mapping[str, int]], float | None]


class _Timed(Measurer):
    """Times plans by a function of the knobs of their kernels."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self.times = times

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        del program, remeasure
        assert plan is not None
        session = CompilationSession(parse(COLUMNS))
        session.replay(plan)
        knobs = {k: v for s in session.kernel_sites() for k, v in session.chosen_kernel(s).schedule.items()}
        seconds = self.times(knobs)
        if seconds is None:
            return Measurement(None, "wrong", "all wrong")
        each = Interval(seconds, seconds, seconds)
        return Measurement(each, kernels=(KernelTime("s", "k", 1.0, seconds),))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "columns.hlo").write_text(COLUMNS)
    return load_suite(tmp_path).programs[0]


def _search(times: Times, program: Program) -> KernelSearch:
    return KernelSearch(parse(COLUMNS), program, _Timed(times))


def _schedules(plan: CompilationPlan) -> dict[str, Mapping[str, int]]:
    return {name: c.schedule for row in plan.kernels.values() for name, c in row.items()}


def test_each_kernel_gets_its_fastest_choice(program: Program) -> None:
    search = _search(lambda k: 2 + abs(k.get("columns", 256) - 64) / 64 + abs(k.get("tile", 32) - 8), program)
    start = fused(COLUMNS).plan
    best = search.improve(start, 100)
    assert sorted(map(str, _schedules(best).values())) == ["{'columns': 64}", "{'tile': 8}"]
    assert search.failures == 0 and search.measurements < 100
    assert search.improve(best, 100) == best


def test_a_choice_that_fails_or_saves_little_is_not_taken(program: Program) -> None:
    search = _search(lambda k: None if "tile" in k else 0.99 if k else 1.0, program)
    start = fused(COLUMNS).plan
    assert search.improve(start, 100) == start
    assert search.failures > 0 and "all wrong" in search.reason


def test_the_budget_bounds_the_measurements_and_the_heaviest_kernel_comes_first(program: Program) -> None:
    search = _search(lambda k: 1.0 / (1 + k.get("columns", 0)), program)
    seen: list[Measurement] = []
    best = search.improve(fused(COLUMNS).plan, 3, seen.append)
    assert search.measurements == len(seen) == 3
    assert _schedules(best) == {"s": {"columns": 64}}


def test_plans_that_are_not_measured_stay_in_the_iterator(program: Program) -> None:
    start = fused(COLUMNS)
    plans = iter([start.plan, CompilationSession(parse(COLUMNS)).plan])
    found = best_measured(_Timed(lambda _: 1.0), program, plans, 1)
    assert found.plan == start.plan
    assert next(plans).base == ""


@pytest.mark.parametrize(("tuned", "faster"), [(0.5, True), (1.0, False), (1.2, False)])
def test_tune_writes_the_default_plan_unless_the_winner_is_faster(
    tuned: float, faster: bool, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = fused(COLUMNS)
    default = session.plan
    session.set_kernel("s", {"columns": 64})
    measurer = _Timed(lambda _: 1.0)
    compared = Comparison({"default": (1.0, 1.01, 0.99) * 5, "tuned": (tuned, tuned * 1.01, tuned * 0.99) * 5})
    measurer.compare = lambda *_: compared  # type: ignore[method-assign]
    output = tmp_path / "plan.json"
    _report(program, default, session.plan, 7, measurer, output, True)
    assert CompilationPlan.load(output) == (session.plan if faster else default)
    assert json.loads(capsys.readouterr().out)["faster"] is faster
    _report(program, default, session.plan, 7, measurer, output, False)
    assert ("the default plan is written" in capsys.readouterr().out) is not faster
