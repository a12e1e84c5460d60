"""Compilers that are run for us leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.backends.cpu.processes import run_bounded

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
child.wait()
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come about."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.02)


def test_output_and_status(tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_bounded([sys.executable, "-c", code], tmp_path, 60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


@pytest.mark.parametrize("ending", [subprocess.TimeoutExpired("cc", 1), KeyboardInterrupt()])
def test_whatever_ends_the_wait_ends_the_children_too(
    ending: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "pid"

    def wait(*_: object, **__: object) -> None:
        until(lambda: noted.exists() and noted.read_text() != "")
        raise ending

    monkeypatch.setattr(subprocess.Popen, "communicate", wait)
    with pytest.raises(type(ending)):
        run_bounded([sys.executable, "-c", PARENT, str(noted)], tmp_path, 600)
    until(lambda: not alive(int(noted.read_text())))


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_bounded(["/nonexistent/cc"], tmp_path, 5)
