"""Python processes of hlogym import nothing from the current folder, wherever it is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from env.isolated import NEUTRAL_FOLDER, ROOT, child_environment, import_path, python_command
from env.measurement import Measurer, MeasurerOptions
from env.suites import load_suite
from tests.env.small_programs import write_suite

HOSTILE = ("env", "numpy", "json", "typing", "compiler", "agents", "experiments", "sitecustomize", "resource")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Write a folder whose modules end the process that imports them."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text("import os\nos._exit(99)\n")
    (folder / "scipy").mkdir()
    (folder / "scipy" / "__init__.py").write_text("import os\nos._exit(99)\n")
    return folder


def run_isolated(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        python_command(code, *arguments), cwd=NEUTRAL_FOLDER, env=child_environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("entry", ["", ".", "absolute", "link"])
def test_the_current_folder_is_not_on_the_import_path(
    hostile: Path, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hostile.parent / "link").symlink_to(hostile)
    given = {"absolute": str(hostile), "link": str(hostile.parent / "link")}.get(entry, entry)
    monkeypatch.chdir(hostile)
    monkeypatch.setattr(sys, "path", [given, *sys.path])
    monkeypatch.setenv("PYTHONPATH", f"{given}{os.pathsep}{os.pathsep}{ROOT}")
    done = run_isolated(
        "import env.worker, json, sys; print(json.dumps([env.worker.__file__, *sys.argv[1:]]))", "a", "b"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [str(ROOT / "env" / "worker.py"), "a", "b"]


def test_the_standard_library_comes_before_the_given_path(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(hostile), *sys.path])
    done = run_isolated("import json, typing, resource; print(json.__file__)")
    assert done.returncode == 0
    assert str(hostile) not in done.stdout


def test_other_folders_stay_on_the_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_there.py").write_text("x = 1\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [*sys.path, os.pardir])
    assert run_isolated("import only_there").returncode == 0


def test_the_checkout_stays_on_the_path_if_it_is_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert import_path()[0] == str(ROOT)
    assert "" not in import_path()


def test_a_removed_current_folder_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert import_path()[0] == str(ROOT)
    assert "PYTHONPATH" in child_environment()
    os.chdir(tmp_path)


def test_relative_folders_in_variables_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLOGYM_CACHE", "cache")
    monkeypatch.setenv("CC", "gcc")
    assert child_environment()["HLOGYM_CACHE"] == str(tmp_path / "cache")
    assert child_environment()["CC"] == "gcc"
    monkeypatch.setenv("CC", "tools/gcc")
    assert child_environment()["CC"] == str(tmp_path / "tools" / "gcc")


def test_a_worker_measures_in_a_hostile_folder(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_suite(write_suite(tmp_path / "suite")).find("chain")
    monkeypatch.chdir(hostile)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with Measurer(options=MeasurerOptions(rounds=3)) as measurer:
        assert measurer.measure(program, None).failure is None


def test_the_c_compiler_reads_no_header_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.backends.cpu.toolchain import toolchain

    (tmp_path / "math.h").write_text("#error a header of the current folder\n")
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPATH", "")
    monkeypatch.setenv("C_INCLUDE_PATH", os.pathsep)
    source = f"#include <math.h>\ndouble f(double x) {{ return sqrt(x); }} // {os.getpid()}\n"
    assert toolchain().shared_object(source, "header").exists()


@pytest.mark.parametrize("how", ["module", "script"])
def test_the_command_line_in_a_hostile_folder(hostile: Path, tmp_path: Path, how: str) -> None:
    suite = write_suite(tmp_path / "suite")
    start = ["-m", "experiments.cli"] if how == "module" else [str(Path(sys.executable).with_name("hlogym"))]
    (hostile / "experiments.py").unlink()  # `python -m experiments.cli` asks for just that
    done = subprocess.run(
        [sys.executable, *start, "tune", str(suite / "chain.hlo"), "--budget", "2", "-o", str(tmp_path / "plan.json")],
        cwd=hostile, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.json").is_file()


def test_processes_of_environments_in_a_hostile_folder(hostile: Path, tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite")
    done = subprocess.run(
        [
            sys.executable, str(Path(sys.executable).with_name("hlogym")), "train", "--env", "hlogym/Fusion-v0",
            "--suite", str(suite), "--timesteps", "32", "--set", "n_steps=32", "--set", "eval_freq=0",
            "--set", "environments=2", "--set", "vec_env=subproc", "--name", "run", "--runs", str(tmp_path / "runs"),
        ],
        cwd=hostile, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "MLFLOW_TRACKING_URI": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "run" / "policy" / "policy.json").is_file()
