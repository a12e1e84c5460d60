"""Calls through the built-in function of call.c, and the calls that it leaves to Python."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
import weakref
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.errors import ArgumentError
from compiler.interpreter import evaluate
from compiler.text import parse

TWO = """
HloModule two
ENTRY main {
  a = f32[2,3] parameter(0)
  b = f32[] parameter(1)
  c = f32[2,3] broadcast(b), dimensions={}
  d = f32[2,3] add(a, c)
  e = f32[] negate(b)
  ROOT r = (f32[2,3], f32[]) tuple(d, e)
}
"""
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array(4, np.float32)


def program(text: str = TWO) -> CpuExecutable:
    exe = compile(text)
    assert isinstance(exe, CpuExecutable)
    return exe


def taken(exe: CpuExecutable, *arrays: Any) -> bool:
    """Check whether the built-in function makes a call itself."""
    return exe._call_arrays(arrays) is not None


def test_the_built_in_function_is_used_here() -> None:
    exe = program()
    exe(A, B)
    assert RUNTIME.calls_arrays
    assert taken(exe, A, B)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint64", "bool", "bfloat16", "float16"])
@pytest.mark.parametrize("dimensions", [(), (3,), (2, 1, 4), (0, 5)])
def test_results_equal_those_of_the_interpreter(dtype: str, dimensions: tuple[int, ...]) -> None:
    names = {
        "float32": "f32", "float64": "f64", "int8": "s8", "uint64": "u64", "bool": "pred", "bfloat16": "bf16",
        "float16": "f16",
    }  # fmt: skip
    shape = f"{names[dtype]}[{','.join(map(str, dimensions))}]"
    op = "xor" if dtype == "bool" else "add"
    text = f"HloModule m\nENTRY main {{ a = {shape} parameter(0) ROOT r = {shape} {op}(a, a) }}"
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = np.arange(1, 1 + int(np.prod(dimensions))).reshape(dimensions).astype(kind)
    exe = program(text)
    for _ in range(2):  # the first call has no frame yet
        (found,) = exe(x)
        assert type(found) is np.ndarray
        assert (found.dtype, found.shape) == (kind, dimensions)
        np.testing.assert_array_equal(found, evaluate(parse(text), [x])[0])
    assert taken(exe, x)


def unusual_arguments() -> dict[str, tuple[Any, Any]]:
    raw = np.zeros(25, np.uint8)
    shifted: Any = raw[1:].view(np.float32).reshape(2, 3)
    shifted[:] = A
    locked = A.copy()
    locked.flags.writeable = False
    return {
        "a scalar": (A, np.float32(4)),
        "column-major order": (np.asfortranarray(A), B),
        "not aligned": (shifted, B),
        "a subclass": (A.view(np.matrix), B),
        "read-only": (locked, B),
        "an equal data type": (A, B.astype(np.dtype("<f4", metadata={"x": 1}))),
    }


@pytest.mark.parametrize("what", unusual_arguments())
def test_unusual_arguments_give_the_same_results(what: str) -> None:
    exe = program()
    wanted = exe(A, B)
    for found, right in zip(exe(*unusual_arguments()[what]), wanted, strict=True):
        np.testing.assert_array_equal(found, right)


def test_mismatched_arguments_are_refused_after_a_first_call() -> None:
    exe = program()
    exe(A, B)
    for bad in [(), (A,), (A, B, B), (A.T, B), (A.astype(np.float64), B), (A, B.reshape(1)), (A, "text"), (A, None)]:
        with pytest.raises(ArgumentError):
            exe(*bad)
    np.testing.assert_array_equal(exe(A, B)[0], A + 4)


def test_calls_work_without_the_built_in_function(monkeypatch: pytest.MonkeyPatch) -> None:
    program()(A, B)
    monkeypatch.setattr(RUNTIME, "calls_arrays", False)
    exe = program(TWO.replace("add(a, c)", "subtract(a, c)"))
    for _ in range(3):
        np.testing.assert_array_equal(exe(A, B)[0], A - 4)
        assert not taken(exe, A, B)


def test_each_call_returns_new_arrays() -> None:
    exe = program()
    first, second = exe(A, B), exe(A + 1, B)
    assert not np.shares_memory(first[0], second[0])
    np.testing.assert_array_equal(first[0], A + 4)
    np.testing.assert_array_equal(second[0], A + 5)


def test_references_are_counted_correctly() -> None:
    exe = program()
    objects = [A, B, A.dtype, np.ndarray]
    exe(A, B)
    exe(A, B)
    gc.collect()  # what earlier tests left behind may refer to the types
    before = [sys.getrefcount(x) for x in objects]
    for _ in range(300):
        exe(A, B)
        with suppress(ArgumentError):
            exe(A)
    gc.collect()
    after = [sys.getrefcount(x) for x in objects]
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) < 100


def test_an_executable_keeps_only_its_last_call_alive() -> None:
    exe = program()
    alive = []
    for k in range(4):
        results = exe(A + k, B)
        alive.append(weakref.ref(results[0]))
        del results
    assert [r() is not None for r in alive] == [False, False, False, True]
    del exe
    gc.collect()
    assert alive[-1]() is None


def test_thunks_are_timed_inside_the_program() -> None:
    exe = program()
    samples = exe.time_thunks([A, B], 3)
    assert [len(s.seconds) for s in samples] == [3] * len(exe.thunks)
    assert all(s.executions == 1 for s in samples)
    assert len(exe.profile(A, B)) == len(exe.thunks)


def test_threads_use_frames_of_their_own() -> None:
    text = """
    HloModule m
    ENTRY main {
      a = f32[64,64] parameter(0)
      d = f32[64,64] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT e = f32[64,64] dot(d, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    """
    exe = compile(text, options=CompileOptions(optimize=False))
    inputs = [np.random.default_rng(k).normal(size=(64, 64)).astype(np.float32) for k in range(4)]
    wanted = [exe(x)[0] for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(200):
            wrong.extend([k] * (not np.array_equal(exe(inputs[k])[0], wanted[k])))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_results_of_the_last_call_are_freed_before_new_ones_are_allocated() -> None:
    text = "HloModule m\nENTRY main { a = f32[4000000] parameter(0) ROOT r = f32[4000000] negate(a) }"
    exe = program(text)
    x = np.ones(4_000_000, np.float32)
    exe(x)
    tracemalloc.start()
    try:
        exe(x)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            exe(x)
        assert tracemalloc.get_traced_memory()[1] - before < x.nbytes // 2
    finally:
        tracemalloc.stop()


def test_calls_on_addresses_equal_those_on_arrays() -> None:
    exe = program()
    wanted = exe(A, B)
    found = [np.empty_like(w) for w in wanted]
    addresses = [x.ctypes.data for x in (A, B)], [x.ctypes.data for x in found]
    exe.call_at(*addresses)  # the calls before have made a frame
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(f, w)
    assert exe._call_addresses(*addresses[0], *addresses[1])
    assert exe._call_addresses(*addresses[0]) is None


def test_the_first_call_may_be_one_on_addresses() -> None:
    exe, found = program(), [np.empty_like(A), np.empty_like(B)]
    exe.call_at([A.ctypes.data, B.ctypes.data], [x.ctypes.data for x in found])
    np.testing.assert_array_equal(found[0], A + B)


def test_thunks_can_be_timed_after_a_call_that_failed() -> None:
    exe = program()
    exe(A, B)
    with pytest.raises(ArgumentError):
        exe(A, "text")
    with pytest.raises(ArgumentError):
        exe.time_thunks([A, "text"])
    exe(A, B)
    assert exe.time_thunks([A, B])
