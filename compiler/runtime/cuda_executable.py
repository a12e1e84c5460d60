"""A program on the GPU: thunks launched through CuPy, captured into a CUDA graph where nothing forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.backends import cuda
from compiler.codegen.kernel_spec import KernelSpec
from compiler.interpreter.machine import Machine
from compiler.ir.module import HloModule
from compiler.runtime.buffers import Buffer, BufferKind, assign_offsets
from compiler.runtime.coalesce import coalesce, timeline
from compiler.runtime.executable import (
    ThunkTime,
    check_arguments,
    check_signature,
    evaluate_host,
    parameter_leaves,
    profile_thunks,
)
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    Thunk,
    WhileThunk,
    kernels_of,
    walk,
)

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan

GRAPH_NODES = 20_000
"""A program of more launches than this is not captured as one graph."""


class CudaExecutable:
    """A program for the GPU.

    Kernels, module and plan can be inspected on a machine without one; calling it there is a BackendError.
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
        """Assign memory; kernels are built on the first call."""
        coalesce(program.thunks, program.results)
        arena_bytes = assign_offsets(timeline(program.thunks, program.results).intervals())
        return CudaExecutable(module, program, arena_bytes, plan)

    def save(self, path: str | Path) -> None:
        """Write everything needed to run this elsewhere; kernels travel as source."""
        from compiler.runtime.saving import save

        save(self, Path(path))

    @property
    def kernels(self) -> list[KernelSpec]:
        """Generated kernels, each once, in program order."""
        return kernels_of(self.thunks)

    def __call__(self, *arrays: Any) -> list[Any]:
        """Leaves of the entry's result as CuPy arrays; CuPy, DLPack or numpy arrays are taken."""
        device = self._on_device()
        return device.run(self._arguments(arrays))

    def _on_device(self) -> _Device:
        if self._device is None:
            self._device = _Device(self.program, self.arena_bytes, self.kernels)
        return self._device

    def _arguments(self, arrays: Sequence[Any]) -> list[Any]:
        xp = cuda.cupy()
        if all(isinstance(a, np.ndarray | np.generic | int | float) for a in arrays):
            return [xp.asarray(a) for a in check_arguments(arrays, self._shapes)]
        given = [a if isinstance(a, xp.ndarray) else _to_device(xp, a) for a in arrays]
        check_signature([(a.dtype, a.shape) for a in given], self._shapes)
        return [xp.ascontiguousarray(a) for a in given]

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Seconds of each of `repeats` runs of the whole program, by CUDA events; call once before to warm up."""
        xp = cuda.cupy()
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

    def time_thunk(self, number: int, repeats: int = 5, inner: int = 1) -> list[float]:
        """Seconds of each of `repeats` runs of one thunk alone, on the data of the last call (call once before)."""
        xp = cuda.cupy()
        device, thunk = self._on_device(), self.thunks[number]
        if isinstance(thunk, WhileThunk | ConditionalThunk):
            return [0.0] * repeats
        out = []
        for _ in range(repeats):
            start, stop = xp.cuda.Event(), xp.cuda.Event()
            start.record()
            for _ in range(inner):
                device.step(thunk)
            stop.record()
            stop.synchronize()
            out.append(xp.cuda.get_elapsed_time(start, stop) / 1e3 / inner)
        return out

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Median time of each thunk, with bytes and flops."""
        self(*arrays)
        return profile_thunks(self, repeats)


class _Device:
    """The part of an executable that lives on the GPU."""

    def __init__(self, program: ThunkProgram, arena_bytes: int, kernels: list[KernelSpec]) -> None:
        self.xp = cuda.cupy()
        self.program = program
        self.functions = cuda.functions(kernels)
        self.arena = self.xp.zeros(max(1, arena_bytes), self.xp.uint8)
        self.constants = [self.xp.asarray(c) for c in program.constants]
        self.results = [self.xp.empty(b.shape.dimensions, b.shape.dtype) for b in program.results]
        self.parameters: list[Any] = []
        self.machine = Machine()
        self.graphs: dict[tuple[int, ...], Any] = {}
        self.capturable = _launches(program.thunks) is not None

    def run(self, arguments: list[Any]) -> list[Any]:
        """One call; results are fresh arrays."""
        self.parameters, self.machine = arguments, Machine()
        if not self.capturable:
            self.sequence(self.program.thunks)
        else:
            self._graph().launch(self.xp.cuda.get_current_stream())
        return [r.copy() for r in self.results]

    def _graph(self) -> Any:
        """The program captured for these argument addresses; a few are kept."""
        key = tuple(int(a.data.ptr) for a in self.parameters)
        found = self.graphs.get(key)
        if found is None:
            stream = self.xp.cuda.Stream(non_blocking=True)
            with stream:
                self.sequence(self.program.thunks)  # libraries set themselves up outside of a capture
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
            self.step(t)

    def step(self, t: Thunk) -> None:
        """Launch one thunk."""
        if isinstance(t, KernelThunk):
            arguments = tuple(self.view(b) for b in (*t.inputs, *t.outputs))
            self.functions[t.spec.symbol]((t.spec.grid,), (t.spec.block,), arguments)
        elif isinstance(t, CopyThunk):
            target, source = self.view(t.target), self.view(t.source)
            self.xp.copyto(target.reshape(-1), source.reshape(-1))
        elif isinstance(t, GemmThunk):
            self._gemm(t)
        elif isinstance(t, HostThunk):
            ins = [self.xp.asnumpy(self.view(b)) for b in t.inputs]
            outs = [np.empty(b.shape.dimensions, b.shape.dtype) for b in t.outputs]
            evaluate_host(t, ins, outs, self.machine)
            for b, value in zip(t.outputs, outs, strict=True):
                self.view(b).set(value)
        elif isinstance(t, WhileThunk):
            self._while(t)
        elif isinstance(t, ConditionalThunk):
            chosen = int(self.view(t.selector).get())
            pick = 1 - chosen if t.selector.shape.dtype == np.bool_ else chosen
            self.sequence(t.branches[pick if 0 <= pick < len(t.branches) else -1])

    def _gemm(self, t: GemmThunk) -> None:
        lhs = self.view(t.lhs).reshape((t.batch, t.k, t.m) if t.lhs_transposed else (t.batch, t.m, t.k))
        rhs = self.view(t.rhs).reshape((t.batch, t.n, t.k) if t.rhs_transposed else (t.batch, t.k, t.n))
        a = lhs.swapaxes(1, 2) if t.lhs_transposed else lhs
        b = rhs.swapaxes(1, 2) if t.rhs_transposed else rhs
        self.xp.matmul(a, b, out=self.view(t.out).reshape(t.batch, t.m, t.n))

    def _while(self, t: WhileThunk) -> None:
        if t.trip_count is not None:
            for _ in range(t.trip_count):
                self.sequence(t.body)
            return
        while True:
            self.sequence(t.condition)
            if not bool(self.view(t.predicate).get()):
                return
            self.sequence(t.body)

    def view(self, b: Buffer) -> Any:
        """The memory of a buffer as a CuPy array."""
        shape, b = b.shape, b.resolve()
        if b.kind is BufferKind.PARAMETER:
            return self.parameters[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.OUTPUT:
            return self.results[b.index].reshape(shape.dimensions)
        if b.kind is BufferKind.CONSTANT:
            return self.constants[b.index].reshape(shape.dimensions)
        return self.arena[b.index : b.index + shape.byte_size].view(shape.dtype).reshape(shape.dimensions)


def _launches(thunks: list[Thunk]) -> int | None:
    """Launches of one run when it can be captured as a graph: nothing may wait for a value on the host."""
    total = 0
    for t in thunks:
        if isinstance(t, HostThunk | ConditionalThunk):
            return None
        if isinstance(t, WhileThunk):
            inner = _launches(t.body)
            if inner is None or t.trip_count is None:
                return None
            total += inner * t.trip_count
        else:
            total += 1
        if total > GRAPH_NODES:
            return None
    return total


def _to_device(xp: Any, array: Any) -> Any:
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return xp.from_dlpack(array)
    return xp.asarray(array)
