"""Failures on a GPU: one message each, which names the kernel and says what to do."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cuda import nvrtc
from compiler.backends.cuda.blas import CublasError
from compiler.backends.cuda.emulation import available, stand_in
from compiler.backends.cuda.failures import translated
from compiler.errors import ArgumentError, BackendError, CodegenError, DeviceLostError, MemoryLimitError

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")
PLAIN = CompileOptions(optimize=False)
CHAIN = """
HloModule chain
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] sine(x)
  ROOT z = f32[64] multiply(y, x)
}
"""
PRODUCT = """
HloModule product
ENTRY e {
  x = f64[256,256] parameter(0)
  ROOT y = f64[256,256] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def _without_gpu(error: Exception | None, count: int = 0) -> ModuleType:
    """Return a module like CuPy on a machine where counting the GPUs returns a number or raises."""

    def count_devices() -> int:
        if error is not None:
            raise error
        return count

    module = ModuleType("cupy")
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count_devices))  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient"), "InsufficientDriver"),
        (None, "no device"),
    ],
)
def test_without_driver_or_device(error: Exception | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", _without_gpu(error))
    with pytest.raises(BackendError, match=f"finds no GPU here.*{message}.*backend='cpu'"):
        compile(CHAIN, backend="cuda")(np.zeros(64, np.float32))


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    with pytest.raises(BackendError, match=r"needs CuPy: install hlogym\[cuda12\] or hlogym\[cuda13\].*exe\.kernels"):
        compile(CHAIN, backend="cuda")(np.zeros(64, np.float32))


def test_without_nvrtc_the_error_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise BackendError("NVRTC is not installed")

    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(nvrtc, "_library", missing)
    with pytest.raises(BackendError, match="NVRTC is not installed") as raised:
        nvrtc.compiler()
    assert raised.value.__context__ is None  # a traceback would begin with the failed import of CuPy


@needs_emulator
def test_a_kernel_that_fails_in_the_first_call_is_named() -> None:
    executable = compile(CHAIN, backend="cuda", options=PLAIN)
    first, second = (k.symbol for k in executable.kernels)
    with stand_in.installed() as gpu:
        gpu.failing[second] = 700
        with pytest.raises(DeviceLostError, match=f"the kernel {second} ended with .*illegal address.*fresh") as caught:
            executable(np.ones(64, np.float32))
        assert caught.value.kernels == (second,)
        with pytest.raises(DeviceLostError, match="start a fresh one"):
            executable(np.ones(64, np.float32))
    assert first != second


@needs_emulator
def test_kernels_that_may_have_failed_later_are_listed() -> None:
    executable = compile(CHAIN, backend="cuda", options=PLAIN)
    symbols = [k.symbol for k in executable.kernels]
    with stand_in.installed() as gpu:
        cupy: Any = importlib.import_module("cupy")
        x = cupy.asarray(np.ones(64, np.float32))
        for _ in range(3):
            executable(x)
        gpu.failing[symbols[1]] = 716
        with pytest.raises(DeviceLostError, match="misaligned address") as caught:
            _ = executable(x), executable(x)  # a GPU fails after the first has returned
        assert set(symbols) <= set(caught.value.kernels)
        assert "synchronous = True" in str(caught.value)


@needs_emulator
def test_the_launch_that_is_refused_is_named() -> None:
    executable = compile(CHAIN, backend="cuda", options=PLAIN)
    symbol = executable.kernels[0].symbol
    with stand_in.installed() as gpu:
        gpu.refusing[symbol] = 701
        with pytest.raises(CodegenError, match=rf"the kernel {symbol} of %y \(.* threads\) cannot be launched"):
            executable(np.ones(64, np.float32))
        gpu.refusing.clear()
        (result,) = executable(np.ones(64, np.float32))  # the GPU is not lost
        np.testing.assert_allclose(result.get(), np.full(64, np.sin(1.0)), rtol=1e-6)


def test_too_little_memory_for_the_program() -> None:
    executable = compile(PRODUCT, backend="cuda", options=PLAIN)
    with (
        stand_in.installed(memory=8 << 20),
        pytest.raises(MemoryLimitError, match=r"the program's memory .* needs .* GPU memory, and .* are free"),
    ):
        executable(np.zeros((256, 256)))


def test_too_little_memory_for_an_argument_or_result() -> None:
    executable = compile(PRODUCT, backend="cuda", options=PLAIN)
    with stand_in.installed(memory=(32 << 20) + (800 << 10)):
        x = np.zeros((256, 256))
        with pytest.raises(MemoryLimitError, match=r"result 0 \(f64\[256,256\]\) needs 524,288 bytes of GPU memory"):
            executable(x)


def test_the_pool_gives_way_to_the_memory_of_a_program() -> None:
    executable = compile(PRODUCT, backend="cuda", options=PLAIN)
    with stand_in.installed(memory=40 << 20):
        cupy: Any = importlib.import_module("cupy")
        held = cupy.empty(16 << 20, np.uint8)
        del held  # the pool keeps it
        np.testing.assert_array_equal(executable(np.eye(256))[0].get(), np.eye(256))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "takes 1 argument"),
        ((np.zeros(64), ), "argument 0: expected f32.64. .*given float64"),
        ((np.zeros(63, np.float32), ), "argument 0: expected f32.64."),
        ((object(), ), "argument 0"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_match(arguments: tuple[Any, ...], message: str) -> None:
    executable = compile(CHAIN, backend="cuda", options=PLAIN)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        on_gpu = tuple(cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments)
        for given in (arguments, on_gpu):
            with pytest.raises(ArgumentError, match=message):
                executable(*given)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (CublasError("cublasGemmEx", 13), BackendError, "cuBLAS failed in the product %y: .*13.*execution failed"),
        (stand_in.gpu.CUDADriverError(209), CodegenError, "compiled for another GPU"),
        (stand_in.gpu.CUDARuntimeError(46), BackendError, "CUDA failed in the product %y"),
        (stand_in.gpu.CUDARuntimeError(2), MemoryLimitError, "more GPU memory than is free"),
        (stand_in.gpu.CUDARuntimeError(214), DeviceLostError, "memory error .*ECC"),
    ],
)
def test_errors_of_cuda(error: Exception, kind: type[Exception], message: str) -> None:
    found = translated(error, "the product %y", [])
    assert isinstance(found, kind)
    with pytest.raises(kind, match=message):
        raise found


def test_other_errors_are_not_translated() -> None:
    assert translated(ValueError("something else"), "the product %y", []) is None
