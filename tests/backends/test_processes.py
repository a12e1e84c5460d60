"""Subprocesses with a time limit end together with their child processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.backends.cpu.processes import Command, run_all_bounded, run_bounded

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


def test_several_commands_run_at_once_and_are_reported_in_order(tmp_path: Path) -> None:
    """Each of two commands waits for a file that the other writes."""
    code = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
    code += "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\nprint(sys.argv[1])"
    commands = [Command([sys.executable, "-c", code, a, b], tmp_path) for a, b in (("x", "y"), ("y", "x"))]
    assert [d.stdout for d in run_all_bounded(commands, 60, 2)] == ["x\n", "y\n"]


def test_no_more_commands_run_than_allowed(tmp_path: Path) -> None:
    code = "import os, sys\nos.mkdir('running'); os.rmdir('running')"  # fails if another one is there
    commands = [Command([sys.executable, "-c", code], tmp_path) for _ in range(4)]
    assert [d.returncode for d in run_all_bounded(commands, 60, 1)] == [0] * 4


def test_the_end_of_the_iteration_kills_the_other_commands(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    commands = [
        Command([sys.executable, "-c", "print(1)"], tmp_path),
        Command([sys.executable, "-c", PARENT, str(pid_file)], tmp_path),
    ]
    results = run_all_bounded(commands, 600, 2)
    assert next(results).stdout == "1\n"
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    results.close()
    wait_until(lambda: not alive(int(pid_file.read_text())))
