"""Options of calls: subnormal numbers that count as zero, and the number of threads; and the memory of a call."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile, load
from compiler.backends.cpu.executable import CpuExecutable
from compiler.errors import ArgumentError
from compiler.runtime.executable import CallOptions

ROOT = Path(__file__).parent.parent.parent
HALVE = """
HloModule m
ENTRY main {
  x = f32[SIZE] parameter(0)
  h = f32[] constant(0.5)
  b = f32[SIZE] broadcast(h), dimensions={}
  ROOT r = f32[SIZE] multiply(x, b)
}
"""
SMALL, LARGE = 16, 3_000_000


def halve(size: int, **options: Any) -> CpuExecutable:
    exe = compile(HALVE.replace("SIZE", str(size)), options=CompileOptions(**options))
    assert isinstance(exe, CpuExecutable)
    return exe


def subnormal(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full(size, 1e-40, np.float32)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_subnormal_numbers_are_kept_by_default(size: int) -> None:
    exe = halve(size)
    for _ in range(2):
        assert (exe(subnormal(size))[0] == np.float32(1e-40) * np.float32(0.5)).all()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_subnormal_numbers_are_flushed_on_request_in_every_thread(size: int) -> None:
    exe = halve(size, flush_denormals=True)
    for _ in range(3):
        assert (exe(subnormal(size))[0] == 0).all()
        assert (exe(np.ones(size, np.float32))[0] == 0.5).all()
        assert (subnormal(4) * np.float32(0.5) > 0).all()  # the caller's setting is restored
    assert (halve(size)(subnormal(size))[0] > 0).all()  # and that of the workers


def test_workers_that_a_flushing_call_starts_keep_subnormal_numbers_later() -> None:
    code = (
        "from tests.runtime.test_call_options import LARGE, halve, subnormal\n"
        "flushing = halve(LARGE, flush_denormals=True)\n"
        "for _ in range(3):\n    assert (flushing(subnormal(LARGE))[0] == 0).all()\n"
        "keeping = halve(LARGE)\n"
        "for _ in range(10):\n    assert (keeping(subnormal(LARGE))[0] > 0).all()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_programs_with_different_options_run_at_the_same_time() -> None:
    flushing, keeping = halve(LARGE, flush_denormals=True), halve(LARGE)
    wrong: list[str] = []

    def work(exe: CpuExecutable, zero: bool) -> None:
        for _ in range(20):
            found = exe(subnormal(LARGE))[0] == 0
            wrong.extend(["flushed", "kept"][zero : zero + 1] * (not (found == zero).all()))

    threads = [threading.Thread(target=work, args=a) for a in ((flushing, True), (keeping, False), (flushing, True))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_options_of_calls_are_saved(tmp_path: Path) -> None:
    exe = halve(SMALL, flush_denormals=True, num_threads=1)
    exe.save(tmp_path / "program")
    loaded = load(tmp_path / "program")
    assert isinstance(loaded, CpuExecutable)
    assert loaded.call_options == CallOptions(flush_denormals=True, num_threads=1)
    assert (loaded(subnormal(SMALL))[0] == 0).all()


def test_options_may_change_between_calls() -> None:
    exe = halve(SMALL)
    assert (exe(subnormal(SMALL))[0] > 0).all()
    exe.call_options = CallOptions(flush_denormals=True)
    assert (exe(subnormal(SMALL))[0] == 0).all()


THREADS = """
import os
import numpy as np
from compiler import CompileOptions, compile
from tests.runtime.test_call_options import HALVE, LARGE

def threads():
    return len(os.listdir("/proc/self/task"))

x = np.ones(LARGE, np.float32)
before = threads()
for count in (1, 2, None, 100):
    exe = compile(HALVE.replace("SIZE", str(LARGE)), options=CompileOptions(num_threads=count))
    for _ in range(3):
        assert (exe(x)[0] == 0.5).all()
    print(count, threads() - before)
"""


def test_a_program_uses_at_most_its_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_NUM_THREADS", "3")
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 0", "2 1", "None 2", "100 2"]


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_an_invalid_number_of_threads_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match="num_threads"):
        CompileOptions(num_threads=count)


def test_a_backend_without_these_options_says_so() -> None:
    with pytest.raises(ArgumentError, match="options of the cpu backend, not of 'interpreter'"):
        compile(HALVE.replace("SIZE", "4"), backend="interpreter", options=CompileOptions(flush_denormals=True))


# ---- memory


MEMORY = """
HloModule m, HEADER
ENTRY main {
  a = f32[1000] parameter(0)
  b = f32[1000] parameter(1)
  t = f32[1000] negate(a)
  s = f32[1000] cosine(t)
  d = f32[1000] subtract(s, b)
  c = f32[1000] constant({VALUES})
  ROOT r = f32[1000] add(d, c)
}
"""


def test_the_memory_of_a_call_is_known_before_it() -> None:
    text = MEMORY.replace("VALUES", ",".join(map(str, range(1000)))).replace(", HEADER", "")
    exe = compile(text, options=CompileOptions(optimize=False))
    memory = exe.memory
    assert memory is not None
    assert (memory.arguments, memory.results, memory.constants) == (8000, 4000, 4000)
    assert memory.temporaries in range(0, 8129, 64)
    assert memory.peak == 16000 + memory.temporaries
    assert "arguments 8,000 bytes" in str(memory)


def test_a_result_that_takes_over_an_argument_needs_no_memory() -> None:
    text = MEMORY.replace("VALUES", ",".join(map(str, range(1000))))
    exe = compile(text.replace("HEADER", "input_output_alias={ {}: (0, {}) }"))
    assert exe.memory is not None
    assert exe.memory.results == 0
    assert compile(text.replace(", HEADER", ""), backend="interpreter").memory is None


def test_compiling_allocates_no_arrays() -> None:
    """A program whose arrays exceed the memory of any machine is compiled, and its call raises one clear error."""
    text = HALVE.replace("SIZE", str(1 << 46))
    exe = compile(text)
    assert exe.memory is not None
    assert exe.memory.peak >= 1 << 49
