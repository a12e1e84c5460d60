"""The best plans of a run survive a kill at any moment."""

import json
from pathlib import Path

import pytest

from experiments import best_plans
from experiments.best_plans import BestPlans
from experiments.results import ResultError
from experiments.run_folder import RunFolder


def test_only_a_better_plan_replaces_a_plan(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    best = BestPlans(run, {})
    best.offer("p", 2.0, "two")
    best.offer("p", 1.5, "worse")
    best.offer("p", 2.0, "equal")
    assert run.plan_file("p").read_text() == "two"
    best.offer("p", 3.0, "three")
    assert run.plan_file("p").read_text() == "three"
    assert best.speedups == {"p": 3.0}


def test_a_plan_found_after_the_checkpoint_is_not_lost(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    before = BestPlans(run, {})
    before.offer("p", 2.0, "two")
    checkpoint = dict(before.speedups)
    before.offer("p", 5.0, "five")
    # Killed here.
    after = BestPlans(run, checkpoint)
    after.offer("p", 3.0, "three")
    assert run.plan_file("p").read_text() == "five"
    assert after.speedups == {"p": 5.0}


def test_a_kill_between_journal_and_plan_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    BestPlans(run, {}).offer("p", 2.0, "two")

    def killed(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(best_plans, "write_text", killed)
        BestPlans(run, {}).offer("p", 5.0, "five")
    after = BestPlans(run, {})
    assert after.speedups == {"p": 2.0}  # the speedup of the plan on disk
    after.offer("p", 3.0, "three")
    assert run.plan_file("p").read_text() == "three"


def test_valid_lines_of_a_damaged_journal_are_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    best = BestPlans(run, {"q": 1.5})
    best.offer("p", 2.0, "two")
    with (tmp_path / "plans.jsonl").open("a") as file:
        file.write('[1]\n{"program": "p"}\n' + json.dumps({"program": "p", "plan": "x", "speedup": None}) + '\n{"prog')
    after = BestPlans(run, {"q": 1.5})
    assert after.speedups == {"p": 2.0, "q": 1.5}
    after.offer("q", 2.5, "better")
    assert BestPlans(run, {}).speedups == {"p": 2.0, "q": 2.5}


def test_an_unwritable_folder_raises_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot write"):
        BestPlans(RunFolder(tmp_path / "file"), {}).offer("p", 2.0, "two")
