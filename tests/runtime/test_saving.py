"""Saved programs: whatever happens to the folder, loading returns the program saved last or raises an error."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cpu.executable import CpuExecutable
from compiler.errors import HlogymError
from compiler.runtime.executable import Executable
from compiler.runtime.saved_folder import SavedProgramError

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
HloModule scaled
ENTRY main {{
  x = f32[1000] parameter(0)
  k = f32[1000] constant({{{weights}}})
  s = f32[] constant({scale})
  b = f32[1000] broadcast(s), dimensions={{}}
  w = f32[1000] multiply(k, b)
  ROOT r = f32[1000] multiply(x, w)
}}
"""
X = np.arange(1000, dtype=np.float32)
WEIGHTS = np.arange(1000, dtype=np.float32) % 7


def program(scale: int) -> CpuExecutable:
    exe = compile(PROGRAM.format(scale=scale, weights=", ".join(f"{w:g}" for w in WEIGHTS)))
    assert isinstance(exe, CpuExecutable)
    return exe


def scale_of(exe: Executable) -> float:
    (out,) = exe(X)
    scale = float(out[1])
    np.testing.assert_array_equal(out, X * (WEIGHTS * np.float32(scale)))
    return scale


def contents(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.startswith("contents-")]


def test_a_saved_program_runs_without_a_compiler(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    code = f"""
import os; os.environ["PATH"] = ""; os.environ.pop("CC", None)
import numpy as np
from compiler import load
from compiler.backends.cpu import toolchain as cpu
assert cpu.why_unavailable()
out, = load({str(tmp_path / "p")!r})(np.arange(1000, dtype=np.float32))
assert out[8] == 8 * 1 * 3, out[8]
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HLOGYM_CACHE": str(tmp_path / "other")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_program_in_use_can_be_replaced(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    three = load(tmp_path / "p")
    program(4).save(tmp_path / "p")
    four = load(tmp_path / "p")
    assert scale_of(three) == 3
    assert scale_of(four) == 4
    assert len(contents(tmp_path / "p")) == 1


def test_a_loaded_program_can_be_saved_to_its_own_folder(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    again = load(tmp_path / "p")
    again.save(tmp_path / "p")
    again.save(tmp_path / "q")
    assert scale_of(load(tmp_path / "p")) == scale_of(load(tmp_path / "q")) == 3


def test_a_path_may_later_hold_another_program(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    assert scale_of(load(tmp_path / "p")) == 3
    program(4).save(tmp_path / "q")
    shutil.rmtree(tmp_path / "p")
    (tmp_path / "q").rename(tmp_path / "p")
    assert scale_of(load(tmp_path / "p")) == 4


def test_a_loaded_program_survives_changes_to_its_files(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    exe = load(tmp_path / "p")
    for path in tmp_path.rglob("*.so"):
        path.write_bytes(b"")
    assert scale_of(exe) == 3


def test_unrelated_files_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    program(3).save(folder)
    (contents(folder)[0] / "more.txt").write_text("mine too")
    program(3).save(folder)
    program(4).save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert [p.read_text() for p in folder.rglob("more.txt")] == ["mine too"]
    assert scale_of(load(folder)) == 4


@pytest.mark.parametrize("text", ['{"name": "a web app"}', "[]", "not JSON", "[" * 100_000])
def test_a_foreign_manifest_is_not_replaced(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SavedProgramError, match=r"manifest\.json was not written by hlogym"):
        program(3).save(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text
    with pytest.raises(SavedProgramError):
        load(tmp_path)


# ---- damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_damage_to_any_file_is_detected(damage: Callable[[Path], object], tmp_path: Path) -> None:
    exe = program(3)
    exe.save(tmp_path / "p")
    for path in sorted(p.relative_to(tmp_path / "p") for p in (tmp_path / "p").rglob("*") if p.is_file()):
        shutil.copytree(tmp_path / "p", tmp_path / "damaged")
        damage(tmp_path / "damaged" / path)
        with pytest.raises(SavedProgramError, match=str(tmp_path / "damaged")):
            load(tmp_path / "damaged")
        exe.save(tmp_path / "damaged") if path.name != "manifest.json" else None
        shutil.rmtree(tmp_path / "damaged")


def test_saving_again_repairs_a_damaged_folder(tmp_path: Path) -> None:
    exe = program(3)
    exe.save(tmp_path / "p")
    for path in contents(tmp_path / "p")[0].iterdir():
        cut(path)
    exe.save(tmp_path / "p")
    assert scale_of(load(tmp_path / "p")) == 3


def test_a_path_without_a_saved_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "manifest.json").write_text(json.dumps({"format": 1, "backend": "cpu"}))
    for name, message in (("nothing", "not a saved"), ("file", "not a saved"), ("empty", "not a saved"),
                       ("old", "another format")):  # fmt: skip
        with pytest.raises(SavedProgramError, match=message):
            load(tmp_path / name)
    with pytest.raises(SavedProgramError, match="cannot write"):
        program(3).save(tmp_path / "file")


def test_a_manifest_with_another_path_is_refused(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    manifest = tmp_path / "p" / "manifest.json"
    written = json.loads(manifest.read_text())
    for name in ("..", "/etc", contents(tmp_path / "p")[0].name + "/../x"):
        manifest.write_text(json.dumps({**written, "contents": name}))
        with pytest.raises(SavedProgramError, match="was changed"):
            load(tmp_path / "p")


# ---- other processes


def test_loading_while_another_thread_saves(tmp_path: Path) -> None:
    """Each load returns one of the two programs, complete."""
    folder = tmp_path / "p"
    one, two = program(3), program(4)
    one.save(folder)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            two.save(folder)
            one.save(folder)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = {scale_of(load(folder)) for _ in range(20)}
    finally:
        done.set()
        writer.join()
    assert found <= {3.0, 4.0}


def test_two_programs_can_be_saved_at_the_same_time(tmp_path: Path) -> None:
    """The folder then contains one of the two programs, complete."""
    programs = [program(3), program(4)]
    for n in range(30):
        folder = tmp_path / str(n)
        programs[0].save(folder)
        begin = threading.Barrier(2)

        def save(exe: Executable, folder: Path = folder, begin: threading.Barrier = begin) -> None:
            begin.wait()
            exe.save(folder)

        threads = [threading.Thread(target=save, args=(p,)) for p in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert scale_of(load(folder)) in (3.0, 4.0)
        assert len(contents(folder)) == 1


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(SavedProgramError, match="not a valid path"):
        program(3).save(path)
    with pytest.raises(SavedProgramError, match="not a valid path"):
        load(path)


def test_a_process_killed_while_saving_leaves_a_complete_program(tmp_path: Path) -> None:
    """The folder contains the old program or the new one, never a mixture."""
    folder = tmp_path / "p"
    program(3).save(folder)
    code = f"""
import sys
from tests.runtime.test_saving import program
from pathlib import Path
exes = [program(4), program(5)]
print("ready", flush=True)
while True:
    for exe in exes:
        exe.save(Path({str(folder)!r}))
"""
    for pause in (0.0, 0.003, 0.011, 0.02, 0.033):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(pause)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert scale_of(load(folder)) in (3, 4, 5)
    program(6).save(folder)
    assert scale_of(load(folder)) == 6


def test_a_full_disk_leaves_the_old_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(3).save(tmp_path / "p")
    exe = program(4)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(HlogymError, match=r"cannot write to .*No space left on device"):
        exe.save(tmp_path / "p")
    assert scale_of(load(tmp_path / "p")) == 3
    assert len(list((tmp_path / "p").iterdir())) == 2
    with pytest.raises(HlogymError, match="No space left on device"):
        exe.save(tmp_path / "new" / "q")
    assert not (tmp_path / "new").exists()


def test_a_program_of_another_runtime_is_refused_beside_programs_of_this_one(tmp_path: Path) -> None:
    program(3).save(tmp_path / "p")
    code = """
import sys
import numpy as np
from compiler import load
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.backends.cpu.toolchain import toolchain
from compiler.errors import HlogymError

library = toolchain().runtime()
other = library.with_name("0" * len(library.stem) + library.suffix)
other.write_bytes(library.read_bytes() + b"another")  # bytes after an ELF file are ignored
RUNTIME.load(other)
try:
    load(sys.argv[1])
except HlogymError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "another version of hlogym" in done.stdout and "compile and save it again" in done.stdout
