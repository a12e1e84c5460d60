"""The C runtime: threads, forks and interrupts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.errors import BackendError
from compiler.loops import KeepLoops, KernelLoops, LoopPolicy
from compiler.support.threads import default_threads

ROOT = Path(__file__).parent.parent.parent
REDUCTIONS = """
HloModule reductions
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
ENTRY main {
  x = f32[1000003] parameter(0)
  y = f32[2000,300] parameter(1)
  zero = f32[] constant(0)
  low = f32[] constant(-inf)
  s = f32[] reduce(x, zero), dimensions={0}, to_apply=add
  m = f32[] reduce(x, low), dimensions={0}, to_apply=max
  t = f32[1000003] tanh(x)
  rows = f32[2000] reduce(y, zero), dimensions={1}, to_apply=add
  columns = f32[300] reduce(y, zero), dimensions={0}, to_apply=add
  ROOT out = (f32[], f32[], f32[1000003], f32[2000], f32[300]) tuple(s, m, t, rows, columns)
}
"""
COUNTER = """
HloModule counter
body {
  p = (s32[], f32[64]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  x = f32[64] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(n, one)
  half = f32[] constant(0.5)
  h = f32[64] broadcast(half), dimensions={}
  y = f32[64] multiply(x, h)
  c = f32[64] cosine(y)
  ROOT t = (s32[], f32[64]) tuple(next, c)
}
condition {
  p = (s32[], f32[64]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  limit = s32[] LIMIT
  ROOT r = pred[] compare(n, limit), direction=LT
}
ENTRY main {
  zero = s32[] constant(0)
  x = f32[64] parameter(0)
  t = (s32[], f32[64]) tuple(zero, x)
  ROOT w = (s32[], f32[64]) while(t), condition=condition, body=body
}
"""


@pytest.fixture(scope="module")
def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=1000003).astype(np.float32), rng.normal(size=(2000, 300)).astype(np.float32)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = RUNTIME.num_threads
    yield
    RUNTIME.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_the_number_of_threads(arguments: list[np.ndarray]) -> None:
    exe = compile(REDUCTIONS)
    found = []
    for count in (1, 2, 3, 7):
        RUNTIME.set_num_threads(count)
        found += [exe(*arguments) for _ in range(3)]
    for outs in found[1:]:
        for a, b in zip(outs, found[0], strict=True):
            assert a.tobytes() == b.tobytes()
    x, y = (a.astype(np.float64) for a in arguments)
    np.testing.assert_allclose(found[0][0], x.sum(), rtol=1e-4)
    assert found[0][1] == x.max()
    np.testing.assert_allclose(found[0][2], np.tanh(x), rtol=1e-5)
    np.testing.assert_allclose(found[0][3], y.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[0][4], y.sum(0), rtol=1e-4, atol=1e-3)


def test_the_number_of_threads_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (0, -1, True, 1.5, "2"):
        with pytest.raises(ValueError, match="must be a positive integer"):
            RUNTIME.set_num_threads(wrong)  # type: ignore[arg-type]
    monkeypatch.delenv("HLOGYM_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert default_threads() == 3
    monkeypatch.setenv("HLOGYM_NUM_THREADS", "5")
    assert default_threads() == 5
    monkeypatch.setenv("HLOGYM_NUM_THREADS", "9" * 5000)
    assert default_threads() > 5
    monkeypatch.setenv("HLOGYM_NUM_THREADS", "many")
    with pytest.raises(BackendError, match="HLOGYM_NUM_THREADS must be a positive integer, not 'many'"):
        default_threads()


def test_python_threads_may_call_one_program_concurrently(arguments: list[np.ndarray]) -> None:
    exe = compile(REDUCTIONS)
    wanted = [a.tobytes() for a in exe(*arguments)]
    right: list[bool] = []

    def work() -> None:
        right.extend([a.tobytes() for a in exe(*arguments)] == wanted for _ in range(10))

    running = [threading.Thread(target=work) for _ in range(8)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert right == [True] * 80


# ---- forks


def _in_a_child(arguments: list[np.ndarray], wanted: list[bytes], answers: multiprocessing.Queue[bool]) -> None:
    exe = compile(REDUCTIONS)
    answers.put([a.tobytes() for a in exe(*arguments)] == wanted)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_run_kernels(arguments: list[np.ndarray]) -> None:
    wanted = [a.tobytes() for a in compile(REDUCTIONS)(*arguments)]
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[bool] = context.Queue()
    for _ in range(3):
        child = context.Process(target=_in_a_child, args=(arguments, wanted, answers))
        child.start()
        assert answers.get(timeout=120)
        child.join(timeout=60)
        assert child.exitcode == 0
    assert [a.tobytes() for a in compile(REDUCTIONS)(*arguments)] == wanted


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_forks_and_signals_may_come_together(arguments: list[np.ndarray]) -> None:
    """Threads call two executables, children forked meanwhile call them too, and signals arrive all the time."""
    reductions = compile(REDUCTIONS)
    counter = compile(COUNTER.replace("LIMIT", "constant(3000)"), loop_policy=KeepLoops())
    x = np.linspace(0, 1, 64, dtype=np.float32)

    def results() -> list[bytes]:
        return [a.tobytes() for a in [*reductions(*arguments), *counter(x)]]

    wanted, found, signals = results(), [], []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            found.append(results() == wanted)

    workers = [threading.Thread(target=work) for _ in range(3)]
    before = signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        for t in workers:
            t.start()
        codes = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(results() == wanted for _ in range(3)) else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        done.set()
        for t in workers:
            t.join()
    assert codes == [0] * 5
    assert all(found)
    assert signals


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_safe_while_other_threads_run_kernels(arguments: list[np.ndarray]) -> None:
    exe = compile(REDUCTIONS)
    wanted = [a.tobytes() for a in exe(*arguments)]
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            exe(*arguments)

    running = [threading.Thread(target=work) for _ in range(2)]
    for t in running:
        t.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if [a.tobytes() for a in exe(*arguments)] == wanted else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        for t in running:
            t.join()


# ---- interrupts


def _interrupted(program: str, loops: str) -> subprocess.CompletedProcess[str]:
    """Run an endless loop in a process, send it a SIGINT, and return its status and output."""
    code = f"""
        import sys, numpy as np
        from compiler import compile
        from compiler.loops import KeepLoops, KernelLoops
        exe = compile({program!r}, loop_policy={loops}())
        print("running", flush=True)
        try:
            exe(np.ones(64, np.float32))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print("done", flush=True)
    """
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment)
    assert child.stdout is not None
    first = child.stdout.readline()
    threading.Event().wait(0.5)  # if the interrupt arrives before the call, the output is the same
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    return subprocess.CompletedProcess(child.args, child.returncode, first + out, err)


@pytest.mark.parametrize("loops", ["KeepLoops", "KernelLoops"])
def test_ctrl_c_ends_a_compiled_loop(loops: str) -> None:
    endless = COUNTER.replace("LIMIT", "constant(2000000000)")
    done = _interrupted(endless, loops)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["running", "interrupted", "done"]


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("loops", [KeepLoops(), KernelLoops()], ids=["loop", "kernel"])
def test_an_exception_in_a_signal_handler_ends_a_call(loops: LoopPolicy) -> None:
    x = np.linspace(0, 1, 64, dtype=np.float32)
    endless = compile(COUNTER.replace("LIMIT", "constant(2000000000)"), loop_policy=loops)

    def late(number: int, frame: object) -> None:
        raise TimeoutError("too late")

    signal.signal(signal.SIGALRM, late)
    for run in (lambda: endless(x), lambda: endless.benchmark([x], 2)):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError, match="too late"):
            run()


@pytest.mark.usefixtures("alarm")
def test_a_call_continues_after_a_signal_handler_returns() -> None:
    x = np.linspace(0, 1, 64, dtype=np.float32)
    endless = compile(COUNTER.replace("LIMIT", "constant(2000000000)"), loop_policy=KeepLoops())
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) == 3:
            raise TimeoutError("three times")

    signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    with pytest.raises(TimeoutError, match="three times"):
        endless(x)
    assert seen == [signal.SIGALRM] * 3


def test_a_program_can_be_called_after_an_interrupted_call() -> None:
    text = COUNTER.replace("LIMIT", "constant(2000)")
    x = np.linspace(0, 1, 64, dtype=np.float32)
    exe = compile(text, loop_policy=KeepLoops())
    assert isinstance(exe, CpuExecutable)
    wanted = exe(x)
    frame = exe._frames.take()
    frame.context.call.fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        frame.raise_error()
    exe._frames.give(frame)
    for a, b in zip(exe(x), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("elements", [1000, 8192, 8195, 150_001])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_loops_that_exchange_arrays_copy_them_on_several_threads(elements: int, count: int) -> None:
    text = f"""
HloModule exchange
body {{
  p = (s32[], f32[{elements}], f32[{elements}]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  x = f32[{elements}] get-tuple-element(p), index=1
  y = f32[{elements}] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(n, one)
  ROOT t = (s32[], f32[{elements}], f32[{elements}]) tuple(next, y, x)
}}
condition {{
  p = (s32[], f32[{elements}], f32[{elements}]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(9)
  ROOT r = pred[] compare(n, limit), direction=LT
}}
ENTRY main {{
  n = s32[] parameter(0)
  x = f32[{elements}] parameter(1)
  y = f32[{elements}] parameter(2)
  t = (s32[], f32[{elements}], f32[{elements}]) tuple(n, x, y)
  ROOT w = (s32[], f32[{elements}], f32[{elements}]) while(t), condition=condition, body=body
}}
"""
    x, y = np.arange(elements, dtype=np.float32), -np.arange(elements, dtype=np.float32)
    exe = compile(text, loop_policy=KeepLoops())
    assert isinstance(exe, CpuExecutable)
    RUNTIME.set_num_threads(count)
    for start, exchanges in ((0, 9), (2, 7), (5, 4)):
        _, a, b = exe(np.int32(start), x, y)
        first, second = (y, x) if exchanges % 2 else (x, y)
        np.testing.assert_array_equal(a, first)
        np.testing.assert_array_equal(b, second)
