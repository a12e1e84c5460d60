"""Measurement checks outputs, measures what is new, and survives whatever a kernel does."""

import sys
from pathlib import Path

import pytest

from compiler.fusion.policies import make_policy
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.store import KernelStore
from env.suites import Program, load_suite
from env.worker_process import WorkerProcess
from tests.env.small_programs import CHAIN, write_suite

OPTIONS = MeasurerOptions(rounds=3, timeout=60)

_FAULTY = """
import os, signal, time
import env.worker as w
{fault}
w.main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return load_suite(write_suite(tmp_path)).find("chain")


def plan(policy: str) -> CompilationPlan:
    session = CompilationSession(parse(CHAIN))
    session.run_passes()
    session.run_fusion_policy(make_policy(policy))
    return session.plan


def faulty(fault: str, timeout: float = 60) -> Measurer:
    worker = WorkerProcess([sys.executable, "-c", _FAULTY.format(fault=fault)])
    return Measurer(options=MeasurerOptions(rounds=3, timeout=timeout), worker=worker)


def test_only_new_kernels_are_measured(program: Program, tmp_path: Path) -> None:
    with Measurer(KernelStore(tmp_path / "t.sqlite"), OPTIONS) as measurer:
        unfused = measurer.measure(program, plan("none"))
        fused = measurer.measure(program, plan("priority"))
        assert unfused.failure is None
        assert fused.failure is None
        assert unfused.new > fused.new > 0
        assert measurer.measure(program, plan("none")) is unfused
    with KernelStore(tmp_path / "t.sqlite") as store:
        # A kernel timed on a busy machine is timed again on purpose; here all of them count as quiet.
        store._db.execute("UPDATE kernel_times SET low = seconds, high = seconds")
        store._db.commit()
    with Measurer(KernelStore(tmp_path / "t.sqlite"), OPTIONS) as measurer:
        again = measurer.measure(program, plan("none"))
        assert again.new == 0
        assert again.seconds is not None
        assert unfused.seconds is not None
        assert again.seconds.value > 0
        assert measurer.measure(program, plan("none"), remeasure=True).new > 0


def test_candidates_are_compared_in_turns(program: Program) -> None:
    with Measurer(options=OPTIONS) as measurer:
        compared = measurer.compare(program, {"none": plan("none"), "priority": plan("priority")}, rounds=4)
        assert {len(s) for s in compared.samples.values()} == {4}
        assert compared.seconds("none").value > 0
        assert compared.speedup("priority", "none").value > 0
        assert compared.kernels["none"] > compared.kernels["priority"]
        floor = measurer.noise_floor(program, rounds=4)
        assert floor.low <= floor.value <= floor.high


def test_a_wrong_result_is_no_time(program: Program) -> None:
    with faulty("w.difference = lambda *a: 'output 0: all wrong'") as measurer:
        result = measurer.measure(program, plan("none"))
        assert (result.seconds, result.failure, result.message) == (None, "wrong", "output 0: all wrong")
        compared = measurer.compare(program, {"a": plan("none")})
        assert compared.failures == {"a": "wrong: output 0: all wrong"}


def test_a_crash_is_a_result_and_the_next_measurement_works(program: Program, tmp_path: Path) -> None:
    once = tmp_path / "crashed"
    fault = f"""
real = w.Worker._time
def crash(self, request):
    if not os.path.exists({str(once)!r}):
        open({str(once)!r}, "w").close()
        os.kill(os.getpid(), signal.SIGSEGV)
    return real(self, request)
w.Worker._time = crash
"""
    with faulty(fault) as measurer:
        assert measurer.measure(program, plan("none")).failure == "crash"
        assert measurer.measure(program, plan("priority")).failure is None
        assert measurer.restarts == 1


def test_a_hang_is_a_result(program: Program) -> None:
    with faulty("w.Worker._prepare = lambda self, request: time.sleep(1000)", timeout=3) as measurer:
        result = measurer.measure(program, plan("none"))
        assert result.failure == "timeout"
        assert "3 s" in result.message


def test_what_does_not_compile_is_a_result(program: Program) -> None:
    other = CompilationPlan(fingerprint="0" * 64)
    with Measurer(options=OPTIONS) as measurer:
        result = measurer.measure(program, other)
        assert result.failure == "compile"
        assert "another module" in result.message
        assert measurer.check(program, None) is None
