"""Programs named on the command line: what cannot be used is reported with its name and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.errors import HlogymError, UnknownNameError
from env.suites import load_suite
from experiments.bench import bench_programs
from experiments.inputs import program_of, read_module, read_valid_module

INVALID = "ENTRY e {\n  x = f32[4] parameter(0)\n  y = f32[5] parameter(1)\n  ROOT z = f32[4] add(x, y)\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "empty").mkdir()
    (tmp_path / "shape.hlo").write_text(INVALID)
    (tmp_path / "notes.txt").write_text("notes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "empty is a folder; name one of the files in it; it has no .hlo files, and XLA dumped none into it"),
        ("missing.hlo", "there is no file missing.hlo"),
        ("shap.hlo", "there is no file shap.hlo; did you mean shape.hlo?"),
    ],
)
def test_what_is_no_program_is_reported(name: str, message: str) -> None:
    with pytest.raises(HlogymError) as caught:
        program_of(name)
    assert str(caught.value) == message


@pytest.mark.usefixtures("folder")
def test_a_program_goes_before_a_folder_of_its_name(folder: Path) -> None:
    (folder / "softmax").mkdir()
    assert program_of("softmax").name == "softmax"


@pytest.mark.usefixtures("folder")
def test_an_invalid_program_is_reported_with_its_file() -> None:
    with pytest.raises(HlogymError, match=r"shape\.hlo: the module is not valid HLO") as caught:
        read_valid_module(program_of("shape.hlo"))
    assert "line 4: %z: add" in str(caught.value)
    assert read_module(program_of("shape.hlo")).entry.root.name == "z"  # `hlogym reduce` takes it


@pytest.mark.usefixtures("folder")
def test_a_folder_without_programs_is_no_suite() -> None:
    with pytest.raises(HlogymError, match=r"the folder empty has no \.hlo files"):
        load_suite("empty")


def test_a_misspelt_suite_is_recognized() -> None:
    with pytest.raises(UnknownNameError, match="unknown program or suite 'tset'; did you mean 'test'"):
        bench_programs(["tset"], [], None, "cpu", 1, None, 0)


def test_a_distant_name_is_not_suggested() -> None:
    with pytest.raises(UnknownNameError, match="unknown program or suite 'nosuite'; known: corpus, "):
        bench_programs(["nosuite"], [], None, "cpu", 1, None, 0)


@pytest.mark.usefixtures("folder")
def test_an_unknown_policy_is_refused_before_any_program_is_timed() -> None:
    with pytest.raises(HlogymError, match="unknown policy or folder of a policy 'nopolicy'"):
        bench_programs(["softmax"], [], "nopolicy", "cpu", 1, None, 0)
