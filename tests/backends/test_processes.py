"""Subprocesses with a time limit end together with their child processes."""

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
    """Check whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold"
        time.sleep(0.02)


def test_output_and_status_are_returned(tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_bounded([sys.executable, "-c", code], tmp_path, 60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


@pytest.mark.parametrize("ending", [subprocess.TimeoutExpired("cc", 1), KeyboardInterrupt()])
def test_an_exception_during_the_wait_kills_the_children(
    ending: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"

    def wait(*_: object, **__: object) -> None:
        wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
        raise ending

    monkeypatch.setattr(subprocess.Popen, "communicate", wait)
    with pytest.raises(type(ending)):
        run_bounded([sys.executable, "-c", PARENT, str(pid_file)], tmp_path, 600)
    wait_until(lambda: not alive(int(pid_file.read_text())))


def test_a_missing_command_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_bounded(["/nonexistent/cc"], tmp_path, 5)
