"""Ctrl-C ends a command in one line: while it is imported, and where a library swallows the exception."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import experiments

ROOT = Path(experiments.__file__).parents[1]
SWALLOWED = """
import time, weakref
from experiments import interruption
interruption.REPEATED = 0.3
class Thing: pass
def wait(ref):
    print("ready", flush=True)
    time.sleep(30)  # the first signal ends this: Python prints exceptions of such callbacks and continues
thing = Thing()
ref = weakref.ref(thing, wait)
try:
    with interruption.insisting():
        del thing
        print("swallowed", flush=True)
        time.sleep(30)
except KeyboardInterrupt:
    print("ended")
"""
INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, *rest):
        if name == module:
            print("interrupted before", name, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
module = sys.argv[1]
sys.meta_path.insert(0, Interrupts())
sys.argv = ["hlogym", "list", "suites"]
runpy.run_module("experiments.cli", run_name="__main__", alter_sys=True)
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_swallowed_interruption_is_repeated() -> None:
    with started("-c", SWALLOWED) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=25)
    assert out == "swallowed\nended\n"
    assert err == ""


def test_an_interruption_of_the_imports_is_one_line() -> None:
    waiting = "import experiments.quiet_imports as s; s.quiet_interruption(); print('ready', flush=True); import time"
    with started("-c", f"{waiting}; time.sleep(30)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=25)
    assert (process.returncode, err) == (130, "stopped\n")


@pytest.mark.parametrize("module", ["typer", "numpy", "compiler.text", "env.suites", "experiments.commands_list"])
def test_ctrl_c_at_any_moment_of_the_start_prints_no_traceback(module: str) -> None:
    with started("-c", INTERRUPTED_IMPORT, module) as process:
        out, err = process.communicate(timeout=60)
    assert out == f"interrupted before {module}\n"
    assert (process.returncode, err) == (130, "stopped\n")
