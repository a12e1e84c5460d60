"""The executable of the cuda backend: thunks launched through CuPy, captured as a CUDA graph where possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compiler.analysis.cost_model import device_model
from compiler.backends.cuda import nvrtc
from compiler.codegen.build_target import CUDA_TARGET
from compiler.codegen.kernel_spec import KernelSpec
from compiler.interpreter.machine import Machine
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.allocation import allocate
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.executable import (
    ThunkSamples,
    ThunkTime,
    check_arguments,
    check_signature,
    parameter_leaves,
    profile_thunks,
)
from compiler.runtime.explanation import Explanation
from compiler.runtime.host_ops import evaluate_host
from compiler.runtime.memory import ProgramMemory, program_memory
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

GRAPH_NODES = 20_000
"""Maximum number of launches in a program that is captured as a CUDA graph."""


class CudaExecutable:
    """A program compiled for a GPU.

    Without a GPU the kernels, module and plan can be inspected, but a call raises BackendError.
    """

    backend = "cuda"

    def __init__(
        self, module: HloModule, program: ThunkProgram, arena_bytes: int, plan: CompilationPlan | None = None
    ) -> None:
        self.module, self.program, self.plan = module, program, plan
        self.arena_bytes = arena_bytes
        self.thunks: list[Thunk] = list(walk(program.thunks))
        self._shapes = parameter_leaves(module)
        self._device: _Device | None = None

    @staticmethod
    def build(module: HloModule, program: ThunkProgram, plan: CompilationPlan | None = None) -> CudaExecutable:
        """Assign memory to the buffers of a program and return the executable; the first call compiles the kernels."""
        return CudaExecutable(module, program, allocate(program), plan)

    def explain(self) -> Explanation:
        """Return which decisions made each kernel, and why kernels that follow each other are separate."""
        return Explanation(self.module, self.plan, self.thunks, device_model("gpu"), CUDA_TARGET)

    def save(self, path: str | Path) -> None:
        """Save the program to a folder with its kernels as source; any machine with a GPU can load it."""
        save_program(path, SavedProgram(self.backend, self.module, self.program, self.arena_bytes, self.plan))

    @property
    def memory(self) -> ProgramMemory:
        """Return the memory of the GPU that a call holds."""
        return program_memory(self.program, self.arena_bytes)

    @property
    def kernels(self) -> list[KernelSpec]:
        """Return the distinct generated kernels in program order."""
        return kernels_of(self.thunks)

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run the program on CuPy, DLPack or numpy arrays and return the leaves of its result as CuPy arrays."""
        device = self._on_device()
        return device.run(self._arguments(arrays))

    def _on_device(self) -> _Device:
        if self._device is None:
            self._device = _Device(self.program, self.arena_bytes, self.kernels)
        return self._device

    def _arguments(self, arrays: Sequence[Any]) -> list[Any]:
        xp = nvrtc.cupy()
        if all(isinstance(a, np.ndarray | np.generic | int | float) for a in arrays):
            return [xp.asarray(a) for a in check_arguments(arrays, self._shapes)]
        given = [a if isinstance(a, xp.ndarray) else _to_device(xp, a) for a in arrays]
        check_signature([(a.dtype, a.shape) for a in given], self._shapes)
        return [xp.ascontiguousarray(a) for a in given]

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Return the seconds of each of `repeats` executions by CUDA events; call the program once first to warm up."""
        xp = nvrtc.cupy()
        device, arguments = self._on_device(), self._arguments(arrays)
        out = []
        for _ in range(repeats):
            start, stop = xp.cuda.Event(), xp.cuda.Event()
            start.record()
            device.run(arguments)
            stop.record()
            stop.synchronize()
            out.append(xp.cuda.get_elapsed_time(start, stop) / 1e3)
        return out

    def time_thunks(self, arrays: Sequence[Any], repeats: int = 5) -> list[ThunkSamples]:
        """Return the seconds of `repeats` executions of each thunk, one after the other, on the data of one call.

        A loop or conditional takes no time itself; the number of executions is the expected one.
        """
        self(*arrays)
        return [ThunkSamples(t.executions, self._time_thunk(t, repeats)) for t in self.thunks]

    def _time_thunk(self, thunk: Thunk, repeats: int) -> list[float]:
        xp, device = nvrtc.cupy(), self._on_device()
        if thunk.blocks():
            return [0.0] * repeats
        out = []
        for _ in range(repeats):
            start, stop = xp.cuda.Event(), xp.cuda.Event()
            start.record()
            thunk.accept(device)
            stop.record()
            stop.synchronize()
            out.append(xp.cuda.get_elapsed_time(start, stop) / 1e3)
        return out

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Call the program and return the median time of each thunk with its bytes and flops."""
        return profile_thunks(self.thunks, self.time_thunks(arrays, repeats))


class _Device(ThunkVisitor[None]):
    """The GPU state of an executable: compiled kernels, memory and captured graphs; as a visitor it launches thunks."""

    def __init__(self, program: ThunkProgram, arena_bytes: int, kernels: list[KernelSpec]) -> None:
        self.xp = nvrtc.cupy()
        self.program = program
        self.functions = nvrtc.functions(kernels)
        self.arena = self.xp.zeros(max(1, arena_bytes), self.xp.uint8)
        self.constants = [self.xp.asarray(c) for c in program.constants]
        self.results = [self.xp.empty(b.shape.dimensions, b.shape.dtype) for b in program.results]
        self.parameters: list[Any] = []
        self.machine = Machine()
        self.graphs: dict[tuple[int, ...], Any] = {}
        self.capturable = _LaunchCount().sequence(program.thunks) is not None

    def run(self, arguments: list[Any]) -> list[Any]:
        """Run the program and return its results in new arrays."""
        self.parameters, self.machine = arguments, Machine()
        if not self.capturable:
            self.sequence(self.program.thunks)
        else:
            self._graph().launch(self.xp.cuda.get_current_stream())
        return [r.copy() for r in self.results]

    def _graph(self) -> Any:
        """Return the graph of the program for the current argument addresses; the last few graphs are kept."""
        key = tuple(int(a.data.ptr) for a in self.parameters)
        found = self.graphs.get(key)
        if found is None:
            stream = self.xp.cuda.Stream(non_blocking=True)
            with stream:
                self.sequence(self.program.thunks)  # libraries must be initialized outside of a capture
                stream.synchronize()
                stream.begin_capture()
                self.sequence(self.program.thunks)
                found = stream.end_capture()
            if len(self.graphs) >= 4:
                self.graphs.pop(next(iter(self.graphs)))
            self.graphs[key] = found
        return found

    def sequence(self, thunks: list[Thunk]) -> None:
        for t in thunks:
            t.accept(self)

    def kernel(self, t: KernelThunk) -> None:
        arguments = tuple(self.view(b) for b in (*t.inputs, *t.outputs))
        self.functions[t.spec.symbol]((t.spec.grid,), (t.spec.block,), arguments)

    def copy(self, t: CopyThunk) -> None:
        target, source = self.view(t.target), self.view(t.source)
        self.xp.copyto(target.reshape(-1), source.reshape(-1))

    def gemm(self, t: GemmThunk) -> None:
        lhs, rhs = t.matrices(self.view(t.lhs), self.view(t.rhs))
        self.xp.matmul(lhs, rhs, out=self.view(t.out).reshape(t.batch, t.m, t.n))

    def library(self, t: LibraryThunk) -> None:
        raise TypeError(f"the cuda backend has no library for %{t.name}")

    def host(self, t: HostThunk) -> None:
        inputs = [self.xp.asnumpy(self.view(b)) for b in t.inputs]
        outputs = [np.empty(b.shape.dimensions, b.shape.dtype) for b in t.outputs]
        evaluate_host(t, inputs, outputs, self.machine)
        for b, value in zip(t.outputs, outputs, strict=True):
            self.view(b).set(value)

    def loop(self, t: WhileThunk) -> None:
        if t.trip_count is not None:
            for _ in range(t.trip_count):
                self.sequence(t.body)
            return
        while True:
            self.sequence(t.condition)
            if not bool(self.view(t.predicate).get()):
                return
            self.sequence(t.body)

    def conditional(self, t: ConditionalThunk) -> None:
        value = int(self.view(t.selector).get())
        branch = 1 - value if t.selector.shape.dtype == np.bool_ else value
        self.sequence(t.branches[branch if 0 <= branch < len(t.branches) else -1])

    def view(self, b: Buffer) -> Any:
        """Return the memory of a buffer as a CuPy array."""
        shape, b = b.shape, b.resolve()
        if b.kind is BufferKind.PARAMETER:
            return self.parameters[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.OUTPUT:
            return self.results[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.CONSTANT:
            return self.constants[b.index].reshape(shape.dimensions)
        return self.arena[b.index : b.index + shape.byte_size].view(shape.dtype).reshape(shape.dimensions)


class _LaunchCount(ThunkVisitor[int | None]):
    """A visitor that counts the launches of a program, or returns None if no graph can capture it.

    A graph cannot capture a program in which the host reads a value, or one of more than GRAPH_NODES launches.
    """

    def sequence(self, thunks: list[Thunk]) -> int | None:
        total = 0
        for t in thunks:
            launches = t.accept(self)
            if launches is None or total + launches > GRAPH_NODES:
                return None
            total += launches
        return total

    def kernel(self, t: KernelThunk) -> int | None:
        del t
        return 1

    def copy(self, t: CopyThunk) -> int | None:
        del t
        return 1

    def gemm(self, t: GemmThunk) -> int | None:
        del t
        return 1

    def library(self, t: LibraryThunk) -> int | None:
        del t
        return None

    def host(self, t: HostThunk) -> int | None:
        del t
        return None

    def loop(self, t: WhileThunk) -> int | None:
        inner = self.sequence(t.body)
        return None if inner is None or t.trip_count is None else inner * t.trip_count

    def conditional(self, t: ConditionalThunk) -> int | None:
        del t
        return None


def _to_device(xp: Any, array: Any) -> Any:
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return xp.from_dlpack(array)
    return xp.asarray(array)
