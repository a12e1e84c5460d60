"""A simulated GPU: work runs when it is submitted, and its order is checked as if it ran as late as it may."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from compiler.backends.cuda.emulation.stand_in.memory import FRESH, Access, Allocation, FaultError, Heap, host_bytes
from compiler.backends.cuda.emulation.stand_in.ordering import HOST, LEGACY, Clock, Order, Stamp

__all__ = ["CUDADriverError", "CUDARuntimeError", "Gpu", "OutOfMemoryError", "Work"]


class CUDARuntimeError(RuntimeError):
    """An error of the runtime, as CuPy has it.

    Attributes:
        status: the error code.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"cudaError {status}: raised by the stand-in")


class CUDADriverError(RuntimeError):
    """An error of the driver, as CuPy has it.

    Attributes:
        status: the error code.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA_ERROR {status}: raised by the stand-in")


class OutOfMemoryError(MemoryError):
    """Too little memory, as CuPy has it."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")
        del limit


@dataclass(frozen=True)
class Work:
    """Something that a stream does.

    Attributes:
        description: what it is, as the subject of a sentence.
        accesses: the memory that it reads and writes.
        run: does it.
    """

    description: str
    accesses: tuple[Access, ...]
    run: Callable[[Stamp], None]


@dataclass
class _Delivery:
    """Bytes that a copy brings to memory of the host once the host has waited for it."""

    stamp: Stamp
    target: int
    data: bytes


@dataclass
class Gpu:
    """The state of the GPU.

    Attributes:
        heap: its memory.
        order: what is complete before what.
        faults: what was found where no exception can be raised, such as in the release of memory.
        launched: descriptions of all work that has run.
        failure: error code of the failure after which nothing works any more, if there was one.
        failing: error codes by symbol of kernels that are to fail as they run.
        refusing: error codes by symbol of kernels whose launch is to be refused.
        most_shared: bytes of shared memory that a block may ask for.
    """

    heap: Heap
    order: Order = field(default_factory=Order)
    faults: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    failure: int | None = None
    failing: dict[str, int] = field(default_factory=dict)
    refusing: dict[str, int] = field(default_factory=dict)
    most_shared: int = 227 << 10
    lock: threading.RLock = field(default_factory=threading.RLock)
    _captures: dict[int, list[Work]] = field(default_factory=dict)
    _capturing_threads: dict[int, int] = field(default_factory=dict)
    _deliveries: list[_Delivery] = field(default_factory=list)

    # ---- work

    def submit(self, stream: int, work: Work) -> None:
        """Run work on a stream, or add it to the graph that is captured there."""
        with self.lock:
            if stream not in self.order.clocks:
                raise FaultError(f"{work.description} is launched on a stream that does not exist")
            if stream in self._captures:
                self._captures[stream].append(work)
                return
            self._execute(stream, work)

    def _execute(self, stream: int, work: Work) -> None:
        stamp, before = self.order.submit(stream)
        for access in work.accesses:
            found = self.heap.resolve(access, work.description)
            if found is not None and found.what == "device":
                self._check(found, before, work, access)
        for access in work.accesses:
            found = self.heap.resolve(access, work.description)
            if found is not None:
                _record(found, stamp, work.description, access.writes)
        self.launched.append(work.description)
        if self.failure is None:
            work.run(stamp)

    def _check(self, found: Allocation, before: Clock, work: Work, access: Access) -> None:
        other = found.conflict(before, access.writes)
        if other is not None:
            verb = "writes" if access.writes else "reads"
            raise FaultError(f"{work.description} {verb} memory without waiting: {other} on another stream")

    def replay(self, stream: int, works: list[Work]) -> None:
        """Run the work of a captured graph on a stream."""
        with self.lock:
            for work in works:
                self._execute(stream, work)

    # ---- captures

    def begin_capture(self, stream: int) -> None:
        """Begin to collect the work of a stream."""
        if stream == LEGACY:
            raise FaultError("the legacy default stream cannot be captured")
        self._captures[stream] = []
        self._capturing_threads[threading.get_ident()] = stream

    def end_capture(self, stream: int) -> list[Work]:
        """Return the work that was collected."""
        self._capturing_threads.pop(threading.get_ident(), None)
        return self._captures.pop(stream)

    def forbid_in_capture(self, what: str) -> None:
        """Raise FaultError if this thread is capturing."""
        if threading.get_ident() in self._capturing_threads:
            raise FaultError(f"{what} during the capture of a graph")

    # ---- memory

    def allocate(self, size: int, what: str, stream: int | None) -> Allocation | None:
        """Return memory, or None if there is not enough."""
        with self.lock:
            self.forbid_in_capture(f"{size} bytes are allocated")
            return self.heap.allocate(size, what, stream)

    def free(self, allocation: Allocation) -> None:
        """Free memory; note a fault if work that is not ordered before the next use of it may still use it."""
        with self.lock:
            if not allocation.alive:
                return
            if allocation.stream is not None:
                # The pool hands it to later work of the stream on which it was allocated.
                clock = {**self.order.clocks[allocation.stream]}
                for actor, number in self.order.clocks[HOST].items():
                    clock[actor] = max(number, clock.get(actor, 0))
                other = allocation.conflict(clock, writes=True)
                if other is not None:
                    self.faults.append(f"memory is freed while {other} on another stream")
            self.heap.free(allocation)

    # ---- the host

    def check_alive(self) -> None:
        """Raise the error of CUDA after which nothing works any more, if a kernel has failed."""
        if self.failure is not None:
            raise CUDARuntimeError(self.failure)

    def wait(self, clock: Clock) -> None:
        """Let the host wait until what `clock` knows is complete, and deliver copies to its memory."""
        with self.lock:
            self.order.join(HOST, clock)
            kept = []
            for d in self._deliveries:
                if d.stamp.is_before(self.order.clocks[HOST]):
                    _write(d.target, d.data)
                else:
                    kept.append(d)
            self._deliveries = kept

    def snapshot(self, stream: int) -> Clock:
        """Return what is complete once a stream has done what it has now."""
        with self.lock:
            if stream in self._captures:
                raise FaultError("an event is recorded, or the host waits, on a stream that is being captured")
            return self.order.snapshot(stream)

    def synchronize(self, stream: int) -> None:
        """Let the host wait for a stream."""
        self.wait(self.snapshot(stream))

    def copy_to_host(self, stream: int, target: int, access: Access) -> None:
        """Copy to memory of the host: pinned memory has the bytes once the host has waited, other memory at once."""
        pinned = self.heap.find(target)

        def deliver(stamp: Stamp) -> None:
            data = _read(access.address, access.size)
            if pinned is None:
                _write(target, data)
            else:
                _write(target, bytes([FRESH]) * access.size)
                self._deliveries.append(_Delivery(stamp, target, data))

        if pinned is None:
            self.forbid_in_capture("memory of the host that can be paged is copied to")
        self.submit(stream, Work(f"a copy of {access.size} bytes to the host", (access,), deliver))
        if pinned is None:
            self.synchronize(stream)

    def copy_from_host(self, stream: int, source: int, access: Access) -> None:
        """Copy from memory of the host, whose bytes are read now."""
        data = _read(source, access.size)
        work = Work(
            f"a copy of {access.size} bytes from the host", (access,), lambda stamp: _write(access.address, data)
        )
        self.submit(stream, work)

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Copy on the GPU."""
        accesses = (Access(source, size, False), Access(target, size, True))
        work = Work(f"a copy of {size} bytes", accesses, lambda stamp: _write(target, _read(source, size)))
        self.submit(stream, work)


def _record(found: Allocation, stamp: Stamp, description: str, writes: bool) -> None:
    if writes:
        found.written, found.read = (stamp, description), {}
    else:
        found.read[stamp.actor] = stamp, description


def _read(address: int, size: int) -> bytes:
    return host_bytes(address, size).tobytes()


def _write(address: int, data: bytes) -> None:
    host_bytes(address, len(data))[...] = np.frombuffer(data, np.uint8)
