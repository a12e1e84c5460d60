"""A program on one GPU: its memory, its loaded kernels and its prepared steps.

All memory is allocated when the program is loaded; a call allocates its results alone. Work runs on the stream that is
current in CuPy when the program is called, as that of other CuPy functions. Calls share the arena, so a call on another
stream waits for the one before it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.backends.cuda.arrays import Argument, take_results
from compiler.backends.cuda.bindings import cublas
from compiler.backends.cuda.blas import Blas, blas_of, workspace_bytes
from compiler.backends.cuda.control import Node, StretchNode, run_nodes
from compiler.backends.cuda.cubins import Cubin
from compiler.backends.cuda.failures import memory_error, translated
from compiler.backends.cuda.modules import load_kernel
from compiler.backends.cuda.planning import Planner
from compiler.backends.cuda.steps import AddressTable, Step, kernel_symbols
from compiler.runtime.buffers import ALIGNMENT, BufferKind
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import GemmThunk, Thunk, walk
from compiler.support.memory import size_text

__all__ = ["DeviceProgram"]

PER_THREAD_STREAM = 2
"""Handle of the default stream of each thread: equal handles of different threads are different streams."""
MOST_RECENT = 64


class DeviceProgram:
    """A program on the GPU that is current when this object is made.

    Args:
        xp: CuPy.
        device: number of the GPU.
        program: thunks and buffers.
        arena_bytes: size of the arena.
        cubins: the compiled kernels, by symbol.
        tf32: see `Blas`.
    """

    def __init__(
        self,
        xp: Any,
        device: int,
        program: ThunkProgram,
        arena_bytes: int,
        cubins: Mapping[str, Cubin],
        tf32: bool = False,
    ) -> None:
        self.xp, self.device, self.program = xp, device, program
        thunks = list(walk(program.thunks))
        self._recent: deque[Step] = deque(maxlen=MOST_RECENT)
        self._lock = threading.RLock()
        self._last_stream: Any = None
        self._first = True
        self._done = xp.cuda.Event(disable_timing=True)
        self._held: deque[tuple[Any, list[Any]]] = deque()
        self.table = AddressTable(thunks, (*program.parameters, *program.results))
        self.result_shapes = [b.shape for b in program.results]
        self._donated = {b.index: n for n, b in enumerate(program.parameters) if b.kind is BufferKind.OUTPUT}
        with self.translated("loading the program"):
            xp.cuda.runtime.setDevice(device)  # the driver's functions need its context
            kernels = {symbol: load_kernel(xp.cuda.driver, device, c) for symbol, c in cubins.items()}
            self._capturing = xp.cuda.Stream(non_blocking=True)
            blas, workspace = self._products(thunks, tf32)
            self._memory = self._allocate(arena_bytes, workspace)
            place = self._memory.ptr + _aligned(arena_bytes) + self._constants_bytes
            functions = {symbol: k.function for symbol, k in kernels.items()}
            planner = Planner(xp, self.table, functions, blas, (place, workspace), self._recent)
            self.nodes: list[Node] = planner.nodes(program.thunks)
            self._planner = planner
        # Memory and modules stay until the work that uses them is done, whenever this object is collected.
        weakref.finalize(
            self, _retire, self._done, [kernels, self.nodes, self._memory, planner, self._held]
        ).atexit = False

    # ---- loading

    def _products(self, thunks: Sequence[Thunk], tf32: bool) -> tuple[Blas | None, int]:
        """Return the handle of cuBLAS and the size of its workspace, if the program has products."""
        if not any(isinstance(t, GemmThunk) for t in thunks):
            return None, 0
        capability = int(self.xp.cuda.Device(self.device).compute_capability)
        return blas_of(self.device, id(cublas()), tf32), workspace_bytes(capability)

    @property
    def _constants_bytes(self) -> int:
        return sum(_aligned(c.nbytes) for c in self.program.constants)

    def _allocate(self, arena_bytes: int, workspace: int) -> Any:
        """Return memory for the arena, the constants and the workspace, with the constants in it."""
        xp, constants = self.xp, self.program.constants
        total = _aligned(arena_bytes) + self._constants_bytes + workspace
        memory = self._device_memory(max(1, total))
        self.table.place_arena(memory.ptr)
        at, addresses = memory.ptr + _aligned(arena_bytes), []
        stream = self._capturing
        for c in constants:
            addresses.append(at)
            if c.nbytes:
                host = np.ascontiguousarray(c)
                xp.cuda.runtime.memcpyAsync(
                    at, host.ctypes.data, c.nbytes, xp.cuda.runtime.memcpyHostToDevice, stream.ptr
                )
                stream.synchronize()  # before the host's array is collected
            at += _aligned(c.nbytes)
        self.table.fill(BufferKind.CONSTANT, addresses)
        return memory

    def _device_memory(self, size: int) -> Any:
        """Return memory that is not CuPy's pool's, because it outlives streams; the pool gives way if it must."""
        xp = self.xp
        try:
            return xp.cuda.Memory(size)
        except (xp.cuda.memory.OutOfMemoryError, xp.cuda.runtime.CUDARuntimeError) as e:
            if getattr(e, "status", 2) != 2:
                raise
        xp.get_default_memory_pool().free_all_blocks()
        try:
            return xp.cuda.Memory(size)
        except (xp.cuda.memory.OutOfMemoryError, xp.cuda.runtime.CUDARuntimeError):
            raise memory_error(xp, size, f"the program's memory ({size_text(size)})") from None

    # ---- calls

    def call(self, arguments: Sequence[Argument], donate: bool, synchronous: bool) -> list[Any]:
        """Launch the program on the current stream and return its results, which are complete when the stream is.

        Args:
            arguments: of the call.
            donate: whether the caller's arrays may be taken over.
            synchronous: wait after each launch, so that an error is that of the kernel which it names.
        """
        results, copies = take_results(self.xp, self.result_shapes, self._donated, arguments, donate)
        with self._lock:  # without the context of `bound`, which costs some microseconds
            stream = self._bind(arguments, results)
            try:
                if copies:
                    self.begin(copies, arguments, results, stream)
                # The first call waits for each launch, so that a kernel that fails is named.
                self.launch(stream, synchronous or self._first)
                self._first = False
            finally:
                self._done.record(stream)
            self._hold(arguments, stream)
        return results

    @contextlib.contextmanager
    def bound(self, arguments: Sequence[Argument], results: Sequence[Any]) -> Iterator[Any]:
        """Make a context in which the steps read these arguments and write these results; it yields the stream."""
        with self._lock:
            stream = self._bind(arguments, results)
            try:
                yield stream
            finally:
                self._done.record(stream)
            self._hold(arguments, stream)

    def _bind(self, arguments: Sequence[Argument], results: Sequence[Any]) -> Any:
        """Let the steps read these arguments and write these results; return the stream, on which it is their turn."""
        cuda = self.xp.cuda
        cuda.runtime.setDevice(self.device)  # makes the context current in this thread
        stream = cuda.get_current_stream()
        self._order_after_last(stream)
        self.table.fill(BufferKind.PARAMETER, [a.address for a in arguments])
        self.table.fill(BufferKind.OUTPUT, [r.data.ptr for r in results])
        return stream

    def begin(
        self, copies: Sequence[tuple[int, int]], arguments: Sequence[Argument], results: Sequence[Any], stream: Any
    ) -> None:
        """Copy the arguments that a result begins as."""
        runtime = self.xp.cuda.runtime
        for result, source in copies:
            a = arguments[source]
            if a.size:
                runtime.memcpyAsync(
                    results[result].data.ptr, a.address, a.size, runtime.memcpyDeviceToDevice, stream.ptr
                )

    def launch(self, stream: Any, synchronous: bool = False) -> None:
        """Launch the program with the arguments that are bound."""
        self._planner.start()
        run_nodes(self.nodes, stream, self._capturing, synchronous)

    @property
    def donated(self) -> Mapping[int, int]:
        """The argument that is donated to a result, by the result's number."""
        return self._donated

    @property
    def is_one_launch(self) -> bool:
        """Whether a call launches one graph or one kernel, once its graph is captured."""
        return len(self.nodes) == 1 and isinstance(self.nodes[0], StretchNode) and self.nodes[0].stretch.is_one_launch

    def step_of(self, thunk: Thunk) -> tuple[Callable[[Any], None] | None, bool]:
        """Return what runs one thunk on a stream (None for a loop or conditional), and whether it is one launch."""
        return self._planner.runner(thunk)

    def _order_after_last(self, stream: Any) -> None:
        last = self._last_stream
        if last is not None and (last.ptr != stream.ptr or stream.ptr == PER_THREAD_STREAM):
            stream.wait_event(self._done)
        self._last_stream = stream

    def _hold(self, arguments: Sequence[Argument], stream: Any) -> None:
        """Keep memory of other libraries, which do not know our stream, until the work on it is done."""
        while self._held and self._held[0][0].done:
            self._held.popleft()
        foreign = [a.holder for a in arguments if not isinstance(a.holder, self.xp.ndarray)]
        if foreign:
            event = self.xp.cuda.Event(disable_timing=True)
            event.record(stream)
            self._held.append((event, foreign))

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Make a context in which errors of CUDA become ours, which name the kernel.

        Args:
            doing: what fails if no kernel was launched, as the subject of a sentence.
        """
        try:
            yield
        except Exception as e:
            error = self.error_of(e, doing)
            if error is e:
                raise
            raise error from e

    def error_of(self, error: Exception, doing: str) -> Exception:
        """Return the error that users see for an exception; it is the same one unless it is of CUDA."""
        last = str(self._recent[-1]) if self._recent else doing
        return translated(error, last, list(kernel_symbols(self._recent))) or error


def _retire(done: Any, kept: list[Any]) -> None:
    """Wait for the last call of a program that is gone, then let go of its memory and kernels."""
    with contextlib.suppress(Exception):  # the context may be lost
        done.synchronize()
    kept.clear()


def _aligned(size: int) -> int:
    alignment = max(256, ALIGNMENT)  # as cudaMalloc's, which kernels may rely on for wide accesses
    return -(-size // alignment) * alignment
