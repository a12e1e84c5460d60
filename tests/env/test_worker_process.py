"""A worker that dies or hangs is reported and replaced."""

import sys

import pytest

from env.worker_process import WorkerCrashedError, WorkerProcess, WorkerTimeoutError

_SCRIPT = """
import json, os, signal, sys, time
for line in sys.stdin:
    request = json.loads(line)
    match request["op"]:
        case "hang": time.sleep(1000)
        case "segv": os.kill(os.getpid(), signal.SIGSEGV)
        case "exit": print("last words", file=sys.stderr); sys.exit(3)
    print(json.dumps({"echo": request["op"], "pid": os.getpid()}), flush=True)
"""


@pytest.fixture
def worker() -> WorkerProcess:
    return WorkerProcess([sys.executable, "-c", _SCRIPT])


def test_one_process_answers_many_requests(worker: WorkerProcess) -> None:
    first, second = worker.ask({"op": "a"}, 10), worker.ask({"op": "b"}, 10)
    assert (first["echo"], second["echo"]) == ("a", "b")
    assert first["pid"] == second["pid"]
    worker.kill()
    assert not worker.running


def test_a_crash_names_the_signal_and_the_next_request_works(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerCrashedError, match="SIGSEGV"):
        worker.ask({"op": "segv"}, 10)
    assert worker.ask({"op": "a"}, 10)["echo"] == "a"
    assert worker.restarts == 1
    worker.kill()


def test_an_exit_brings_its_last_words(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerCrashedError, match="status 3: last words"):
        worker.ask({"op": "exit"}, 10)
    worker.kill()


def test_a_hang_is_killed(worker: WorkerProcess) -> None:
    worker.ask({"op": "a"}, 10)
    with pytest.raises(WorkerTimeoutError):
        worker.ask({"op": "hang"}, 0.2)
    assert not worker.running
    assert worker.ask({"op": "a"}, 10)["echo"] == "a"
    worker.kill()
