"""The best plans of a search, their confirmation, and what `hlogym tune` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.finalists import Confirmed, Finalists, confirm
from compiler.plan import CompilationPlan
from env.measurement import Measurement, Measurer
from env.statistics import Interval
from env.suites import Program, load_suite
from experiments.tune import _facts, _print
from tests.env.scripted import taking
from tests.env.test_kernels import COLUMNS
from tests.session.test_kernel_sites import fused


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "columns.hlo").write_text(COLUMNS)
    return load_suite(tmp_path).programs[0]


class _Again(Measurer):
    """Returns the measurements of a script, and counts fresh processes."""

    def __init__(self, *script: Measurement) -> None:
        super().__init__()
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
    said = _facts(program, default, found, 7, _Again(), output, "columns", "measured-time")
    assert CompilationPlan.load(output) == (winner if confirmed else default)
    assert (said["faster"], said["speedup"][0]) == (confirmed, 2.0 if confirmed else 1.0)
    _print({**said, "noise": None})
    printed = capsys.readouterr().out
    assert ("the default plan is written" in printed) is not confirmed
    assert f"hlogym run columns --plan {output}" in " ".join(printed.split())
