"""A worker that dies, hangs, is stopped or cannot start raises its own error and is replaced."""

import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from env import process_watch, worker_process
from env.isolated import NEUTRAL_FOLDER, child_environment, python_command
from env.process_watch import SLICE, ProcessWatch
from env.worker_process import (
    WorkerCrashedError,
    WorkerLostError,
    WorkerProcess,
    WorkerStartError,
    WorkerTimeoutError,
)

LONG = 600.0  # seconds that no test waits for
_SCRIPT = """
import json, os, signal, subprocess, sys, time
more = {}
signal.signal(signal.SIGUSR1, lambda *_: print("and this", flush=True))
for line in sys.stdin:
    request = json.loads(line)
    match request["op"]:
        case "hang": time.sleep(1000)
        case "signal": os.kill(os.getpid(), request["number"])
        case "exit": print("last words", file=sys.stderr); sys.exit(3)
        case "write": sys.stdout.write(request["text"]); sys.stdout.flush(); continue
        case "half": sys.stdout.write('{"a": 1'); sys.stdout.flush(); sys.exit(0)
        case "child": more["child"] = subprocess.Popen(["sleep", "1000"], process_group=0).pid
        case "noise": sys.stderr.write("x" * 1_000_000)
    print(json.dumps({"echo": request["op"], "pid": os.getpid(), **more}), flush=True)
    if request["op"] == "then stop": os.kill(os.getpid(), signal.SIGSTOP)
"""
_SHELL = ("/bin/sh", "-c", "while read line; do echo '{}'; done")


@pytest.fixture
def worker() -> Any:
    made = WorkerProcess([sys.executable, "-c", _SCRIPT])
    yield made
    made.kill()


def test_one_process_answers_many_requests(worker: WorkerProcess) -> None:
    first, second = worker.ask({"op": "a"}, LONG), worker.ask({"op": "b"}, LONG)
    assert (first["echo"], second["echo"]) == ("a", "b")
    assert first["pid"] == second["pid"]
    worker.kill()
    assert not worker.running


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"])
def test_a_crash_names_the_signal_and_the_next_request_works(worker: WorkerProcess, name: str) -> None:
    with pytest.raises(WorkerCrashedError, match=name):
        worker.ask({"op": "signal", "number": signal.Signals[name]}, LONG)
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"
    assert worker.restarts == 1


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGXCPU"])
def test_a_kill_from_outside_is_not_a_crash(worker: WorkerProcess, name: str) -> None:
    with pytest.raises(WorkerLostError, match=name) as caught:
        worker.ask({"op": "signal", "number": signal.Signals[name]}, LONG)
    assert caught.value.killed is (name == "SIGKILL")
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"


def test_a_stopped_process_is_not_waited_for(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerLostError, match="stopped"):
        worker.ask({"op": "signal", "number": signal.SIGSTOP}, LONG)
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"


def test_a_process_that_is_stopped_before_the_request_is_not_waited_for(worker: WorkerProcess) -> None:
    worker.ask({"op": "then stop"}, LONG)
    with pytest.raises(WorkerLostError, match="stopped"):
        worker.ask({"op": "a", "text": "longer than a pipe holds" * 100_000}, LONG)


def test_a_short_pause_does_not_count_as_a_stop(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "STOPPED_SECONDS", LONG)
    worker.ask({"op": "then stop"}, LONG)
    pid = worker.pid
    continuing = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.5; kill -CONT {pid}"])
    assert worker.ask({"op": "a"}, LONG)["pid"] == pid
    continuing.wait()


def test_an_exit_is_reported_with_the_last_line_of_stderr(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerCrashedError, match="status 3: last words"):
        worker.ask({"op": "exit"}, LONG)


def test_a_hang_is_killed(worker: WorkerProcess) -> None:
    worker.ask({"op": "a"}, LONG)
    with pytest.raises(WorkerTimeoutError):
        worker.ask({"op": "hang"}, 0.2)
    assert not worker.running
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"


@pytest.mark.parametrize(
    "request_", [{"op": "write", "text": t} for t in ("no JSON\n", "[1]\n", "{}\n{}\n", "\udc80\n")] + [{"op": "half"}]
)
def test_an_invalid_reply_is_a_crash(worker: WorkerProcess, request_: dict[str, Any]) -> None:
    with pytest.raises(WorkerCrashedError):
        worker.ask(request_, LONG)
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"


def test_output_without_a_request_is_not_a_reply(worker: WorkerProcess) -> None:
    worker.ask({"op": "a"}, LONG)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGUSR1)
    while not worker._has_written():
        time.sleep(0.01)
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"


def test_output_to_stderr_does_not_block(worker: WorkerProcess) -> None:
    assert worker.ask({"op": "noise"}, LONG)["echo"] == "noise"


def test_a_process_killed_between_requests_is_replaced(worker: WorkerProcess) -> None:
    first = worker.ask({"op": "a"}, LONG)["pid"]
    os.kill(first, signal.SIGKILL)
    while worker.running:
        time.sleep(0.01)
    assert worker.ask({"op": "a"}, LONG)["pid"] != first


def test_a_process_that_cannot_start_is_reported_with_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "START_PAUSES", (0.0,))
    worker = WorkerProcess([sys.executable, "-c", "import no_such_module"])
    with pytest.raises(WorkerStartError, match="ModuleNotFoundError: No module named 'no_such_module'") as caught:
        worker.ask({"op": "a"}, LONG)
    assert platform.node() in str(caught.value)
    assert f"run `{sys.executable} -X faulthandler -c 'import env.worker'`" in str(caught.value)
    with pytest.raises(WorkerStartError, match="No such file"):
        WorkerProcess(["/no/such/program"]).ask({"op": "a"}, LONG)


def test_a_process_that_is_killed_at_each_start_is_reported_with_what_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "START_PAUSES", (0.0,))
    worker = WorkerProcess([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    with pytest.raises(WorkerStartError, match=r"SIGKILL from outside; memory may have run out; use fewer workers$"):
        worker.ask({"op": "a"}, LONG)


_TROUBLED_START = """
import os, signal, sys
from pathlib import Path
starts = Path(sys.argv[1])
with starts.open("a") as file:
    file.write("x")
if len(starts.read_text()) <= 2:
    {trouble}
for line in sys.stdin:
    print("{{}}", flush=True)
"""


@pytest.mark.parametrize(
    "trouble",
    ["os.kill(os.getpid(), signal.SIGSEGV)", "os.kill(os.getpid(), signal.SIGSTOP)", "sys.exit(3)", "print('no JSON')"],
)
def test_a_process_that_crashes_as_it_starts_is_started_again(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "START_PAUSES", (0.0, 0.0))
    worker = WorkerProcess([sys.executable, "-c", _TROUBLED_START.format(trouble=trouble), str(tmp_path / "starts")])
    assert worker.ask({"op": "a"}, LONG) == {}
    assert (tmp_path / "starts").read_text() == "xxx"
    assert worker.restarts == 0  # no worker was lost
    worker.kill()


_STOPPING = """
import os, signal, sys
from pathlib import Path
tasks, seen, left = Path(f"/proc/{sys.argv[1]}/task"), {os.getpid()}, 10
print("begin", flush=True)
while left:
    for task in tasks.iterdir():
        for child in set(map(int, (task / "children").read_text().split())) - seen:
            seen.add(child)
            left -= 1
            os.kill(child, signal.SIGSTOP)
"""


def test_processes_that_are_stopped_at_once_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Many of the signals arrive before the process runs its program.
    monkeypatch.setattr(worker_process, "START_PAUSES", (0.0,) * 9)
    stopping = subprocess.Popen([sys.executable, "-c", _STOPPING, str(os.getpid())], stdout=subprocess.PIPE)
    assert stopping.stdout is not None
    stopping.stdout.readline()
    worker = WorkerProcess(_SHELL)
    with contextlib.suppress(WorkerStartError):
        worker.ask({"op": "a"}, LONG)
    stopping.kill()
    stopping.communicate()
    assert worker.ask({"op": "a"}, LONG) == {}
    worker.kill()


@pytest.mark.parametrize(("times", "works"), [(1, True), (99, False)])
def test_a_start_that_the_system_refuses_is_tried_again(
    times: int, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "START_PAUSES", (0.0, 0.0))
    real, calls = subprocess.Popen.__init__, []

    def begin(self: subprocess.Popen[bytes], *arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) <= times:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        real(self, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", begin)
    worker = WorkerProcess(_SHELL)
    if works:
        assert worker.ask({"op": "a"}, LONG) == {}
    else:
        with pytest.raises(WorkerStartError, match="tried 3 times: Resource temporarily unavailable"):
            worker.ask({"op": "a"}, LONG)
        assert len(calls) == 3
    worker.kill()


def test_restarts_leave_no_processes_and_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    worker = WorkerProcess(_SHELL)
    worker.ask({"op": "a"}, LONG)
    worker.kill()
    before = sorted(Path("/proc/self/fd").iterdir())
    for n in range(200):
        with contextlib.suppress(WorkerLostError):  # killed by the line below, as it was asked
            worker.ask({"op": "a"}, LONG)
        if n % 2:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        else:
            worker.kill()
    worker.kill()
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert worker.restarts >= 100
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [c for c in children if "(sh) Z" in Path(f"/proc/{c}/stat").read_text()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dead", [False, True])
def test_children_of_the_worker_end_with_it(worker: WorkerProcess, dead: bool) -> None:
    child = worker.ask({"op": "child"}, LONG)["child"]
    assert worker.pid is not None
    if dead:
        os.kill(worker.pid, signal.SIGKILL)
        while worker.running:
            time.sleep(0.01)
    worker.kill()
    while Path(f"/proc/{child}").exists():  # the test runs out of time else
        time.sleep(0.01)


_FORK = """
import os
from env.worker_process import WorkerProcess

worker = WorkerProcess(("/bin/sh", "-c", "while read line; do echo '{}'; done"))
worker.ask({"op": "a"}, 600)
first = worker.pid
child = os.fork()
if child == 0:
    worker.kill()
    worker.ask({"op": "a"}, 600)
    os._exit(worker.pid == first)
assert os.waitpid(child, 0)[1] == 0
worker.ask({"op": "a"}, 600)
assert worker.pid == first
"""


def test_a_fork_leaves_the_worker_to_its_owner() -> None:
    # In a process of its own: the one of the tests has threads, which do not survive a fork.
    command = python_command(_FORK)
    done = subprocess.run(command, cwd=NEUTRAL_FOLDER, env=child_environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


class _Clock:
    """A clock that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.delay = 100.0, 0.0
        monkeypatch.setattr("env.process_watch.monotonic", lambda: self.now)
        monkeypatch.setattr(process_watch, "_run_delay", lambda pid: self.delay)


def test_time_in_which_this_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    watch = ProcessWatch(os.getpid())
    clock.now += 3600
    watch.tick()
    assert watch.counted <= 2 * SLICE
    for _ in range(40):
        clock.now += SLICE
        watch.tick()
    assert watch.counted == pytest.approx(40 * SLICE, abs=2 * SLICE)


def test_time_without_a_processor_counts_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    watch = ProcessWatch(os.getpid())
    for _ in range(400):
        clock.now += SLICE
        clock.delay += SLICE
        watch.tick()
    assert 0 < watch.counted < 0.1 * 400 * SLICE


def test_a_reply_that_has_arrived_is_never_late(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.ask({"op": "a"}, LONG)

    class Late(ProcessWatch):
        def tick(self) -> None:
            self.counted = 2 * LONG  # as after a long stop of this process, in which the worker has answered
            os.kill(self._pid, signal.SIGCONT)
            time.sleep(1)

    monkeypatch.setattr(worker_process, "ProcessWatch", Late)
    worker.ask({"op": "then stop"}, LONG)
    assert worker.ask({"op": "a"}, LONG)["echo"] == "a"
