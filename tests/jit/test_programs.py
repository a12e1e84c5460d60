"""Programs of `hlogym.jit` on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import hlogym
from compiler.frontends.jax import lower
from compiler.jit.programs import ProgramCache, Settings, trim

X = np.arange(3, dtype=np.float32)
MODULE = lower(lambda x: x * 2, X)
SETTINGS = Settings()


def _folders(cache: Path) -> list[Path]:
    return sorted(p for p in (cache / "programs").iterdir() if p.is_dir())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    return tmp_path


def test_programs_are_found_in_memory_and_on_disk(cache: Path) -> None:
    programs = ProgramCache()
    first = programs.get(str(MODULE), SETTINGS, lambda: MODULE)
    assert not first.loaded
    assert programs.get(str(MODULE), Settings(), lambda: MODULE) is first
    again = ProgramCache().get(str(MODULE), SETTINGS, lambda: MODULE)
    assert again.loaded and again.key == first.key
    np.testing.assert_array_equal(again.executable(X)[0], X * 2)


def test_other_decisions_are_another_program(cache: Path) -> None:
    programs = ProgramCache()
    one_thread = Settings(options=hlogym.CompileOptions(num_threads=1))
    settings = [SETTINGS, one_thread, Settings(decisions=(("fusion_policy", "none"),))]
    found = [programs.get(str(MODULE), s, lambda: MODULE) for s in settings]
    assert len({p.key for p in found}) == len(_folders(cache)) == 3


def test_decisions_by_objects_stay_in_memory(cache: Path) -> None:
    settings = Settings(decisions=(("fusion_policy", lambda state: None),))
    programs = ProgramCache()
    first = programs.get(str(MODULE), settings, lambda: MODULE)
    assert programs.get(str(MODULE), settings, lambda: MODULE) is first
    assert not (cache / "programs").exists()


def test_a_damaged_program_is_compiled_again(cache: Path) -> None:
    ProgramCache().get(str(MODULE), SETTINGS, lambda: MODULE)
    (folder,) = _folders(cache)
    for file in folder.rglob("program.json"):
        file.write_text("{}")
    again = ProgramCache().get(str(MODULE), SETTINGS, lambda: MODULE)
    assert not again.loaded
    np.testing.assert_array_equal(again.executable(X)[0], X * 2)
    assert ProgramCache().get(str(MODULE), SETTINGS, lambda: MODULE).loaded


def test_programs_used_least_recently_are_removed(tmp_path: Path) -> None:
    for n, name in enumerate(("old", "older", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(bytes(100_000))
        age = (5000, 9000, 0)[n]
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert trim(tmp_path, limit=250_000) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]
    assert trim(tmp_path, limit=0) == 1  # one that was used within the last hour stays
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]
