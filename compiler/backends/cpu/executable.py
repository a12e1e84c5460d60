"""The executable of the cpu backend: compiled kernels, an arena, and one C function that runs the program."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.cpu import toolchain
from compiler.backends.cpu.blas import blas_address, blas_threading
from compiler.backends.cpu.driver import Driver, print_driver
from compiler.backends.cpu.libraries import load_library
from compiler.backends.cpu.native_runtime import RUNTIME, Call
from compiler.backends.cpu.onednn.steps import LibrarySteps
from compiler.codegen.kernel_spec import KernelSpec
from compiler.interpreter.machine import Machine
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.allocation import allocate
from compiler.runtime.buffers import ALIGNMENT, Buffer, BufferKind
from compiler.runtime.executable import ThunkTime, check_arguments, parameter_leaves, profile_thunks
from compiler.runtime.host_ops import evaluate_host
from compiler.runtime.memory import check_program, new_results
from compiler.runtime.program_files import SavedProgram, save_program
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    LibraryThunk,
    Thunk,
    ThunkVisitor,
    WhileThunk,
    kernels_of,
    walk,
)
from compiler.support.memory import SMALL

Array = NDArray[Any]
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
_HOST = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _Context(ctypes.Structure):
    """`struct context` of the driver."""

    call: Call
    _fields_ = [  # ctypes requires a list
        ("call", Call),
        ("kernels", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("sgemm", ctypes.c_void_p),
        ("dgemm", ctypes.c_void_p),
        ("sgemv", ctypes.c_void_p),
        ("dgemv", ctypes.c_void_p),
        ("get_blas_threads", ctypes.c_void_p),
        ("set_blas_threads", ctypes.c_void_p),
        ("run_step", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class BuiltProgram:
    """A program with assigned memory and compiled C code.

    Attributes:
        program: thunks and buffers.
        arena_bytes: size of the memory for temporaries.
        driver: source and tables of the driver.
        runtime_path: shared object of the runtime that kernels and driver call.
        driver_path: shared object of the driver.
        objects: shared object of each kernel, by symbol.
    """

    program: ThunkProgram
    arena_bytes: int
    driver: Driver
    runtime_path: Path
    driver_path: Path
    objects: Mapping[str, Path]


class _Frame:
    """The working memory of one call of a program; later calls reuse it.

    Attributes:
        arena: memory of the temporaries.
        context: tables that are passed to the driver.
        arguments, results: arrays of the call.
        machine: state of the host ops of the call.
        error: exception that a host op raised, if any.
    """

    def __init__(self, arena_bytes: int, context: _Context) -> None:
        self.arena = _aligned(arena_bytes)
        self.arena_address = address_of(self.arena)
        self.context = context
        self.context_address = ctypes.addressof(context)
        self.arguments: list[Array] = []
        self.results: list[Array] = []
        self.machine = Machine()
        self.error: BaseException | None = None

    def stop(self, error: BaseException) -> None:
        """Request that the running call stops early and raises an error."""
        self.error = error
        self.context.call.stopped = 1

    def raise_error(self) -> None:
        """Raise the exception that stopped the call early, if any."""
        if not self.context.call.stopped:
            return
        error, self.error = self.error, None
        self.context.call.raise_exception()
        if error is not None:
            raise error


class CpuExecutable:
    """A compiled program that is loaded into this process.

    Several threads may call it at once; each call has a frame of its own.
    """

    backend = "cpu"

    def __init__(self, module: HloModule, built: BuiltProgram, plan: CompilationPlan | None = None) -> None:
        self.module = module
        self.plan = plan
        self.built = built
        self.program = built.program
        self.arena_bytes = built.arena_bytes
        self.thunks: list[Thunk] = list(walk(built.program.thunks))
        self._runtime = RUNTIME.load(built.runtime_path)
        libraries = {path: load_library(path) for path in {built.driver_path, *built.objects.values()}}
        self._libraries = tuple(libraries.values())  # the references keep them loaded
        self._addresses = {symbol: libraries[path].function(symbol) for symbol, path in built.objects.items()}
        self._entry_address = libraries[built.driver_path].function("hlogym_program")
        self._entry = _ENTRY(self._entry_address)
        self._shapes = parameter_leaves(module)
        self._expected = [(s.dtype, s.dimensions) for s in self._shapes]
        self._returned = [(b.shape.dtype, b.shape.dimensions) for b in self.program.results]
        self._result_bytes = sum(b.size for b in self.program.results)
        self._constants = _pointers(self.program.constants)
        symbols = built.driver.kernels
        self._table = (ctypes.c_void_p * max(1, len(symbols)))(*(self._addresses[s] for s in symbols))
        self._steps = LibrarySteps(built.driver.library, self.program.constants)
        # A bound method would be a reference cycle and delay the unloading of an unused program's libraries.
        host = weakref.WeakMethod(self._run_host)
        self._callback = _HOST(lambda number: _call(host(), number))
        self._frames: list[_Frame] = []
        self._last: _Frame | None = None
        self._running = threading.local()  # `frame`: the frame of the call that the thread runs

    @staticmethod
    def build(module: HloModule, program: ThunkProgram, plan: CompilationPlan | None = None) -> CpuExecutable:
        """Assign memory to the buffers of a program, compile its C code, and return the executable."""
        arena_bytes = allocate(program)
        driver = print_driver(program.thunks)
        tools = toolchain.toolchain()
        objects = toolchain.kernel_objects(kernels_of(walk(program.thunks)), tools)
        path = tools.shared_object(driver.source, "driver", toolchain.DRIVER_FLAGS)
        built = BuiltProgram(program, arena_bytes, driver, tools.runtime(), path, objects)
        return CpuExecutable(module, built, plan)

    @property
    def kernels(self) -> list[KernelSpec]:
        """Return the distinct generated kernels in program order."""
        return kernels_of(self.thunks)

    def save(self, path: str | Path) -> None:
        """Save the program to a folder; a machine with this kind of processor can load it without a compiler."""
        built = self.built
        names = {file: f"kernels-{n}.so" for n, file in enumerate(dict.fromkeys(built.objects.values()))}
        details = {
            "processor": toolchain.processor(),
            "objects": {symbol: names[file] for symbol, file in built.objects.items()},
        }
        names |= {built.driver_path: "driver.so", built.runtime_path: "runtime.so"}
        program = SavedProgram(self.backend, self.module, self.program, self.arena_bytes, self.plan, details)
        save_program(path, program, {name: file for file, name in names.items()})

    # ---- running

    def __call__(self, *arrays: Any) -> list[Array]:
        """Run the program and return the leaves of its result; raise ArgumentError if the arguments do not match."""
        frame = self._begin_call(self._checked(arrays))
        results = frame.results
        try:
            self._entry(
                frame.arena_address, _pointers(frame.arguments), _pointers(results), self._constants,
                frame.context_address,
            )  # fmt: skip
            frame.raise_error()
        finally:
            self._end_call(frame)
        return results

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        """Return the arguments as `check_arguments` does, with a fast path for arrays that need no conversion."""
        if len(arrays) == len(self._expected):
            for a, (dtype, dimensions) in zip(arrays, self._expected, strict=True):
                if type(a) is not np.ndarray or a.dtype != dtype or a.shape != dimensions or not a.flags.c_contiguous:
                    break
            else:
                return list(arrays)
        return check_arguments(arrays, self._shapes)

    def _begin_call(self, arguments: list[Array]) -> _Frame:
        """Return a frame for one call with new arrays for its results."""
        frame = self._take_frame()
        frame.arguments = arguments
        if self._result_bytes > SMALL:
            frame.results = new_results(self.program.results)
        else:
            frame.results = [np.empty(dimensions, dtype) for dtype, dimensions in self._returned]
        if self.built.driver.host:
            self._running.frame, frame.machine = frame, Machine()
        return frame

    def _end_call(self, frame: _Frame) -> None:
        """Make a frame available to later calls."""
        self._last = frame
        self._frames.append(frame)

    def _take_frame(self) -> _Frame:
        """Return an unused frame; allocate one if necessary."""
        try:
            return self._frames.pop()
        except IndexError:  # this is the first call, or other threads use all frames
            check_program(self.program, self.arena_bytes)
            return _Frame(self.arena_bytes, self._make_context())

    def _make_context(self) -> _Context:
        """Return the tables that the driver uses."""
        context = _Context(
            kernels=ctypes.addressof(self._table), host=ctypes.cast(self._callback, ctypes.c_void_p).value
        )
        if any(isinstance(t, GemmThunk) for t in self.thunks):
            context.sgemm, context.dgemm = blas_address("sgemm"), blas_address("dgemm")
            context.sgemv, context.dgemv = blas_address("sgemv"), blas_address("dgemv")
            context.get_blas_threads, context.set_blas_threads = blas_threading()
        context.run_step, context.steps = self._steps.run_address, self._steps.table_address
        return context

    def _run_host(self, number: int) -> None:
        """Evaluate a host op when the driver calls back; keep an exception for the end of the call."""
        frame: _Frame = self._running.frame
        t = self.built.driver.host[number]
        try:
            ins, outs = [self.view(frame, b) for b in t.inputs], [self.view(frame, b) for b in t.outputs]
            evaluate_host(t, ins, outs, frame.machine)
        except BaseException as e:  # an exception cannot propagate through C
            frame.stop(e)

    def view(self, frame: _Frame, b: Buffer) -> Array:
        """Return the memory of a buffer as an array."""
        shape, b = b.shape, b.resolve()
        if b.kind is BufferKind.PARAMETER:
            return frame.arguments[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.OUTPUT:
            return frame.results[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.CONSTANT:
            return self.program.constants[b.index].reshape(shape.dimensions)
        raw = frame.arena[b.index : b.index + shape.byte_size]
        return raw.view(shape.dtype).reshape(shape.dimensions)

    def library_step(self, t: LibraryThunk, arrays: Sequence[Array]) -> Callable[[], object]:
        """Return a function that makes one library call on its inputs, result and scratch memory."""
        return self._steps.call(self.built.driver.library.index(t), arrays)

    # ---- timing

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Return the seconds of each of `repeats` executions, measured in C; call the program once first to warm up."""
        frame = self._begin_call(self._checked(arrays))
        seconds = (ctypes.c_double * repeats)()
        try:
            self._runtime.hlogym_time_program(
                self._entry_address, frame.arena_address, _pointers(frame.arguments), _pointers(frame.results),
                self._constants, frame.context_address, repeats, seconds,
            )  # fmt: skip
            frame.raise_error()
        finally:
            self._end_call(frame)
        return list(seconds)

    def time_thunk(self, number: int, repeats: int = 5, inner: int = 1) -> list[float]:
        """Return the seconds of each of `repeats` executions of one thunk, on the data of the last call.

        A loop or conditional takes no time itself: only the thunks nested in it do.

        Raises:
            RuntimeError: the program has not been called yet.
        """
        if self._last is None:
            raise RuntimeError("the program must be called before its thunks can be timed")
        t = self.thunks[number]
        if t.blocks():
            return [0.0] * repeats
        if isinstance(t, KernelThunk):
            return self._time_kernel(self._last, t, repeats, inner)
        return self._time_other(self._last, t, repeats, inner)

    def _time_kernel(self, frame: _Frame, t: KernelThunk, repeats: int, inner: int) -> list[float]:
        buffers = [*t.inputs, *t.outputs]
        pointers = (ctypes.c_void_p * len(buffers))(*(address_of(self.view(frame, b)) for b in buffers))
        seconds = (ctypes.c_double * repeats)()
        call = Call()
        self._runtime.hlogym_time_kernel(
            self._addresses[t.spec.symbol], pointers, repeats, inner, seconds, ctypes.addressof(call)
        )
        call.raise_exception()
        return list(seconds)

    def _time_other(self, frame: _Frame, t: Thunk, repeats: int, inner: int) -> list[float]:
        step = t.accept(_PythonStep(self, frame))
        out = []
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(inner):
                step()
            out.append((time.perf_counter() - start) / inner)
        return out

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Call the program and return the median time of each thunk with its bytes and flops."""
        self(*arrays)
        return profile_thunks(self, repeats)


class _PythonStep(ThunkVisitor[Callable[[], object]]):
    """A visitor that returns a function which runs one thunk on the memory of a frame; control flow does nothing."""

    def __init__(self, executable: CpuExecutable, frame: _Frame) -> None:
        self._executable, self._frame = executable, frame

    def _view(self, b: Buffer) -> Array:
        return self._executable.view(self._frame, b)

    def kernel(self, t: KernelThunk) -> Callable[[], object]:
        raise TypeError(f"kernel %{t.name} is timed in C")

    def copy(self, t: CopyThunk) -> Callable[[], object]:
        source, target = self._view(t.source), self._view(t.target)
        return lambda: np.copyto(target.reshape(-1), source.reshape(-1))

    def gemm(self, t: GemmThunk) -> Callable[[], object]:
        lhs, rhs = t.matrices(self._view(t.lhs), self._view(t.rhs))
        out = self._view(t.out).reshape(t.batch, t.m, t.n)
        return lambda: np.matmul(lhs, rhs, out=out)

    def library(self, t: LibraryThunk) -> Callable[[], object]:
        buffers = [*t.inputs, t.out] if t.scratch is None else [*t.inputs, t.out, t.scratch]
        return self._executable.library_step(t, [self._view(b) for b in buffers])

    def host(self, t: HostThunk) -> Callable[[], object]:
        inputs, outputs = [self._view(b) for b in t.inputs], [self._view(b) for b in t.outputs]
        return lambda: evaluate_host(t, inputs, outputs, self._frame.machine)

    def loop(self, t: WhileThunk) -> Callable[[], object]:
        del t
        return lambda: None

    def conditional(self, t: ConditionalThunk) -> Callable[[], object]:
        del t
        return lambda: None


def _aligned(size: int) -> Array:
    """Return zero-filled bytes that start at a multiple of ALIGNMENT."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(1, size)]


def _call(method: Callable[[int], None] | None, number: int) -> None:
    if method is not None:
        method(number)


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(address_of, arrays))


def _data_member(a: Array) -> int:
    """Return the address of an array's data by reading the first member of NumPy's array object after its header."""
    return ctypes.c_void_p.from_address(id(a) + object.__basicsize__).value or 0


def _data_attribute(a: Array) -> int:
    return a.ctypes.data


_SAMPLE = np.zeros(3)
address_of = _data_member if _data_member(_SAMPLE) == _SAMPLE.ctypes.data else _data_attribute
"""Return the address of an array's data; reading `ctypes.data` would take as long as a small kernel."""
