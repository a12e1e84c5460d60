"""The part `training` of `python -m experiments.gpu`: what it needs, and one short run on the CPU."""

from __future__ import annotations

import time
from pathlib import Path
from zipfile import ZipFile

import pytest

from env.isolated import python_command
from experiments.gpu import training
from experiments.gpu.job import Job
from experiments.gpu.settings import Settings

pytest.importorskip("sb3_contrib")


def job_in(folder: Path) -> Job:
    return Job(Settings(folder, stand_in=True), "training", time.monotonic() + 60)


def wheel(folder: Path, name: str) -> None:
    """Write a wheel with one module."""
    info = f"{name}-1.0.dist-info"
    with ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "VALUE = 7\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "NEEDED", ("numpy", "no_such_module"))
    job = job_in(tmp_path)
    training.run(job)
    assert job.skipped is not None
    assert "not installed here: no_such_module" in job.skipped
    assert "gymnasium" in job.skipped


def test_wheels_are_installed_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "NEEDED", ("carried_module",))
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    assert training.install(wheels, site) == f"{wheels} has none"
    wheel(wheels, "carried_module")
    assert training.missing(()) == ["carried_module"]
    assert training.install(wheels, site) is None
    assert training.missing((site,)) == []


def test_the_import_path_of_the_training_begins_with_the_folder(tmp_path: Path) -> None:
    command = python_command("pass", "an argument")
    longer = training.with_path(command, (tmp_path,))
    count = int(command[4])
    assert int(longer[4]) == count + 1
    assert longer[5] == str(tmp_path)
    assert longer[6 : 6 + count] == command[5 : 5 + count]
    assert longer[-1] == "an argument"


@pytest.mark.slow
def test_a_short_training_compares_plans(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    training.run(job)
    assert job.skipped is None
    assert job.errors == []
    assert {r["strategy"] for r in job.rows} >= {"agent, greedy", "random, best"}
    assert all(s > 0 for r in job.rows for s in r["speedups"])
    assert job.facts["measured episodes"] > 0
