"""Executable: a compiled program that can be called, inspected, timed and saved."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.backends import cpu
from compiler.backends.blas import blas_address, blas_threading
from compiler.backends.libraries import load_library
from compiler.backends.native_runtime import RUNTIME, Call
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import ArgumentError, BackendError
from compiler.interpreter import evaluate
from compiler.interpreter.machine import Machine
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.runtime.buffers import ALIGNMENT, Buffer, BufferKind, assign_offsets
from compiler.runtime.coalesce import coalesce, timeline
from compiler.runtime.driver_c import Driver, print_driver
from compiler.runtime.memory import check_program, contiguous_argument, new_results
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import CopyThunk, GemmThunk, HostThunk, KernelThunk, Thunk, kernels_of, walk
from compiler.support.memory import SMALL

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan

Array = NDArray[Any]
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
_HOST = ctypes.CFUNCTYPE(None, ctypes.c_int)


@dataclass(frozen=True, slots=True)
class ThunkTime:
    """One row of a profile: seconds a run and a call, and what the machine did meanwhile."""

    name: str
    kind: str
    seconds: float
    executions: float
    bytes: int
    flops: int

    @property
    def total(self) -> float:
        """Seconds a call of the program."""
        return self.seconds * self.executions

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


class Executable(Protocol):
    """A compiled program.

    Attributes:
        module: the HLO after all passes, fusions in place.
        kernels: generated kernels, each once.
        thunks: steps, flattened, in program order.
        plan: every decision taken.
    """

    backend: str
    module: HloModule
    plan: CompilationPlan | None

    @property
    def kernels(self) -> list[KernelSpec]: ...
    @property
    def thunks(self) -> list[Thunk]: ...
    def __call__(self, *arrays: Any) -> list[Any]: ...
    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]: ...
    def time_thunk(self, number: int, repeats: int = 5, inner: int = 1) -> list[float]: ...
    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]: ...
    def save(self, path: str | Path) -> None: ...


def parameter_leaves(module: HloModule) -> list[Shape]:
    """Array shapes a call takes, in order."""
    return [s for p in module.entry.parameter_shapes for s in p.leaves() if s.is_array]


def check_signature(given: Sequence[tuple[Any, tuple[int, ...]]], shapes: Sequence[Shape]) -> None:
    """ArgumentError (a TypeError) saying what was expected and what was given, unless dtypes and shapes fit."""
    if len(given) != len(shapes):
        wanted = ", ".join(map(str, shapes))
        raise ArgumentError(f"the program takes {len(shapes)} argument(s) ({wanted}), {len(given)} given")
    for n, ((dtype, dimensions), s) in enumerate(zip(given, shapes, strict=True)):
        if dtype != s.dtype or tuple(dimensions) != s.dimensions:
            shown = f"{np.dtype(dtype).name}[{','.join(map(str, dimensions))}]"
            order = "" if np.dtype(dtype).isnative else " in the byte order of another machine"
            raise ArgumentError(f"argument {n}: expected {s} (numpy {s.dtype.name}), given {shown}{order}")


def check_arguments(arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Array]:
    """Arguments as contiguous numpy arrays; see `check_signature` for what is refused."""
    given = [_as_array(a, n) for n, a in enumerate(arrays)]
    check_signature([(a.dtype, a.shape) for a in given], shapes)
    return [contiguous_argument(a, n) for n, a in enumerate(given)]


def _as_array(value: Any, number: int) -> Array:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:  # what PyTorch's tensors and nested lists raise
        raise ArgumentError(f"argument {number}: a {type(value).__name__} that numpy cannot read: {e}") from e


class _Context(ctypes.Structure):
    """`struct context` of the program's C source."""

    call: Call
    _fields_ = [  # the form ctypes wants
        ("call", Call),
        ("kernels", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("sgemm", ctypes.c_void_p),
        ("dgemm", ctypes.c_void_p),
        ("sgemv", ctypes.c_void_p),
        ("dgemv", ctypes.c_void_p),
        ("get_blas_threads", ctypes.c_void_p),
        ("set_blas_threads", ctypes.c_void_p),
    ]


class InterpreterExecutable:
    """The definition itself, behind the same face."""

    backend = "interpreter"

    def __init__(self, module: HloModule, plan: CompilationPlan | None = None) -> None:
        self.module = module
        self.plan = plan
        self.kernels: list[KernelSpec] = []
        self.thunks: list[Thunk] = []

    def __call__(self, *arrays: Any) -> list[Array]:
        """Leaves of the entry's result, in order."""
        return evaluate(self.module, check_arguments(arrays, parameter_leaves(self.module)))

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Seconds of each of `repeats` calls."""
        out = []
        for _ in range(repeats):
            start = time.perf_counter()
            self(*arrays)
            out.append(time.perf_counter() - start)
        return out

    def time_thunk(self, number: int, repeats: int = 5, inner: int = 1) -> list[float]:
        """The interpreter has no thunks: always an IndexError."""
        raise IndexError(f"the interpreter has no thunk {number}")

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """The interpreter has no thunks: no rows."""
        del arrays, repeats
        return []

    def save(self, path: str | Path) -> None:
        """Refused: the interpreter builds nothing; save the module's text instead."""
        raise BackendError(f"backend 'interpreter' builds nothing to save at {path}; compile for 'cpu' or 'cuda'")


@dataclass(frozen=True)
class BuiltProgram:
    """A program whose memory is assigned and whose C code is built.

    Attributes:
        arena_bytes: memory for temporaries.
        runtime_path: shared object of the runtime that kernels and driver call.
        driver_path: shared object with the program's function. objects: shared object of each kernel, by symbol.
    """

    program: ThunkProgram
    arena_bytes: int
    driver: Driver
    runtime_path: Path
    driver_path: Path
    objects: Mapping[str, Path]


class _Frame:
    """The memory that one call of a program works in; later calls use it again.

    Attributes:
        arena: temporaries. context: what the program's C function is given.
        arguments, results: arrays of the call.
        error: what an op computed in Python raised.
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
        """Let the running call end early, and raise an error then."""
        self.error = error
        self.context.call.stopped = 1

    def raise_error(self) -> None:
        """Raise what ended the call early, if anything did."""
        if not self.context.call.stopped:
            return
        error, self.error = self.error, None
        self.context.call.raise_exception()
        if error is not None:
            raise error


class CpuExecutable:
    """A program in this process's memory: built kernels, an arena, and one C function that runs them.

    Several threads may call it at once; each call has an arena of its own.
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
        self._libraries = tuple(libraries.values())  # they stay loaded as long as this does
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
        # Not the method itself: a program nobody uses any more goes at once, with its libraries, and not by and by.
        host = weakref.WeakMethod(self._run_host)
        self._callback = _HOST(lambda number: _call(host(), number))
        self._frames: list[_Frame] = []
        self._last: _Frame | None = None
        self._running = threading.local()  # `frame`: that of the call which a thread is in

    @staticmethod
    def build(module: HloModule, program: ThunkProgram, plan: CompilationPlan | None = None) -> CpuExecutable:
        """Assign memory and build the C code of a planned program."""
        coalesce(program.thunks, program.results)
        arena_bytes = assign_offsets(timeline(program.thunks, program.results).intervals())
        driver = print_driver(program.thunks)
        chain = cpu.toolchain()
        objects = cpu.kernel_objects(kernels_of(walk(program.thunks)), chain)
        path = chain.shared_object(driver.source, "driver", cpu.DRIVER_FLAGS)
        built = BuiltProgram(program, arena_bytes, driver, chain.runtime(), path, objects)
        return CpuExecutable(module, built, plan)

    @property
    def kernels(self) -> list[KernelSpec]:
        """Generated kernels, each once, in program order."""
        return kernels_of(self.thunks)

    def save(self, path: str | Path) -> None:
        """Write everything needed to run this elsewhere, on the same kind of processor, without a compiler."""
        from compiler.runtime.saving import save

        save(self, path)

    # ---- running

    def __call__(self, *arrays: Any) -> list[Array]:
        """Leaves of the entry's result, in order; ArgumentError when the arguments do not fit."""
        frame = self._start(self._checked(arrays))
        results = frame.results
        try:
            self._entry(
                frame.arena_address, _pointers(frame.arguments), _pointers(results), self._constants,
                frame.context_address,
            )  # fmt: skip
            frame.raise_error()
        finally:
            self._release(frame)
        return results

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        """Arguments as `check_arguments` gives them; quick for arrays that are as they should be."""
        if len(arrays) == len(self._expected):
            for a, (dtype, dimensions) in zip(arrays, self._expected, strict=True):
                if type(a) is not np.ndarray or a.dtype != dtype or a.shape != dimensions or not a.flags.c_contiguous:
                    break
            else:
                return list(arrays)
        return check_arguments(arrays, self._shapes)

    def _start(self, arguments: list[Array]) -> _Frame:
        """A frame for one call, with fresh results."""
        frame = self._take_frame()
        frame.arguments = arguments
        if self._result_bytes > SMALL:
            frame.results = new_results(self.program.results)
        else:
            frame.results = [np.empty(dimensions, dtype) for dtype, dimensions in self._returned]
        if self.built.driver.host:
            self._running.frame, frame.machine = frame, Machine()
        return frame

    def _release(self, frame: _Frame) -> None:
        self._last = frame
        self._frames.append(frame)

    def _take_frame(self) -> _Frame:
        try:
            return self._frames.pop()
        except IndexError:  # all are in use by other threads, or this is the first call
            check_program(self.program, self.arena_bytes)
            return _Frame(self.arena_bytes, self._make_context())

    def _make_context(self) -> _Context:
        """The tables the program's C function works with."""
        context = _Context(
            kernels=ctypes.addressof(self._table), host=ctypes.cast(self._callback, ctypes.c_void_p).value
        )
        if any(isinstance(t, GemmThunk) for t in self.thunks):
            context.sgemm, context.dgemm = blas_address("sgemm"), blas_address("dgemm")
            context.sgemv, context.dgemv = blas_address("sgemv"), blas_address("dgemv")
            context.get_blas_threads, context.set_blas_threads = blas_threading()
        return context

    def _run_host(self, number: int) -> None:
        """Called from the program for an op the interpreter computes; an exception is kept and raised by the call."""
        frame: _Frame = self._running.frame
        t = self.built.driver.host[number]
        try:
            ins, outs = [self._view(frame, b) for b in t.inputs], [self._view(frame, b) for b in t.outputs]
            evaluate_host(t, ins, outs, frame.machine)
        except BaseException as e:  # nothing may propagate through C frames
            frame.stop(e)

    def _view(self, frame: _Frame, b: Buffer) -> Array:
        """The memory of a buffer as an array."""
        shape, b = b.shape, b.resolve()
        if b.kind is BufferKind.PARAMETER:
            return frame.arguments[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.OUTPUT:
            return frame.results[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.CONSTANT:
            return self.program.constants[b.index].reshape(shape.dimensions)
        raw = frame.arena[b.index : b.index + shape.byte_size]
        return raw.view(shape.dtype).reshape(shape.dimensions)

    # ---- timing

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Seconds of each of `repeats` runs of the whole program, the clock read in C; call once before to warm up."""
        frame = self._start(self._checked(arrays))
        seconds = (ctypes.c_double * repeats)()
        try:
            self._runtime.hlogym_time_program(
                self._entry_address, frame.arena_address, _pointers(frame.arguments), _pointers(frame.results),
                self._constants, frame.context_address, repeats, seconds,
            )  # fmt: skip
            frame.raise_error()
        finally:
            self._release(frame)
        return list(seconds)

    def time_thunk(self, number: int, repeats: int = 5, inner: int = 1) -> list[float]:
        """Seconds of each of `repeats` runs of one thunk alone, on the data of the last call (call once before).

        Loops and branches have no time of their own: 0.
        """
        if self._last is None:
            raise RuntimeError("call the program once before a thunk of it is timed")
        t = self.thunks[number]
        if isinstance(t, KernelThunk):
            return self._time_kernel(self._last, t, repeats, inner)
        return self._time_other(self._last, t, repeats, inner)

    def _time_kernel(self, frame: _Frame, t: KernelThunk, repeats: int, inner: int) -> list[float]:
        buffers = [*t.inputs, *t.outputs]
        pointers = (ctypes.c_void_p * len(buffers))(*(address_of(self._view(frame, b)) for b in buffers))
        seconds = (ctypes.c_double * repeats)()
        call = Call()
        self._runtime.hlogym_time_kernel(
            self._addresses[t.spec.symbol], pointers, repeats, inner, seconds, ctypes.addressof(call)
        )
        call.raise_exception()
        return list(seconds)

    def _time_other(self, frame: _Frame, t: Thunk, repeats: int, inner: int) -> list[float]:
        step = self._python_step(frame, t)
        out = []
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(inner):
                step()
            out.append((time.perf_counter() - start) / inner)
        return out

    def _python_step(self, frame: _Frame, t: Thunk) -> Any:
        if isinstance(t, CopyThunk):
            source, target = self._view(frame, t.source), self._view(frame, t.target)
            return lambda: np.copyto(target.reshape(-1), source.reshape(-1))
        if isinstance(t, HostThunk):
            ins, outs = [self._view(frame, b) for b in t.inputs], [self._view(frame, b) for b in t.outputs]
            return lambda: evaluate_host(t, ins, outs, frame.machine)
        if isinstance(t, GemmThunk):
            lhs = self._view(frame, t.lhs).reshape((t.batch, t.k, t.m) if t.lhs_transposed else (t.batch, t.m, t.k))
            rhs = self._view(frame, t.rhs).reshape((t.batch, t.n, t.k) if t.rhs_transposed else (t.batch, t.k, t.n))
            out = self._view(frame, t.out).reshape(t.batch, t.m, t.n)
            a = lhs.swapaxes(1, 2) if t.lhs_transposed else lhs
            b = rhs.swapaxes(1, 2) if t.rhs_transposed else rhs
            return lambda: np.matmul(a, b, out=out)
        return lambda: None

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Median time of each thunk, with bytes and flops."""
        self(*arrays)
        return profile_thunks(self, repeats)


def profile_thunks(executable: Executable, repeats: int) -> list[ThunkTime]:
    """Median time of each thunk on the data of the last call."""
    rows = []
    for n, t in enumerate(executable.thunks):
        seconds = float(np.median(executable.time_thunk(n, repeats)))
        rows.append(ThunkTime(t.name, t.kind, seconds, t.executions, *traffic(t)))
    return rows


def traffic(t: Thunk) -> tuple[int, int]:
    """Bytes a thunk must move at least, and its flops."""
    if isinstance(t, KernelThunk):
        return t.spec.bytes, t.spec.flops
    moved = sum(b.size for b in (*t.reads(), *t.writes()))
    return moved, 2 * t.batch * t.m * t.n * t.k if isinstance(t, GemmThunk) else 0


def evaluate_host(t: HostThunk, inputs: list[Array], outputs: list[Array], machine: Machine) -> None:
    """Run an op in the interpreter, on copies: it may keep or change what it is given.

    One machine serves a call of the program: random numbers go on from op to op, and what was sent waits in it.
    """
    values: list[Any] = []
    at = 0
    for o in t.instruction.operands:
        count = sum(1 for s in o.shape.leaves() if s.is_array)
        part = [np.array(a) for a in inputs[at : at + count]]
        values.append(_tree(o.shape, iter(part)))
        at += count
    with np.errstate(all="ignore"):
        result = machine.evaluate(t.instruction, values)
    for target, value in zip(outputs, _flat(result), strict=True):
        np.copyto(target, value)


def _tree(shape: Shape, arrays: Any) -> Any:
    if shape.is_tuple:
        return tuple(_tree(s, arrays) for s in shape.tuple_shapes)
    return next(arrays) if shape.is_array else ()


def _flat(value: Any) -> list[Array]:
    if isinstance(value, tuple):
        return [leaf for v in value for leaf in _flat(v)]
    return [np.asarray(value)]


def _aligned(size: int) -> Array:
    """Zeroed bytes that start at a multiple of ALIGNMENT."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(1, size)]


def _call(method: Callable[[int], None] | None, number: int) -> None:
    if method is not None:
        method(number)


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(address_of, arrays))


def _data_member(a: Array) -> int:
    """Address of an array's data, from where NumPy's array objects keep it: right behind what all objects have."""
    return ctypes.c_void_p.from_address(id(a) + object.__basicsize__).value or 0


def _data_attribute(a: Array) -> int:
    return a.ctypes.data


_SAMPLE = np.zeros(3)
address_of = _data_member if _data_member(_SAMPLE) == _SAMPLE.ctypes.data else _data_attribute
"""Address of an array's data. Asking NumPy takes as long as running a small kernel does."""
