"""Several workers measure at once: results come in any order, crashes cost nothing but time, timing is exclusive."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler.fusion.policies import make_policy
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env import worker_process
from env.isolated import python_command
from env.measurement import Measurer, MeasurerOptions
from env.service import MeasuringService, Request
from env.store import PlanStore
from env.suites import Program, load_suite
from env.timing_turns import TimingTurns
from env.worker_process import WorkerProcess, WorkerStartError
from tests.env.small_programs import CHAIN, write_suite

OPTIONS = MeasurerOptions(rounds=3, seconds=0.05, timeout=60)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return load_suite(write_suite(tmp_path / "suite")).find("chain")


def plan(policy: str) -> CompilationPlan:
    session = CompilationSession(parse(CHAIN))
    session.run_passes()
    session.run_fusion_policy(make_policy(policy))
    return session.plan


def test_results_belong_to_their_requests(program: Program, tmp_path: Path) -> None:
    wrong = CompilationPlan(fingerprint="0" * 64)
    with MeasuringService(2, tmp_path / "t.sqlite", OPTIONS) as service:
        found = service.measure_all([(program, plan("none")), (program, wrong), (program, None)])
    assert [m.failure for m in found] == [None, "compile", None]
    assert found[0].verdict is not None
    assert found[2].verdict is None
    with Measurer(PlanStore(tmp_path / "t.sqlite"), OPTIONS) as measurer:  # both workers wrote to one store
        assert measurer.measure(program, plan("none")).new == 0


def test_requests_are_drawn_as_workers_become_free(program: Program) -> None:
    drawn = []

    def requests() -> Iterator[Request]:
        for n in range(100):
            drawn.append(n)
            yield program, None

    with MeasuringService(1, options=OPTIONS) as service:
        for number, _ in service.measure(requests()):
            if number == 3:
                break
        assert len(drawn) == 5


def test_workers_may_crash_hang_be_stopped_or_killed(program: Program, tmp_path: Path) -> None:
    # The first race of each kind of trouble goes wrong; a crash and a hang are the plan's fault, a signal is not.
    fault = f"""
import os, signal, time
import env.worker as w
real = w.Worker._race
troubles = [lambda: os.kill(os.getpid(), signal.SIGSEGV), lambda: time.sleep(1000),
            lambda: os.kill(os.getpid(), signal.SIGSTOP), lambda: os.kill(os.getpid(), signal.SIGKILL)]
def faulty(self, request):
    for number, trouble in enumerate(troubles):
        try:
            os.mkdir({str(tmp_path)!r} + f"/{{number}}")
        except FileExistsError:
            continue
        trouble()
    return real(self, request)
w.Worker._race = faulty
w.main()
"""

    def make(store: PlanStore | None, options: MeasurerOptions) -> Measurer:
        return Measurer(store, options, WorkerProcess([sys.executable, "-c", fault]))

    options = MeasurerOptions(rounds=3, seconds=0.05, timeout=8)
    with MeasuringService(2, tmp_path / "t.sqlite", options, make) as service:
        found = service.measure_all([(program, plan(p)) for p in ("none", "priority", "greedy", "none") * 2])
        assert service.restarts >= 4
    assert {m.failure for m in found} == {None, "crash", "timeout"}


def test_other_workers_do_the_work_of_one_that_cannot_be_started(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "START_PAUSES", (0.0,))
    crashing = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    tries: list[str] = []

    class Crashing(WorkerProcess):
        def _start(self) -> subprocess.Popen[bytes]:
            tries.append("")
            return super()._start()

    def make(store: PlanStore | None, options: MeasurerOptions) -> Measurer:
        good = options.seed == 1 and not (tmp_path / "all crash").exists()
        return Measurer(store, options, None if good else Crashing(crashing))

    requests = [(program, plan(p)) for p in ("none", "priority", "greedy")]
    with MeasuringService(3, None, OPTIONS, make) as service:
        for _ in range(2):
            assert [m.failure for m in service.measure_all(requests)] == [None] * 3
        assert len(tries) == 4  # two for each of the two
    (tmp_path / "all crash").touch()
    with MeasuringService(2, None, OPTIONS, make) as service, pytest.raises(WorkerStartError, match="SIGSEGV"):
        service.measure_all(requests)


def test_only_one_process_times_at_once_on_a_core(tmp_path: Path) -> None:
    turns = TimingTurns(folder=tmp_path)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with TimingTurns(folder=tmp_path).turn():
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert max(most) == 1
    assert len(most) == 80
    with turns.turn() as cores:
        assert set(cores) == os.sched_getaffinity(0)


def test_each_core_has_turns_of_its_own(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is only one core")
    with TimingTurns(1, tmp_path).turn() as one, TimingTurns(1, tmp_path).turn() as other:
        assert len(one) == len(other) == 1
        assert one != other


def test_a_killed_process_gives_up_its_turn(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from env.timing_turns import TimingTurns
with TimingTurns(folder=Path(sys.argv[1])).turn():
    print("mine", flush=True)
    time.sleep(1000)
"""
    holder = subprocess.Popen(python_command(code, str(tmp_path)), stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with TimingTurns(folder=tmp_path).turn() as cores:
        assert cores


def test_memory_files_and_libraries_stay_bounded(program: Program) -> None:
    """Many different plans in one worker: what it holds after the second half is what it held after the first."""
    fault = """
import env.worker as w
w.HELD_EXECUTABLES = 2
w.main()
"""
    session = CompilationSession(parse(CHAIN))
    session.run_passes()
    session.run_fusion_policy(make_policy("default"))
    site = max(session.kernel_sites(), key=lambda s: s.choices.size)
    plans = []
    for choice in [c for c in site.offered(40) if site.check(c) is None]:
        changed = session.fork()
        changed.set_kernel(site, choice)
        plans.append(changed.plan)
    assert len(plans) >= 10
    worker = WorkerProcess([sys.executable, "-c", fault])
    with Measurer(options=OPTIONS, worker=worker) as measurer:
        held = []
        for number, one in enumerate(plans[:24]):
            assert measurer.check(program, one) is None
            if number >= 5:
                held.append(_held(worker.pid))
        assert measurer.restarts == 0
    assert max(files for files, _ in held) <= held[0][0] + 1
    assert max(libraries for _, libraries in held) <= held[0][1] + 4


def _held(pid: int | None) -> tuple[int, int]:
    """Return how many files a process has open, and how many libraries of kernels it has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    cache = os.environ.get("HLOGYM_CACHE", ".cache/hlogym")
    libraries = {line.split()[-1] for line in maps if cache in line and line.endswith(".so")}
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), len(libraries)
