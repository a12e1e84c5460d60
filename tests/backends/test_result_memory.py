"""The memory of large results, which is kept when they are freed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.native_runtime import KEPT_RESULTS, LARGE, RUNTIME, kept_results
from compiler.errors import BackendError
from compiler.runtime.buffers import PAGE, PLACE
from compiler.support import memory
from compiler.support.memory import check_memory

Array = np.ndarray[Any, np.dtype[Any]]
COUNT = 2 * LARGE // 4
BYTES = COUNT * 4


def program(count: int = COUNT) -> CpuExecutable:
    exe = compile(f"""
        HloModule m
        ENTRY main {{
          x = f32[{count}] parameter(0)
          ROOT r = f32[{count}] add(x, x)
        }}
    """)
    assert isinstance(exe, CpuExecutable)
    return exe


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    RUNTIME.load(program(1).built.runtime_path)
    if not RUNTIME.calls_arrays:
        pytest.skip("results are made by numpy here")
    RUNTIME.held.hlogym_release_results()
    yield
    RUNTIME.held.hlogym_keep_results(KEPT_RESULTS)


def kept() -> int:
    return int(RUNTIME.held.hlogym_kept_results())


def called(exe: CpuExecutable, x: Array) -> Array:
    (result,) = exe(x)
    return result


def ones(count: int = COUNT) -> Array:
    return np.ones(count, np.float32)


def forget_last_results(exe: CpuExecutable) -> None:
    """Drop the results that the frames of a program keep until its next call."""
    exe._frames.clear()


def test_a_result_takes_the_memory_of_a_freed_one() -> None:
    exe, x = program(), ones()
    first = called(exe, x)
    address = first.ctypes.data
    del first
    forget_last_results(exe)
    assert kept() == BYTES
    exe = program()
    again = called(exe, x)
    assert again.ctypes.data == address
    assert kept() == 0
    np.testing.assert_array_equal(again, x + x)


def placed(x: Array, place: int) -> Array:
    """Return a copy that begins at a place of a page."""
    raw = np.empty(x.nbytes + 2 * PAGE, np.uint8)
    start = (place - raw.ctypes.data) % PAGE
    copy = raw[start : start + x.nbytes].view(x.dtype)
    copy[...] = x
    return copy


def bytes_ahead(result: Array, argument: Array) -> int:
    """Return how far in a page the stores to a result are ahead of the loads from an argument."""
    return (result.ctypes.data - argument.ctypes.data - 1) % PAGE + 1


@pytest.mark.parametrize("from_python", [False, True])
def test_loads_do_not_wait_for_stores_to_results(from_python: bool) -> None:
    exe = program()
    for place in range(0, PAGE, 192):  # memory of results is new first, and then that of the last one
        x = placed(ones(), place)
        argument = np.broadcast_to(x[:1], (COUNT,)) if from_python else x
        result = called(exe, argument)
        np.testing.assert_array_equal(result, x + x)
        assert from_python or bytes_ahead(result, x) >= 1024


def test_a_result_is_far_from_several_arguments() -> None:
    exe = compile(f"""
        HloModule m
        ENTRY main {{
          x = f32[{COUNT}] parameter(0)
          y = f32[{COUNT}] parameter(1)
          ROOT r = f32[{COUNT}] add(x, y)
        }}
    """)
    for places in ((0, 2048), (100, 1900), (3000, 3100), (64, 64)):
        arguments = [placed(ones(), p) for p in places]
        (result,) = exe(*arguments)
        assert min(bytes_ahead(result, x) for x in arguments) >= 768


def test_results_that_live_share_no_memory() -> None:
    exe, x = program(), ones()
    results = [called(exe, x * n) for n in range(5)]
    for n, r in enumerate(results):
        np.testing.assert_array_equal(r, np.float32(2 * n))
    assert len({r.ctypes.data for r in results}) == 5


def test_results_begin_at_different_places_of_a_page() -> None:
    exe, x = program(), ones()
    results = [called(exe, x) for _ in range(5)]
    places = sorted(r.ctypes.data % PAGE for r in results)
    assert all(high - low >= PLACE for low, high in pairwise(places))


def test_a_large_result_owns_aligned_memory_and_may_be_resized() -> None:
    result = called(program(), ones())
    assert result.flags.owndata
    assert result.flags.writeable
    assert result.ctypes.data % 64 == 0
    result.resize(2 * COUNT, refcheck=False)
    np.testing.assert_array_equal(result[:COUNT], np.float32(2))
    assert not result[COUNT:].any()
    result.resize(5, refcheck=False)
    np.testing.assert_array_equal(result, np.float32(2))


def test_arrays_of_the_caller_are_not_affected() -> None:
    exe, x = program(), ones()
    result = called(exe, x)
    other = np.empty(COUNT, np.float32)
    del result, other
    forget_last_results(exe)
    assert kept() == BYTES


def test_a_small_result_is_not_kept() -> None:
    exe = program(5)
    result = called(exe, ones(5))
    del result
    forget_last_results(exe)
    assert kept() == 0


def test_memory_serves_results_of_about_its_size_only() -> None:
    exe, x = program(), ones()
    called(exe, x)
    forget_last_results(exe)
    shorter = program(COUNT // 2)
    half = called(shorter, ones(COUNT // 2))
    assert kept() == BYTES
    slightly = program(COUNT - 100)
    near = called(slightly, ones(COUNT - 100))
    assert kept() == 0
    assert half.shape != near.shape


def test_what_was_freed_first_makes_room() -> None:
    RUNTIME.held.hlogym_keep_results(2 * BYTES)
    exe, x = program(), ones()
    results = [called(exe, x) for _ in range(4)]
    addresses = [r.ctypes.data for r in results]
    forget_last_results(exe)
    while results:
        del results[0]
    assert kept() == 2 * BYTES
    found = [called(program(), x) for _ in range(2)]
    assert [r.ctypes.data for r in found] == addresses[:1:-1]


def test_no_memory_is_kept_beyond_the_limit() -> None:
    RUNTIME.held.hlogym_keep_results(BYTES - 1)
    exe = program()
    called(exe, ones())
    forget_last_results(exe)
    assert kept() == 0


def test_kept_memory_is_released_before_an_allocation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = program()
    called(exe, ones())
    forget_last_results(exe)
    needed = memory.SMALL + BYTES
    monkeypatch.setattr(memory, "available_bytes", lambda: needed - kept())
    check_memory(needed, "a test")
    assert kept() == 0


@pytest.mark.parametrize(("text", "size"), [("", KEPT_RESULTS), ("0", 0), ("1G", 1 << 30)])
def test_the_limit_is_read_from_the_environment(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_KEPT_RESULTS", text)
    assert kept_results() == size


def test_a_malformed_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_KEPT_RESULTS", "much")
    with pytest.raises(BackendError, match="HLOGYM_KEPT_RESULTS"):
        kept_results()
