"""Measurement checks outputs, times new kernels, and survives crashes and hangs."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import MeasurementError, Measurer, MeasurerOptions, ReferenceFailedError
from env.store import PlanStore
from env.suites import Program, Randint, Tolerance, load_suite
from env.worker_process import WorkerProcess, WorkerStartError
from tests.env.small_programs import CHAIN, LOOP, write_suite

OPTIONS = MeasurerOptions(rounds=3, timeout=60)

_FAULTY = """
import os, signal, time
import env.worker as w
{fault}
w.main()
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env.patient_worker.RETRY_PAUSES", (0,))


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


def test_only_new_plans_are_measured(program: Program, tmp_path: Path) -> None:
    with Measurer(PlanStore(tmp_path / "t.sqlite"), OPTIONS) as measurer:
        unfused = measurer.measure(program, plan("none"))
        assert unfused.failure is None
        assert unfused.verdict is not None
        assert unfused.thunks > measurer.measure(program, plan("priority")).thunks
        assert unfused.new == len(unfused.kernels) == unfused.thunks
        assert measurer.measure(program, plan("none")) is unfused
        default = measurer.measure_reference(program)
        assert (default.verdict, default.speedup) == (None, 1.0)
    with Measurer(PlanStore(tmp_path / "t.sqlite"), OPTIONS) as measurer:
        again = measurer.measure(program, plan("none"))
        assert (again.new, again.verdict) == (0, unfused.verdict)
        assert measurer.measure(program, plan("none"), remeasure=True).new > 0
    with Measurer(PlanStore(tmp_path / "t.sqlite", keep_seconds=0), OPTIONS) as measurer:
        assert measurer.measure(program, plan("none")).new > 0  # the known time has expired


def test_a_plan_that_builds_the_default_program_is_as_fast_as_it(program: Program) -> None:
    with Measurer(options=OPTIONS) as measurer:
        default = measurer.measure_reference(program)
        assert default.seconds is not None
        same = measurer.measure(program, plan(DEFAULT_POLICY))
        assert (same.new, same.speedup) == (0, 1.0)  # the time of the default is known
        assert same.seconds == default.seconds


def test_candidates_are_compared_in_turns(program: Program) -> None:
    with Measurer(options=OPTIONS) as measurer:
        compared = measurer.compare(program, {"none": plan("none"), "priority": plan("priority")}, rounds=4)
        assert {len(s) for s in compared.samples.values()} == {4}
        assert compared.seconds("none").value > 0
        assert compared.speedup("priority", "none").value > 0
        assert compared.kernels["none"] > compared.kernels["priority"]


WRONG_FROM_THE_SECOND_ON = """
right = []
def difference(*a):
    right.append(not right)
    return None if right[-1] else "output 0: all wrong"
w.difference = difference
"""


def test_a_wrong_result_has_no_time(program: Program) -> None:
    with faulty(WRONG_FROM_THE_SECOND_ON) as measurer:
        result = measurer.measure(program, plan("none"))
        assert (result.seconds, result.failure, result.message) == (None, "wrong", "output 0: all wrong")
        compared = measurer.compare(program, {"a": plan("none")})
        assert compared.failures == {"a": "wrong: output 0: all wrong"}


def test_outputs_left_from_an_earlier_run_are_wrong(program: Program) -> None:
    fault = """
real = w.PlanReplays.compile
def stuck(*args):
    executable, kept = real(*args), []
    def call(*inputs):
        kept[:] = kept or executable(*inputs)
        return kept
    return call
w.PlanReplays.compile = stuck
"""
    with faulty(fault) as measurer:
        assert measurer.measure(program, plan("none")).failure == "wrong"


def test_a_program_whose_outputs_show_nothing_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "nothing.hlo").write_text(
        "HloModule m\nENTRY e { x = f32[64] parameter(0) a = f32[64] abs(x) n = f32[64] negate(a)\n"
        "ROOT r = f32[64] log(n) }"
    )
    (program,) = load_suite(tmp_path).programs
    with Measurer(options=OPTIONS) as measurer:
        result = measurer.measure(program, None)
        assert (result.seconds, result.failure) == (None, "program")
        assert "output 0 is NaN everywhere, so that nothing can be checked; give input specs" in result.message


def test_a_tolerance_for_other_outputs_is_a_failure_of_the_program(program: Program) -> None:
    with Measurer(options=OPTIONS) as measurer:
        result = measurer.measure(replace(program, tolerance=Tolerance(atol=(0.1, 0.2))), None)
        assert result.failure == "program"
        assert "2 values of atol for 1 outputs" in result.message


def test_a_crash_is_a_result_and_the_next_measurement_works(program: Program, tmp_path: Path) -> None:
    once = tmp_path / "crashed"
    fault = f"""
real = w.Worker._race
def crash(self, request):
    if not os.path.exists({str(once)!r}):
        open({str(once)!r}, "w").close()
        os.kill(os.getpid(), signal.SIGSEGV)
    return real(self, request)
w.Worker._race = crash
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


def first_times(path: Path, times: int, fault: str, method: str = "_race") -> str:
    """Return the source of a fault in the first `times` calls of a method of the worker, over all processes."""
    return f"""
real = w.Worker.{method}
def faulty(self, request):
    with open({str(path)!r}, "a+") as file:
        file.write(".")
        file.seek(0)
        count = len(file.read())
    if count <= {times}:
        {fault}
    return real(self, request)
w.Worker.{method} = faulty
"""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("SIGKILL", "_prepare"),
        ("SIGKILL", "_race"),
        ("SIGTERM", "_interpret"),
        ("SIGHUP", "_race"),
        ("SIGSTOP", "_race"),
    ],
)
def test_a_signal_from_outside_is_not_a_failure_of_the_plan(
    program: Program, tmp_path: Path, name: str, method: str
) -> None:
    fault = first_times(tmp_path / "count", 1, f"os.kill(os.getpid(), signal.{name})", method)
    with faulty(fault, timeout=600) as measurer:
        assert measurer.measure(program, plan("none")).failure is None
        assert measurer.restarts == 1


def test_a_plan_whose_worker_is_killed_every_time_has_crashed(program: Program, tmp_path: Path) -> None:
    fault = first_times(tmp_path / "count", 2, "os.kill(os.getpid(), signal.SIGKILL)")
    with faulty(fault) as measurer:
        result = measurer.measure(program, plan("none"))
        assert result.failure == "crash"
        assert "memory" in result.message
        assert measurer.restarts == 1
        assert measurer.measure(program, plan("priority")).failure is None


def test_workers_that_are_terminated_every_time_are_an_error(program: Program, tmp_path: Path) -> None:
    fault = first_times(tmp_path / "count", 99, "os.kill(os.getpid(), signal.SIGTERM)")
    with faulty(fault) as measurer, pytest.raises(MeasurementError, match="SIGTERM"):
        measurer.measure(program, plan("none"))


def test_a_lack_of_resources_is_not_a_failure_of_the_plan(program: Program, tmp_path: Path) -> None:
    fault = first_times(tmp_path / "few", 1, "raise w.BackendError('cannot load the built kernels')")
    with faulty(fault) as measurer:
        assert measurer.measure(program, plan("none")).failure is None
    fault = first_times(tmp_path / "many", 99, "raise OSError(28, 'No space left on device', '/cache')")
    with faulty(fault) as measurer, pytest.raises(MeasurementError, match="No space left on device: /cache"):
        measurer.measure(program, plan("none"))


def test_a_killed_c_compiler_is_run_again(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = shutil.which("gcc")
    script = tmp_path / "cc"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *kernel*) if mkdir {tmp_path}/once; then kill -9 $$; fi;; esac\nexec {gcc} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    with Measurer(options=OPTIONS) as measurer:
        assert measurer.measure(program, plan("none")).failure is None
        assert (tmp_path / "once").is_dir()
        assert measurer.restarts == 1


def test_a_worker_that_does_not_start_is_an_error(program: Program) -> None:
    worker = WorkerProcess([sys.executable, "-c", "raise SystemExit('no room here')"])
    with Measurer(worker=worker) as measurer, pytest.raises(WorkerStartError, match="no room here"):
        measurer.measure(program, plan("none"))


def test_candidates_are_compared_even_if_workers_are_lost(program: Program, tmp_path: Path) -> None:
    candidates = {"none": plan("none"), "priority": plan("priority")}
    with faulty(first_times(tmp_path / "a", 1, "os.kill(os.getpid(), signal.SIGKILL)", "_compare")) as measurer:
        assert set(measurer.compare(program, candidates).samples) == {"none", "priority"}
    # The second to be prepared dies each time; the first is compared without it.
    fault = """
real = w.Worker._prepare
def faulty(self, request):
    if self._count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, request)
w.Worker._prepare = faulty
"""
    with faulty(fault) as measurer:
        compared = measurer.compare(program, candidates)
        assert set(compared.samples) == {"none"}
        assert "memory" in compared.failures["priority"]


def test_more_candidates_are_compared_than_a_worker_holds(program: Program) -> None:
    with faulty("w.HELD_EXECUTABLES = 2") as measurer:
        assert len(measurer.compare(program, {str(n): plan("none") for n in range(5)}, rounds=2).samples) == 5


def test_failures_of_programs_are_kept_apart_from_failures_of_plans(program: Program, tmp_path: Path) -> None:
    impossible = replace(program, inputs=(Randint(5, 2), Randint(5, 2)))
    with Measurer(options=OPTIONS) as measurer:
        result = measurer.measure(impossible, plan("none"))
        assert result.failure == "program"
        assert "low >= high" in result.message
    with faulty("w.drawn_reference = lambda *_: os.kill(os.getpid(), signal.SIGSEGV)") as measurer:
        result = measurer.measure(program, plan("none"))
        assert result.failure == "program"
        assert "SIGSEGV" in result.message
    with faulty("w.drawn_reference = lambda *_: time.sleep(1000)", timeout=1) as measurer:
        assert measurer.measure(program, plan("none")).failure == "program"


def test_a_reference_that_fails_once_is_measured_again(program: Program, tmp_path: Path) -> None:
    with faulty(first_times(tmp_path / "count", 1, "os.kill(os.getpid(), signal.SIGSEGV)")) as measurer:
        assert measurer.measure_reference(program).time.value > 0


def test_a_reference_that_fails_is_an_error_and_not_kept(program: Program, tmp_path: Path) -> None:
    wrong = f"""
real = w.difference
w.difference = lambda *a: real(*a) if os.path.exists({str(tmp_path / "repaired")!r}) else "output 0: all wrong"
"""
    with faulty(wrong) as measurer:
        with pytest.raises(ReferenceFailedError, match=r"'chain' \(.*chain.hlo\): wrong: output 0: all wrong"):
            measurer.measure_reference(program)
        (tmp_path / "repaired").touch()
        assert measurer.measure_reference(program).time.value > 0
        (tmp_path / "repaired").unlink()
        assert measurer.measure_reference(program).time.value > 0
        with pytest.raises(ReferenceFailedError):
            measurer.verify_reference(program)


def test_the_failure_of_an_equal_plan_is_not_used_for_the_reference(program: Program, tmp_path: Path) -> None:
    with faulty(first_times(tmp_path / "count", 1, "os.kill(os.getpid(), signal.SIGSEGV)")) as measurer:
        assert measurer.measure(program, plan("none")).failure == "crash"
        assert measurer.measure_reference(program).time.value > 0


def test_a_program_that_computes_nothing_has_no_reference(tmp_path: Path) -> None:
    (tmp_path / "empty.hlo").write_text("HloModule empty\nENTRY e { ROOT t = () tuple() }\n")
    (tmp_path / "same.hlo").write_text("HloModule same\nENTRY e { ROOT x = f32[4] parameter(0) }\n")
    empty, same = (Program(name, "here", "train", tmp_path / f"{name}.hlo", "") for name in ("empty", "same"))
    with Measurer(options=OPTIONS) as measurer:
        with pytest.raises(ReferenceFailedError, match="nothing in it takes time"):
            measurer.measure_reference(empty)
        assert measurer.measure_reference(same).idle


def test_programs_of_the_same_name_are_distinguished(program: Program, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "chain.hlo").write_text(LOOP)
    other = load_suite(tmp_path / "other").find("chain")
    with Measurer(options=OPTIONS) as measurer:
        assert measurer.measure(program, None).kernels != measurer.measure(other, None).kernels


def test_a_worn_worker_is_replaced(program: Program) -> None:
    with faulty("w.WEAR_INTERVAL = 1; w._worn = lambda: True") as measurer:
        assert measurer.measure(program, plan("none")).failure is None
        assert measurer.measure(program, plan("priority")).failure is None
        assert measurer.restarts == 1


def test_the_cache_of_measurements_is_bounded(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env.measurement.KNOWN_MEASUREMENTS", 1)
    with Measurer(options=OPTIONS) as measurer:
        first = measurer.measure(program, plan("none"))
        measurer.measure(program, plan("priority"))
        assert measurer.measure(program, plan("none")) is not first


def test_a_plan_that_does_not_compile_is_a_result(program: Program) -> None:
    other = CompilationPlan(fingerprint="0" * 64)
    with Measurer(options=OPTIONS) as measurer:
        result = measurer.measure(program, other)
        assert result.failure == "compile"
        assert "another module" in result.message
        assert measurer.check(program, None) is None
