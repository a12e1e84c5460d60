"""The checks of `tests.sweeps.long_run` find what they look for, and a short run passes them."""

import sys
import time
from pathlib import Path

import pytest

from env.gate import Block, judge
from env.store import PlanStore, PlanTime
from tests.sweeps import long_run
from tests.sweeps.long_run import Run, Sample, growth
from tests.sweeps.long_run_player import JournalStore, expected


def samples(megabytes: list[float], files: int = 10) -> list[Sample]:
    return [Sample(float(n), 0, n, (m, 100.0), (files, 5), (50, 60)) for n, m in enumerate(megabytes)]


def test_growth_is_what_the_last_third_holds_more_than_the_second() -> None:
    assert growth(samples([50.0 + 5 * n for n in range(10)] + [100.0] * 20), "a") == []  # caches that fill up
    assert growth(samples([100.0, 400.0, 100.0] * 10), "a") == []  # peaks that go down again
    (fault,) = growth(samples([100.0 + 3 * n for n in range(30)]), "a")
    assert fault.startswith("a: the environment holds 17")
    leaking = [Sample(float(n), 0, n, (100.0, 100.0), (10, 5 + n), (50, 60)) for n in range(30)]
    assert growth(leaking, "a") == ["a: the worker holds 30 open files, and 20 before"]


def test_a_record_that_was_accepted_and_is_gone_is_found(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    verdict = judge([Block((2.0, 1.0, 1.0, 2.0), 1.0)] * 9)
    with JournalStore(tmp_path / "disk" / "times.sqlite", tmp_path / "0.keys") as store:
        store.put(*(PlanTime(f"key{n}", "p", verdict, 0.1, time.time()) for n in range(3)))
    run = Run.__new__(Run)
    run.folder, run.faults = tmp_path, []
    assert run._lost_records() == (0, 3)
    with PlanStore(tmp_path / "disk" / "times.sqlite") as plain:
        plain._db.execute("DELETE FROM plan_times WHERE key = 'key1'")
        plain._db.execute("UPDATE plan_times SET measured_at = 1.0 WHERE key = 'key2'")
        plain._db.commit()
    assert run._lost_records() == (2, 3)
    assert run.faults == []


def test_the_fate_of_a_plan_depends_on_its_text() -> None:
    fates = [expected(f"plan {n}") for n in range(2000)]
    assert set(fates) == {None, "crash", "timeout"}
    assert fates == [expected(f"plan {n}") for n in range(2000)]
    assert expected(None) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_run_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["long_run", "--episodes", "400", "--minutes", "4", "--out", str(tmp_path / "page")]
    monkeypatch.setattr(sys, "argv", arguments)
    long_run.main()
    text = (tmp_path / "page.md").read_text()
    assert "of them lost: " in text
    assert "instead of" not in text
    assert "records are lost" not in text
