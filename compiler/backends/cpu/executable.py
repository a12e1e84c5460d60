"""The executable of the cpu backend: compiled kernels, an arena, and one C function that runs the program."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.analysis.cost_model import CostModel
from compiler.backends.cpu import toolchain
from compiler.backends.cpu.array_call import ProgramTable, builtin_functions, leaf_table
from compiler.backends.cpu.blas import blas_address, blas_threading, lapack_threading
from compiler.backends.cpu.device import cpu_device
from compiler.backends.cpu.driver import Driver, make_driver
from compiler.backends.cpu.frames import Context, Frame, FramePool, TimingMemory, pointers
from compiler.backends.cpu.host_steps import HostSteps
from compiler.backends.cpu.lapack_routines import KIND as LAPACK
from compiler.backends.cpu.lapack_routines import provide_lapack
from compiler.backends.cpu.libraries import load_library
from compiler.backends.cpu.loop_functions import loop_functions
from compiler.backends.cpu.native_runtime import LARGE, RUNTIME
from compiler.backends.cpu.onednn.steps import LibrarySteps
from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.allocation import allocate
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.donation import may_donate
from compiler.runtime.executable import (
    CallOptions,
    ThunkSamples,
    ThunkTime,
    check_arguments,
    check_repeats,
    parameter_leaves,
    profile_thunks,
)
from compiler.runtime.executable_text import executable_html, executable_text
from compiler.runtime.explanation import Explanation
from compiler.runtime.live_arrays import find_peak
from compiler.runtime.memory import (
    ProgramMemory,
    check_program,
    copied_argument,
    new_buffers,
    new_results,
    program_memory,
)
from compiler.runtime.program_files import SavedProgram, save_program
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import (
    GemmThunk,
    Thunk,
    kernels_of,
    walk,
)
from compiler.support.memory import SMALL
from compiler.support.processor import processor
from compiler.support.weak_methods import weakly

Array = NDArray[Any]
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
SENTINEL = 0xA5
"""Byte that results hold before a timed run, which is unlikely to be a result."""


@dataclass(frozen=True)
class BuiltProgram:
    """A program with assigned memory and compiled C code.

    Attributes:
        program: thunks and buffers.
        arena_bytes: size of the memory for temporaries.
        driver: the steps of the program.
        runtime_path: shared object of the runtime that kernels and driver call.
        objects: shared object of each kernel, by symbol.
    """

    program: ThunkProgram
    arena_bytes: int
    driver: Driver
    runtime_path: Path
    objects: Mapping[str, Path]


class CpuExecutable:
    """A compiled program that is loaded into this process.

    Several threads may call it at once; each call has a frame of its own. An argument that the module's header donates
    to a result (`input_output_alias`, `buffer_donor`) is overwritten and returned as that result, if it is a writeable
    array that owns its memory and shares it with no other argument. Otherwise the call works on a copy of it.
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
        if any(k.kind == LAPACK for k in self.kernels):
            provide_lapack(self._runtime)
        libraries = {path: load_library(path) for path in set(built.objects.values())}
        self._libraries = tuple(libraries.values())  # the references keep them loaded
        self._addresses = {symbol: libraries[path].function(symbol) for symbol, path in built.objects.items()}
        self._entry = _ENTRY(("hlogym_run_program", self._runtime))
        self._shared_entry = _ENTRY(("hlogym_run_shared", self._runtime))
        self._entry_address = ctypes.cast(self._entry, ctypes.c_void_p).value
        self._shapes = parameter_leaves(module)
        self._expected = [(s.dtype, s.dimensions) for s in self._shapes]
        self._returned = [(b.shape.dtype, b.shape.dimensions) for b in self.program.results]
        self._donated = {
            b.index: n for n, b in enumerate(self.program.parameters) if b.kind is BufferKind.OUTPUT
        }  # the argument whose memory a result takes over, by the result's number
        self._new = new_buffers(self.program)
        self._result_bytes = sum(b.size for b in self._new)
        self._constants = pointers(self.program.constants)
        self._steps, self._step_parts = built.driver.table()
        symbols = built.driver.kernels
        self._table = (ctypes.c_void_p * max(1, len(symbols)))(*(self._addresses[s] for s in symbols))
        self._library: dict[int | None, LibrarySteps] = {}  # by number of threads at most
        self._steps_of_library(None)
        self._host = HostSteps(built.driver.host)
        self._call_options = CallOptions()
        self.make_costs: Callable[[CompilationPlan | None], CostModel] | None = None
        self._make_table()

    def _make_table(self) -> None:
        """Set up the pool of frames and, where it works, the built-in functions that call the program."""
        held = RUNTIME.held
        parameters, kept = leaf_table(self._expected, [-1] * len(self._expected))
        self._result_leaves, also_kept = leaf_table(
            self._returned, [self._donated.get(n, -1) for n in range(len(self._returned))]
        )
        constants = ctypes.addressof(self._constants)
        counts = len(self._expected), len(self._returned)
        leaves = ctypes.addressof(parameters), ctypes.addressof(self._result_leaves)
        table = ProgramTable(self._entry_address, constants, *leaves, *counts, None)
        self._kept = (parameters, kept, also_kept, table)
        self._frames = FramePool(held, table, weakly(self._new_frame))
        weakref.finalize(self, self._frames.clear).atexit = False
        # Large results need a check of the memory that is left.
        self._call_arrays: Callable[[tuple[Any, ...]], list[Array] | None] = _decline
        self._call_addresses: Callable[..., bool | None] = _decline
        if RUNTIME.calls_arrays:
            on_arrays, self._call_addresses = builtin_functions(held, table)
            if self._result_bytes <= SMALL:
                self._call_arrays = on_arrays

    @staticmethod
    def build(module: HloModule, program: ThunkProgram, plan: CompilationPlan | None = None) -> CpuExecutable:
        """Assign memory to the buffers of a program, compile its C code, and return the executable."""
        arena_bytes = allocate(program)
        functions = loop_functions(program)
        driver = make_driver(program.thunks, functions)
        tools = toolchain.toolchain()
        kernels = [*kernels_of(walk(program.thunks)), *(f.spec for f in functions.values())]
        objects, (runtime_path,) = toolchain.program_objects(kernels, [tools.runtime_source()], tools)
        built = BuiltProgram(program, arena_bytes, driver, runtime_path, objects)
        return CpuExecutable(module, built, plan)

    @property
    def kernels(self) -> list[KernelSpec]:
        """Return the distinct generated kernels in program order."""
        return kernels_of(self.thunks)

    @property
    def memory(self) -> ProgramMemory:
        """Return the memory that a call holds."""
        return program_memory(self.program, self.arena_bytes)

    @property
    def call_options(self) -> CallOptions:
        """How calls run; setting it affects the calls that start afterwards."""
        return self._call_options

    @call_options.setter
    def call_options(self, options: CallOptions) -> None:
        self._call_options = options
        self._host.threads = options.num_threads
        if not any(True for _ in self._frames):
            self._library.clear()  # no call can be running them
        self._steps_of_library(options.num_threads)
        for frame in self._frames:
            self._configure(frame.context)

    @property
    def entry_and_constants(self) -> tuple[int, int]:
        """Return the addresses of the C function that runs the program and of its table of constants."""
        return self._entry_address or 0, ctypes.addressof(self._constants)

    def __repr__(self) -> str:
        return executable_text(self)

    def _repr_html_(self) -> str:
        return executable_html(self)

    def explain(self) -> Explanation:
        """Return which decisions made each kernel, and why kernels that follow each other are separate."""
        costs = cpu_device() if self.make_costs is None else self.make_costs(self.plan)
        return Explanation(self.module, self.plan, self.thunks, costs, peak=find_peak(self.program.thunks))

    def save(self, path: str | Path) -> None:
        """Save the program to a folder; a machine with this kind of processor can load it without a compiler."""
        built = self.built
        names = {file: f"kernels-{n}.so" for n, file in enumerate(dict.fromkeys(built.objects.values()))}
        details = {
            "processor": processor(),
            "objects": {symbol: names[file] for symbol, file in built.objects.items()},
            "call_options": asdict(self.call_options),
        }
        names[built.runtime_path] = "runtime.so"
        program = SavedProgram(self.backend, self.module, self.program, self.arena_bytes, self.plan, details)
        save_program(path, program, {name: file for file, name in names.items()})

    # ---- running

    def __call__(self, *arrays: Any) -> list[Array]:
        """Run the program and return the leaves of its result; raise ArgumentError if the arguments do not match."""
        results = self._call_arrays(arrays)
        return self._call_converted(arrays) if results is None else results

    def _call_converted(self, arrays: tuple[Any, ...]) -> list[Array]:
        """Run the program on arguments that may need a conversion; only the given arrays themselves are donated."""
        if self._donated:
            return self._call_from_python(arrays)
        arguments = tuple(self._checked(arrays))
        results = self._call_arrays(arguments)
        return self._call_from_python(arguments) if results is None else results

    @property
    def donated(self) -> Mapping[int, int]:
        """The argument whose memory each result takes over, by the number of the result."""
        return self._donated

    def call_at(self, arguments: Sequence[int], results: Sequence[int]) -> None:
        """Run the program on memory of the caller, without checks or copies, and on its threads if they are shared.

        Args:
            arguments: the address of each argument, row-major and aligned, of the program's type and shape.
            results: the address of each result, which must not overlap an argument. A result that takes over an
                argument (`donated`) has the address of that argument, which must not overlap the others.
        """
        if self._call_addresses(*arguments, *results):
            return
        frame = self._frames.take()
        try:
            frame.fill(arguments, results)
            self._shared_entry(
                frame.arena_address, frame.argument_addresses, frame.result_addresses, self._constants,
                frame.context_address,
            )  # fmt: skip
            frame.raise_error()
        finally:
            self._frames.give(frame)

    def _call_from_python(self, arrays: Sequence[Any], donate: bool = True) -> list[Array]:
        """Run the program on arguments that may need a conversion."""
        frame = self._begin_call(arrays, donate)
        results = frame.results
        try:
            self._entry(
                frame.arena_address, pointers(frame.arguments), pointers(results), self._constants,
                frame.context_address,
            )  # fmt: skip
            frame.raise_error()
        finally:
            self._frames.give(frame)
        return results

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        """Return the arguments as `check_arguments` does, with a fast path for arrays that need no conversion."""
        if len(arrays) == len(self._expected):
            for a, (dtype, dimensions) in zip(arrays, self._expected, strict=True):
                if type(a) is not np.ndarray or a.dtype != dtype or a.shape != dimensions:
                    break
                if not (a.flags.c_contiguous and a.flags.aligned):
                    break
            else:
                return list(arrays)
        return check_arguments(arrays, self._shapes)

    def _begin_call(self, arrays: Sequence[Any], donate: bool = True) -> Frame:
        """Return a frame for one call with the arrays of its results, which take over the donated arguments."""
        arguments = self._checked(arrays)
        frame = self._frames.take()
        try:
            frame.arguments, frame.results = arguments, self._make_results(arrays, arguments, donate)
        except BaseException:
            self._frames.give(frame)
            raise
        return frame

    def _make_results(self, arrays: Sequence[Any], arguments: list[Array], donate: bool) -> list[Array]:
        if not self._donated and self._result_bytes < LARGE:
            return [np.empty(dimensions, dtype) for dtype, dimensions in self._returned]
        if RUNTIME.calls_arrays:
            large = [a for a in arguments if a.nbytes >= LARGE]
            RUNTIME.held.hlogym_read_beside(pointers(large), len(large))
        new = iter(new_results(self._new, self._new_result))
        results = []
        for n in range(len(self._returned)):
            source = self._donated.get(n)
            if source is None:
                results.append(next(new))
            elif donate and arguments[source] is arrays[source] and may_donate(arguments, source):
                results.append(arguments[source])
            else:
                results.append(copied_argument(arguments[source], source))
        return results

    def _new_result(self, buffer: Buffer) -> Array:
        if not RUNTIME.calls_arrays:
            return np.empty(buffer.shape.dimensions, buffer.shape.dtype)
        made: Array = RUNTIME.held.hlogym_new_array(ctypes.byref(self._result_leaves[buffer.index]))
        return made

    def _new_frame(self) -> Frame:
        """Return a new frame; raise MemoryLimitError if its arena does not fit into memory."""
        check_program(self.program, self.arena_bytes)
        counts = len(self._expected), len(self._returned), len(self.built.driver.operands)
        return Frame(self.arena_bytes, self.new_context(), *counts)

    def new_context(self) -> Context:
        """Return the tables that the driver uses."""
        context = Context(
            program=ctypes.addressof(self._steps),
            kernels=ctypes.addressof(self._table),
            host=self._host.address,
        )
        if any(isinstance(t, GemmThunk) for t in self.thunks):
            context.sgemm, context.dgemm = blas_address("sgemm"), blas_address("dgemm")
            context.sgemv, context.dgemv = blas_address("sgemv"), blas_address("dgemv")
        # In a program with both, BLAS is either the library that LAPACK uses, or has one thread anyway.
        if self.built.driver.calls_lapack:
            context.get_blas_threads, context.set_blas_threads = lapack_threading()
        elif self.built.driver.calls_blas:
            context.get_blas_threads, context.set_blas_threads = blas_threading()
        self._configure(context)
        return context

    def _configure(self, context: Context) -> None:
        options = self._call_options
        context.call.flush_denormals = int(options.flush_denormals)
        context.call.threads = options.num_threads or 0
        steps = self._steps_of_library(options.num_threads)
        context.run_library, context.library = steps.run_address, steps.table_address

    def _steps_of_library(self, threads: int | None) -> LibrarySteps:
        """Return the library calls for a number of threads: a library divides its work when a step is made."""
        if threads not in self._library:
            self._library[threads] = LibrarySteps(self.built.driver.library, self.program.constants, threads)
        return self._library[threads]

    # ---- timing

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Return the seconds of each of `repeats` executions, measured in C; call the program once first to warm up."""
        check_repeats(repeats)
        return self.timed_call(arrays, repeats)[0]

    def timing_memory(self, *others: CpuExecutable) -> TimingMemory:
        """Return memory in which this program and others with the same results can be timed."""
        return TimingMemory(max(e.arena_bytes for e in (self, *others)), self._returned)

    def timed_call(
        self, arrays: Sequence[Any], repeats: int, memory: TimingMemory | None = None
    ) -> tuple[list[float], list[Array]]:
        """Run the program several times; return the seconds of each execution and the results of the last one.

        The memory of the results is filled with SENTINEL before the first execution.

        Args:
            arrays: the arguments.
            repeats: number of executions.
            memory: where temporaries and results are, except for results that take over donated arguments; None: in
                memory of this program.
        """
        frame = self._begin_call(arrays, donate=False)
        own = frame.arena
        if memory is not None:
            frame.use_arena(memory.arena)
            frame.results = [r if n in self._donated else memory.results[n] for n, r in enumerate(frame.results)]
        results = frame.results
        for number, result in enumerate(results):
            if number not in self._donated:
                result.reshape(-1).view(np.uint8)[...] = SENTINEL
        try:
            return self._timed_runs(frame, repeats), results
        finally:
            frame.use_arena(own)
            self._frames.give(frame)

    def _timed_runs(self, frame: Frame, repeats: int) -> list[float]:
        seconds = (ctypes.c_double * repeats)()
        # Programs that update arguments in place get the same values in every run.
        for first in range(repeats if self._donated else 1):
            for result, source in self._donated.items():
                np.copyto(frame.results[result], frame.arguments[source])
            self._runtime.hlogym_time_program(
                self._entry_address, frame.arena_address, pointers(frame.arguments), pointers(frame.results),
                self._constants, frame.context_address, 1 if self._donated else repeats,
                ctypes.addressof(seconds) + first * ctypes.sizeof(ctypes.c_double),
            )  # fmt: skip
            frame.raise_error()
        return list(seconds)

    def time_thunks(self, arrays: Sequence[Any], repeats: int = 5) -> list[ThunkSamples]:
        """Run the program several times, and return how often and for how long each thunk ran in each execution.

        The driver reads the clock between steps, so a thunk finds the caches as the program leaves them. A loop or
        conditional counts its iterations, and takes the time of its own tests and jumps.
        """
        check_repeats(repeats)
        driver = self.built.driver
        counts, seconds = np.zeros((repeats, len(self.thunks)), np.int64), np.zeros((repeats, len(self.thunks)))
        clock = self._runtime.hlogym_clock_nanoseconds()
        frame = self._begin_call(arrays, donate=False)
        try:
            for run in range(repeats):
                steps = np.zeros((len(driver.steps), 2), np.int64)
                frame.context.times = steps.ctypes.data
                self._timed_runs(frame, 1)
                for (nanoseconds, executions), owner in zip(steps.tolist(), driver.owners, strict=True):
                    if owner >= 0:
                        counts[run, owner] = executions  # of a loop, its last step: the jump back
                        seconds[run, owner] += 1e-9 * max(0, nanoseconds - executions * clock)
        finally:
            frame.context.times = None
            self._frames.give(frame)
        each = seconds / np.maximum(counts, 1)
        return [ThunkSamples(float(n.mean()), s.tolist()) for n, s in zip(counts.T, each.T, strict=True)]

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Call the program and return the median time of each thunk with its bytes and flops."""
        self._call_from_python(arrays, donate=False)
        return profile_thunks(self.thunks, self.time_thunks(arrays, repeats))


def _decline(*arguments: Any) -> None:
    """Leave every call to Python, where the built-in functions cannot be used."""
