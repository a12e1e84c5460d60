"""Sealed test programs: refused unless opened, every opening recorded, and only the frozen programs accepted."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import hlogym  # noqa: F401 - registers the environments
from compiler.errors import UnknownNameError
from env.suites import (
    ManifestError,
    SealedError,
    Uniform,
    find_program,
    load_suite,
    open_test_programs,
    program_in,
    read_openings,
)
from experiments.opening import opened_for_evaluation
from tests.env.built_suite import FROZEN, PRINT, TEXT, write_built_suite
from tests.experiments.shell import Shell


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a built suite with one program in each split."""
    return write_built_suite(tmp_path, monkeypatch)


def test_training_programs_need_no_opening(folder: Path) -> None:
    assert [p.name for p in load_suite("corpus").programs] == ["family_train-one", "family_validation-one"]
    (program,) = load_suite("corpus/train").programs
    assert (program.family, program.split, program.inputs) == ("family_train", "train", (Uniform(1, 2),))
    assert program.text() == TEXT
    assert find_program("family_validation-one").split == "validation"
    assert read_openings() == []


def test_test_programs_are_refused_by_every_way_of_loading(folder: Path) -> None:
    for load in (
        lambda: load_suite("corpus/test"),
        lambda: load_suite("corpus/train,corpus/test"),
        lambda: load_suite(folder / "test"),
        lambda: load_suite(folder / "test" / "waves-test.hlo"),
        lambda: find_program("waves-test"),
        lambda: find_program(folder / "test" / "waves-test.hlo"),
        lambda: program_in(folder / "test" / "waves-test.hlo"),
        lambda: gym.make("hlogym/Fusion-v0", suite="corpus/test"),
    ):
        with pytest.raises(SealedError, match="--open-test PURPOSE"):
            load()
    assert read_openings() == []


def test_an_opening_is_recorded_with_who_when_why_and_what(folder: Path, tmp_path: Path) -> None:
    with open_test_programs("a look", "my-policy", [tmp_path / "results"]):
        assert [p.name for p in load_suite("corpus/test").programs] == ["waves-test"]
    (opening,) = read_openings()
    assert opening == read_openings(tmp_path / "results")[0]
    assert opening["purpose"] == "a look"
    assert opening["policy"] == "my-policy"
    assert opening["suite"] == "corpus/test"
    assert opening["programs"] == 1
    assert opening["frozen"] == FROZEN
    assert opening["user"]
    assert opening["when"].endswith("Z")
    with pytest.raises(SealedError):
        load_suite("corpus/test")


def test_an_opening_needs_a_purpose_and_a_record(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SealedError, match="needs a purpose"), open_test_programs("  "):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SealedError, match="cannot be recorded"),
        open_test_programs("a look", folders=[tmp_path / "file" / "results"]),
    ):
        load_suite("corpus/test")


def test_programs_other_than_the_frozen_ones_are_refused(folder: Path) -> None:
    manifest = folder / "test" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(PRINT, "1" * 32))
    with open_test_programs("a look"), pytest.raises(SealedError, match=r"not the frozen ones.*jax 1\.0"):
        load_suite("corpus/test")
    assert read_openings() == []


def test_a_test_program_that_was_edited_is_refused(folder: Path) -> None:
    (folder / "test" / "waves-test.hlo").write_text(TEXT.replace("cosine", "sine"))
    with open_test_programs("a look"), pytest.raises(SealedError, match="were changed after they were built: waves"):
        load_suite("corpus/test")


def test_an_evaluation_records_its_policy_in_results_and_run(folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "runs" / "my-run" / "policy"
    policy.mkdir(parents=True)
    (policy / "policy.safetensors").write_bytes(b"weights")
    with opened_for_evaluation(policy, tmp_path / "results"):
        load_suite("corpus/test")
    for where in (None, tmp_path / "results", policy.parent):
        (opening,) = read_openings(where)
        assert opening["purpose"] == "evaluate"
        assert opening["policy"].startswith(f"{policy} (")
    assert "no weights" not in opening["policy"]


def test_commands_refuse_test_programs_without_the_flag(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(capsys, monkeypatch)
    file = folder / "test" / "waves-test.hlo"
    assert "is sealed" in shell.fails("opt", file, "--passes", "dce")
    reply = shell("opt", file, "--passes", "dce", "--open-test", "a look at one program")
    assert reply.status == 0
    assert "cosine" in reply.out
    assert [o["purpose"] for o in read_openings()] == ["a look at one program"]


def test_a_suite_that_is_not_built_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    with pytest.raises(ManifestError, match="hlogym suites build"):
        load_suite("corpus/train")
    with pytest.raises(UnknownNameError):
        find_program("softmax-rows_256x512_float32")
