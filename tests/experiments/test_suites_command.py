"""`hlogym suites`: its list, its builds and its checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from env.suites import read_openings
from env.suites.programs.listing import read_listing
from tests.env.built_suite import write_built_suite
from tests.experiments.shell import Shell


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


def test_the_list_counts_programs_by_split(hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    rows = {row["suite"]: row for row in json.loads(hlogym("suites", "list", "--json").out)}
    assert set(rows) == {"quickstart", "jax", "linear_algebra", "kernels", "models", "corpus"}
    assert (rows["quickstart"]["train"], rows["quickstart"]["test"]) == ("8", "8")
    test = [p for p in read_listing()[0].values() if p.split == "test"]
    assert rows["corpus"]["test"] == str(len(test))
    assert "not built" in rows["corpus"]["note"]
    assert "quickstart" in hlogym("suites").out


def test_a_part_is_not_built_over_the_whole(hlogym: Shell) -> None:
    assert "--output" in hlogym("suites", "build", "--families", "softmax").err
    assert "list, build or check" in hlogym("suites", "bake").err
    assert "I below N" in hlogym("suites", "check", "--shard", "4/4").err


def test_a_check_compares_times_and_records_the_opening(
    hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_built_suite(tmp_path, monkeypatch)
    state, table = tmp_path / "state.jsonl", tmp_path / "programs.md"
    failing = folder / "train" / "family_train-one.hlo"
    failing.write_text(
        failing.read_text().replace("cosine", "bitcast").replace("f32[8]{0} bitcast", "f32[9]{0} bitcast")
    )
    message = hlogym.fails("suites", "check", "--sample", "2", "--state", state, "--markdown", table)
    assert "1 programs failed" in message
    assert "family_train-one" in message
    assert "3 programs in 3 families" in table.read_text()
    assert "1 opcodes" not in table.read_text()
    assert "check of programs" in read_openings()[0]["purpose"]
    before = state.read_text()
    assert len(before.splitlines()) == 2
    hlogym.fails("suites", "check", "--sample", "2", "--state", state)
    assert state.read_text() == before
