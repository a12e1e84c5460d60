"""Planning: how the thunks of a program become stretches of launches and what the host does between them."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.backends.cuda.blas import Blas, product_of
from compiler.backends.cuda.control import BranchNode, CallNode, CountedNode, LoopNode, Node, PinnedValue, StretchNode
from compiler.backends.cuda.library_sorts import ARGSORT
from compiler.backends.cuda.steps import (
    AddressTable,
    CopyStep,
    KernelStep,
    ProductStep,
    ReadStep,
    RepeatStep,
    Step,
)
from compiler.backends.cuda.stretches import MOST_LAUNCHES, Stretch
from compiler.errors import BackendError
from compiler.interpreter.machine import Machine
from compiler.runtime.buffers import Buffer
from compiler.runtime.host_ops import evaluate_host
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
)

__all__ = ["Planner"]

Part = Step | Node


class Planner(ThunkVisitor[list[Any]]):
    """Turns thunks into steps and nodes.

    Args:
        xp: CuPy.
        table: slots of all buffers, with the addresses of those that do not change.
        functions: handles of the kernels, by symbol.
        blas: the handle of cuBLAS, if the program has products.
        workspace: address and size of cuBLAS's memory.
        recent: see `Stretch`.
    """

    def __init__(
        self,
        xp: Any,
        table: AddressTable,
        functions: Mapping[str, int],
        blas: Blas | None,
        workspace: tuple[int, int],
        recent: deque[Step],
    ) -> None:
        self._xp, self._table, self._functions, self._recent = xp, table, functions, recent
        self._blas, self._workspace = blas, workspace
        self._machine, self._has_hosts = Machine(), False
        self._single: dict[Thunk, Any] = {}

    def nodes(self, thunks: Sequence[Thunk], last: Step | None = None) -> list[Node]:
        """Return the nodes of a sequence of thunks, which may end with one more step."""
        parts: list[Any] = [p for t in thunks for p in t.accept(self)]
        if last is not None:
            parts.append(last)
        out: list[Node] = []
        steps: list[Step] = []
        launches = 0
        for p in parts:
            is_step = hasattr(p, "launches")
            if steps and (not is_step or launches + p.launches > MOST_LAUNCHES):
                out.append(self._stretch(steps))
                steps, launches = [], 0
            if is_step:
                steps.append(p)
                launches += p.launches
            else:
                out.append(p)
        return [*out, self._stretch(steps)] if steps else out

    def runner(self, thunk: Thunk) -> tuple[Callable[[Any], None] | None, bool]:
        """Return what runs a thunk by itself (None for a loop or conditional), and whether it is one launch."""
        part = self._single.get(thunk)
        if part is None:
            return None, False
        if isinstance(part, CallNode):
            return part.function, False
        return lambda stream: self._launched(part, stream.ptr), True

    def _launched(self, step: Step, stream: int) -> None:
        self._recent.append(step)
        step.launch(stream)

    def _stretch(self, steps: list[Step]) -> Node:
        return StretchNode(Stretch(self._xp, self._table, steps, self._recent))

    def _alone(self, t: Thunk, part: Any) -> list[Any]:
        self._single[t] = part
        return [part]

    # ---- kinds of thunks

    def kernel(self, t: KernelThunk) -> list[Any]:
        slots = tuple(self._table.slot(b) for b in (*t.inputs, *t.outputs))
        parameters = (ctypes.c_void_p * max(1, len(slots)))(*map(self._table.slot_address, slots))
        spec = t.spec
        return self._alone(
            t,
            KernelStep(
                t.name, spec.symbol, self._xp.cuda.driver, self._functions[spec.symbol], spec.grid, spec.block,
                spec.shared_bytes, slots, parameters,
            ),
        )  # fmt: skip

    def copy(self, t: CopyThunk) -> list[Any]:
        size = t.target.shape.byte_size
        if not size:
            return []
        source, target = self._table.slot(t.source), self._table.slot(t.target)
        return self._alone(t, CopyStep(t.name, self._xp.cuda.runtime, self._table, source, target, size))

    def gemm(self, t: GemmThunk) -> list[Any]:
        if self._blas is None:
            raise BackendError(f"%{t.name} needs cuBLAS")
        first, second, out = (self._table.slot(b) for b in (t.rhs, t.lhs, t.out))
        product = product_of(t)
        return self._alone(
            t, ProductStep(t.name, self._blas, self._table, product, first, second, out, self._workspace)
        )

    def library(self, t: LibraryThunk) -> list[Any]:
        if t.operation.get("name") != ARGSORT:
            raise BackendError(f"the cuda backend has no library for %{t.name}")
        return self._alone(t, CallNode(lambda stream: self._sort_positions(t, stream)))

    def _sort_positions(self, t: LibraryThunk, stream: Any) -> None:
        """Write the positions of each row's keys in ascending order; the library allocates, so no graph captures it."""
        xp, (keys,) = self._xp, t.inputs
        address, shape = self._table.address(self._table.slot(keys)), keys.shape
        memory = xp.cuda.UnownedMemory(address, shape.byte_size, self, xp.cuda.runtime.getDevice())
        rows = xp.ndarray(shape.dimensions, shape.dtype, xp.cuda.MemoryPointer(memory, 0))
        order = xp.argsort(rows)  # along the last dimension, stable, of int64
        target, runtime = self._table.address(self._table.slot(t.out)), xp.cuda.runtime
        runtime.memcpyAsync(target, order.data.ptr, order.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)

    def host(self, t: HostThunk) -> list[Any]:
        self._has_hosts = True
        return self._alone(t, CallNode(lambda stream: self._evaluate(t, stream)))

    def loop(self, t: WhileThunk) -> list[Any]:
        if t.trip_count is not None:
            return self._counted(t, t.trip_count)
        predicate = PinnedValue(self._xp, t.predicate.shape.byte_size)
        read = self._read(t, t.predicate, predicate)
        first = self.nodes(t.condition, read)
        return [LoopNode(first, self.nodes([*t.body, *t.condition], read), predicate)]

    def _counted(self, t: WhileThunk, count: int) -> list[Any]:
        parts = [p for inner in t.body for p in inner.accept(self)]
        if all(hasattr(p, "launches") for p in parts):
            if not parts or not count:
                return []
            whole = MOST_LAUNCHES // sum(p.launches for p in parts)  # iterations in one graph
            if count <= whole:
                return [RepeatStep(t.name, tuple(parts), count)]
            if whole > 1:
                repeated = CountedNode([self._stretch([RepeatStep(t.name, tuple(parts), whole)])], count // whole)
                rest = [RepeatStep(t.name, tuple(parts), count % whole)] if count % whole else []
                return [repeated, *rest]
        return [CountedNode(self.nodes(t.body), count)]

    def conditional(self, t: ConditionalThunk) -> list[Any]:
        selector = PinnedValue(self._xp, t.selector.shape.byte_size)
        branches = [self.nodes(b) for b in t.branches]
        return [self._read(t, t.selector, selector), BranchNode(selector, t.selector.shape.dtype == np.bool_, branches)]

    def _read(self, t: Thunk, source: Buffer, target: PinnedValue) -> ReadStep:
        slot = self._table.slot(source)
        return ReadStep(t.name, self._xp.cuda.runtime, self._table, slot, target.address, source.shape.byte_size)

    # ---- ops of the interpreter

    def _evaluate(self, t: HostThunk, stream: Any) -> None:
        """Evaluate an op on the host: copy its inputs there, and its outputs back."""
        runtime = self._xp.cuda.runtime
        inputs = [np.empty(b.shape.dimensions, b.shape.dtype) for b in t.inputs]
        outputs = [np.empty(b.shape.dimensions, b.shape.dtype) for b in t.outputs]
        for b, host in zip(t.inputs, inputs, strict=True):
            if host.nbytes:
                source = self._table.address(self._table.slot(b))
                runtime.memcpyAsync(host.ctypes.data, source, host.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        stream.synchronize()
        self._recent.clear()  # all of it has run
        evaluate_host(t, inputs, outputs, self._machine)
        for b, host in zip(t.outputs, outputs, strict=True):
            if host.nbytes:
                target = self._table.address(self._table.slot(b))
                runtime.memcpyAsync(target, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream.ptr)
        stream.synchronize()  # the arrays of the host are let go

    def start(self) -> None:
        """Begin a call: its ops of the interpreter share a new machine."""
        if self._has_hosts:
            self._machine = Machine()
