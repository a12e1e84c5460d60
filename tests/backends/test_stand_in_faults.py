"""The stand-in for CuPy and a GPU reports what is undefined or an error on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cuda.device_program import DeviceProgram
from compiler.backends.cuda.emulation import stand_in
from compiler.backends.cuda.emulation.stand_in import FaultError
from compiler.backends.cuda.emulation.stand_in.products import Cublas
from compiler.backends.cuda.steps import ProductStep

PLAIN = CompileOptions(optimize=False)  # products by cuBLAS, not by kernels of our own
COPY = 3  # cudaMemcpyDeviceToDevice
PRODUCTS = """
HloModule products
ENTRY e {
  x = f32[4,4] parameter(0)
  y = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[4,4] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT w = f32[4,4] dot(z, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture
def cupy() -> Iterator[Any]:
    """The stand-in, as a program imports it."""
    with stand_in.installed(reuse=False):
        yield importlib.import_module("cupy")


def test_use_after_free(cupy: Any) -> None:
    x, y = cupy.asarray(np.ones(8)), cupy.empty(8)
    address = x.data.ptr
    del x
    with pytest.raises(FaultError, match=r"reads memory at .* that was freed"):
        cupy.cuda.runtime.memcpyAsync(y.data.ptr, address, 64, COPY, 0)


def test_access_past_the_end(cupy: Any) -> None:
    x, y = cupy.asarray(np.ones(8)), cupy.empty(4)
    with pytest.raises(FaultError, match="past the end"):
        cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, 64, COPY, 0)


def test_memory_that_was_never_allocated(cupy: Any) -> None:
    y = cupy.empty(4)
    with pytest.raises(FaultError, match="never allocated"):
        cupy.cuda.runtime.memcpyAsync(y.data.ptr, 8, 32, COPY, 0)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda cupy, stream: cupy.empty(4), "allocated during the capture"),
        (lambda cupy, stream: cupy.cuda.Stream(), "created during the capture"),
        (lambda cupy, stream: stream.synchronize(), "that is being captured"),
        (lambda cupy, stream: cupy.cuda.Event().record(stream), "that is being captured"),
    ],
)
def test_what_a_capture_forbids(cupy: Any, act: Callable[[Any, Any], object], what: str) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    with pytest.raises(FaultError, match=what):
        act(cupy, stream)
    stream.end_capture()


def test_a_graph_over_freed_memory(cupy: Any) -> None:
    x, y = cupy.asarray(np.ones(8)), cupy.empty(8)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, 64, COPY, stream.ptr)
    graph = stream.end_capture()
    graph.launch()
    np.testing.assert_array_equal(y.get(), np.ones(8))
    del x
    with pytest.raises(FaultError, match="freed"):
        graph.launch()


def test_a_missing_wait_between_streams(cupy: Any) -> None:
    x, y = cupy.asarray(np.ones(8)), cupy.empty(8)
    other = cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(FaultError, match=r"reads memory without waiting: .* may still be writing it"):
        cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, 64, COPY, other.ptr)
    event = cupy.cuda.Event()
    event.record()
    other.wait_event(event)
    cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, 64, COPY, other.ptr)
    with pytest.raises(FaultError, match=r"writes memory without waiting: .* may still be reading it"):
        x[...] = 0.0
    other.synchronize()


def test_blocking_streams_wait_for_the_default_stream(cupy: Any) -> None:
    x, y = cupy.asarray(np.ones(8)), cupy.empty(8)
    other = cupy.cuda.Stream()
    cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, 64, COPY, other.ptr)
    np.testing.assert_array_equal(y.get(), np.ones(8))


def test_a_copy_to_pinned_memory_arrives_when_the_host_has_waited(cupy: Any) -> None:
    x = cupy.asarray(np.arange(8, dtype=np.uint8))
    pinned = cupy.cuda.alloc_pinned_memory(8)
    held = stand_in.host_bytes(pinned.ptr, 8)
    cupy.cuda.runtime.memcpyAsync(pinned.ptr, x.data.ptr, 8, 2, 0)
    assert not np.array_equal(held, np.arange(8))
    cupy.cuda.Stream.null.synchronize()
    np.testing.assert_array_equal(held, np.arange(8))


def test_memory_freed_while_another_stream_uses_it() -> None:
    with pytest.raises(FaultError, match="memory is freed while"), stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        x, y = cupy.asarray(np.ones(8)), cupy.empty(8)
        cupy.cuda.Stream.null.synchronize()
        other = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, 64, COPY, other.ptr)
        del x
        other.synchronize()


# ---- faults planted in the executable


def _three_calls(streams: int) -> None:
    """Call a program three times, on so many streams in turns, which wait for the arguments but not for each other."""
    executable = compile(PRODUCTS, backend="cuda", options=PLAIN)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        x = cupy.asarray(np.eye(4, dtype=np.float32))
        cupy.cuda.Stream.null.synchronize()
        used = [cupy.cuda.Stream(non_blocking=True) for _ in range(streams)]
        kept = []
        for n in range(3):
            with used[n % streams]:
                kept.append(executable(x))
        for stream in used:
            stream.synchronize()
        for (result,) in kept:
            np.testing.assert_array_equal(result.get(), np.eye(4))
        kept.clear()


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_calls_on_several_streams_are_ordered(streams: int) -> None:
    _three_calls(streams)


def test_calls_that_do_not_wait_for_each_other_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceProgram, "_order_after_last", lambda self, stream: None)
    with pytest.raises(FaultError, match="without waiting"):
        _three_calls(3)


def test_a_step_that_allocates_is_caught_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = ProductStep.launch

    def allocating(self: ProductStep, stream: int) -> None:
        importlib.import_module("cupy").empty(16)
        launch(self, stream)

    monkeypatch.setattr(ProductStep, "launch", allocating)
    with pytest.raises(FaultError, match="allocated during the capture"):
        _one_stream_with_the_same_addresses()


def _one_stream_with_the_same_addresses() -> None:
    executable = compile(PRODUCTS, backend="cuda", options=PLAIN)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        x = cupy.asarray(np.eye(4, dtype=np.float32))
        for _ in range(3):
            executable(x)  # the memory of the result is free again, so the next call has the same addresses


def test_memory_of_a_program_that_is_freed_early_is_caught() -> None:
    executable = compile(PRODUCTS, backend="cuda", options=PLAIN)
    with stand_in.installed() as gpu:
        x = np.eye(4, dtype=np.float32)
        executable(x)
        program = executable._on_device()  # type: ignore[attr-defined]
        gpu.free(program._memory.allocation)
        with pytest.raises(FaultError, match="freed"):
            executable(x)


def test_products_without_a_workspace_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cublas, "cublasSetWorkspace_v2", lambda self, handle, address, size: 0)
    with pytest.raises(FaultError, match="workspace"):
        _three_calls(1)
