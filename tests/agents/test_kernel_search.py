"""The search over kernel choices, and what `hlogym tune` writes, with times given by a function of the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.finalists import Confirmed, Finalists, confirm
from agents.kernel_search import KernelSearch
from agents.search import best_measured
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.plan import CompilationPlan
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import KernelTime, Measurement, Measurer
from env.statistics import Interval
from env.suites import Program, load_suite
from experiments.tune import _report
from tests.env.scripted import taking
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
        return replace(taking(seconds), kernels=(KernelTime("s", "k", 1.0, seconds),))


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
    best = search.improve(fused(COLUMNS).plan, 3, lambda _, m: seen.append(m))
    assert search.measurements == len(seen) == 3
    assert _schedules(best) == {"s": {"columns": 64}}


class _Narrowest:
    """A ranking by which fewer columns are faster."""

    def rank(self, site: KernelSite, choices: Sequence[KernelChoice]) -> Sequence[float]:
        del site
        return [float(c.schedule.get("columns", 256)) for c in choices]


def test_a_ranking_says_which_choices_are_measured_first(program: Program) -> None:
    timed = _Timed(lambda k: k.get("columns", 256) / 256)
    search = KernelSearch(parse(COLUMNS), program, timed, _Narrowest())
    best = search.improve(fused(COLUMNS).plan, 1)
    assert _schedules(best) == {"s": {"columns": 16}}


def test_plans_that_are_not_measured_stay_in_the_iterator(program: Program) -> None:
    start = fused(COLUMNS)
    plans = iter([start.plan, CompilationSession(parse(COLUMNS)).plan])
    found = best_measured(_Timed(lambda _: 1.0), program, plans, 1)
    assert found.plan == start.plan
    assert next(plans).base == ""


class _Again(_Timed):
    """Returns the measurements of a script, and counts fresh processes."""

    def __init__(self, *script: Measurement) -> None:
        super().__init__(lambda _: 1.0)
        self.script = list(script)
        self.restarts_asked = 0

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        del program, plan
        assert remeasure
        return self.script.pop(0)

    def measure_reference(self, program: Any, remeasure: bool = False) -> Measurement:
        del program, remeasure
        return Measurement(Interval(1.0, 1.0, 1.0), thunks=1)

    def restart(self) -> None:
        self.restarts_asked += 1


def _plans() -> list[CompilationPlan]:
    session, found = fused(COLUMNS), []
    for columns in (64, 128, 512):
        session.set_kernel("s", {"columns": columns})
        found.append(session.plan)
    return found


def test_the_fastest_plans_become_finalists() -> None:
    slow, fast, faster = _plans()
    finalists = Finalists(2)
    failed = Measurement(None, "wrong", "all wrong")
    for plan, measured in ((slow, taking(0.9)), (fast, taking(0.8)), (faster, taking(0.5)), (slow, failed)):
        finalists.note(plan, measured)
    assert finalists.plans == [faster, fast]
    finalists.note(slow, taking(1.1))
    assert finalists.plans == [faster, fast]


def test_a_winner_is_confirmed_in_fresh_processes(program: Program) -> None:
    first, second, third = _plans()
    finalists = Finalists()
    for plan, measured in ((first, taking(0.5)), (second, taking(0.6)), (third, taking(0.7))):
        finalists.note(plan, measured)
    # The best of the search does not repeat its gain; the next one does, but not twice; the last one does.
    measurer = _Again(taking(1.1), taking(0.6), taking(0.8), taking(0.9, counts=False), taking(0.8))
    found = confirm(measurer, program, finalists)
    assert found is not None
    assert found.plan == third
    assert found.measurement.relative == pytest.approx(0.8)
    assert measurer.restarts_asked == 3


@pytest.mark.parametrize("confirmed", [True, False])
def test_tune_writes_the_default_plan_unless_a_winner_is_confirmed(
    confirmed: bool, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    default, winner = fused(COLUMNS).plan, _plans()[0]
    found = Confirmed(winner, taking(0.5)) if confirmed else None
    output = tmp_path / "plan.json"
    _report(program, default, found, 7, _Again(), output, True)
    assert CompilationPlan.load(output) == (winner if confirmed else default)
    said = json.loads(capsys.readouterr().out)
    assert (said["faster"], said["speedup"][0]) == (confirmed, 2.0 if confirmed else 1.0)
    _report(program, default, found, 7, _Again(), output, False)
    assert ("the default plan is written" in capsys.readouterr().out) is not confirmed
