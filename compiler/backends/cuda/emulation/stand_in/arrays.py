"""Arrays and memory of the GPU, as CuPy has them, with only what the backend and those who read its results use."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.backends.cuda.emulation.stand_in.gpu import OutOfMemoryError, Work
from compiler.backends.cuda.emulation.stand_in.memory import Access, Allocation, FaultError
from compiler.backends.cuda.emulation.stand_in.streams import Hardware

__all__ = ["ArrayFunctions", "Memory", "MemoryPointer", "Ndarray", "PinnedMemory", "UnownedMemory"]


# ---- memory


class Memory:
    """Memory that is freed with this object."""

    hardware: ClassVar[Hardware]
    what: ClassVar[str] = "device"

    def __init__(self, size: int) -> None:
        gpu = self.hardware.gpu
        gpu.check_alive()
        found = gpu.allocate(size, self.what, self._pool())
        if found is None:
            raise OutOfMemoryError(size, gpu.heap.used)
        self.allocation: Allocation = found
        self.ptr, self.size = found.address, size
        weakref.finalize(self, gpu.free, found).atexit = False

    def _pool(self) -> int | None:
        """Return the stream whose pool the memory is of; None: of no pool."""
        return None


class PinnedMemory(Memory):
    """Memory of the host that is not paged."""

    what = "pinned"


class PooledMemory(Memory):
    """Memory of the pool of the current stream."""

    def _pool(self) -> int | None:
        handle: int = self.hardware.current().ptr
        return handle


class UnownedMemory:
    """Memory that another object owns."""

    hardware: ClassVar[Hardware]

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        del owner, device_id
        found = self.hardware.gpu.heap.find(ptr)
        if found is None or not found.alive:
            raise FaultError("memory that is not allocated is wrapped")
        self.ptr, self.size, self.allocation = ptr, size, found


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


# ---- arrays


@dataclass(frozen=True)
class Flags:
    """The flags of an array that the backend reads."""

    c_contiguous: bool
    owndata: bool


class Ndarray:
    """An array; operations on it are work on the current stream."""

    hardware: ClassVar[Hardware]

    def __init__(self, shape: Any, dtype: Any, memptr: Any = None, view: Any = None, base: Any = None) -> None:
        self.dtype, self.shape = np.dtype(dtype), tuple(shape)
        size = math.prod(self.shape) * self.dtype.itemsize
        if memptr is None:
            memptr = allocated(self.hardware, size)
        self._memory = memptr.mem
        if view is None:
            view = self._memory.allocation.bytes(memptr.ptr, size).view(self.dtype).reshape(self.shape)
        self.host, self.base = view, base

    @property
    def data(self) -> MemoryPointer:
        """Where the array is."""
        return MemoryPointer(self._memory, self.host.ctypes.data - self._memory.ptr)

    @property
    def flags(self) -> Flags:
        """How the array lies in memory."""
        return Flags(bool(self.host.flags.c_contiguous), self.base is None)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self.host.nbytes)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.host.size)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self.host.ndim)

    def _derived(self, host: Any) -> Any:
        return type(self)(host.shape, host.dtype, MemoryPointer(self._memory, 0), host, self)

    def view(self, dtype: Any = None) -> Any:
        """Return the same memory as elements of a type."""
        return self._derived(self.host.view(self.dtype if dtype is None else dtype))

    def reshape(self, *shape: Any) -> Any:
        """Return the same memory in another shape."""
        return self._derived(self.host.reshape(*shape))

    @property
    def T(self) -> Any:  # noqa: N802 - CuPy's name
        """The transposed array."""
        return self._derived(self.host.T)

    def __getitem__(self, key: Any) -> Any:
        return self._derived(np.asarray(self.host[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        def run(stamp: object) -> None:
            self.host[key] = value.host if isinstance(value, Ndarray) else value

        self.submit(Work("an assignment to an array", (self.access(writes=True),), run))

    def access(self, writes: bool) -> Access:
        """Return an access to the whole memory of the array."""
        allocation = self._memory.allocation
        return Access(allocation.address, allocation.size, writes)

    def submit(self, work: Work, stream: Any = None) -> int:
        """Submit work to a stream, or else to the current one, and return its handle."""
        handle: int = (stream or self.hardware.current()).ptr
        self.hardware.gpu.check_alive()
        self.hardware.gpu.submit(handle, work)
        return handle

    def get(self, stream: Any = None) -> Any:
        """Return a copy in memory of the host, after waiting for the stream."""
        out: list[Any] = []

        def run(stamp: object) -> None:
            out.append(np.array(self.host))

        handle = self.submit(Work("the host's reading of an array", (self.access(writes=False),), run), stream)
        self.hardware.gpu.synchronize(handle)
        self.hardware.gpu.check_alive()
        return out[0]

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy from an array of the host, which is read now."""
        values = np.array(arr)

        def run(stamp: object) -> None:
            self.host[...] = values

        self.submit(Work("a copy from the host", (self.access(writes=True),), run), stream)

    def copy(self) -> Any:
        """Return a row-major copy."""
        made = type(self)(self.shape, self.dtype)

        def run(stamp: object) -> None:
            made.host[...] = self.host

        self.submit(Work("a copy of an array", (self.access(writes=False), made.access(writes=True)), run))
        return made

    def item(self) -> Any:
        """Return the only element."""
        return self.get().item()

    def __array__(self, *_: object) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")


def allocated(hardware: Hardware, size: int) -> MemoryPointer:
    """Return new memory of the pool."""
    pooled = type("PooledMemory", (PooledMemory,), {"hardware": hardware})
    return MemoryPointer(pooled(max(1, size)), 0)


# ---- functions


@dataclass(frozen=True)
class ArrayFunctions:
    """The functions of `cupy` that make or sort arrays.

    Attributes:
        hardware: where the arrays are.
        ndarray: the class of arrays.
    """

    hardware: Hardware
    ndarray: Any

    def alloc(self, size: int) -> MemoryPointer:
        """Return new memory of the pool."""
        return allocated(self.hardware, size)

    def empty(self, shape: Any, dtype: Any = np.float64) -> Any:
        """Return a new array, whose elements are not set."""
        return self.ndarray(tuple(shape) if isinstance(shape, tuple | list) else (int(shape),), dtype)

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """Return an array with the elements of one of the host."""
        if isinstance(a, self.ndarray):
            return a
        host = np.asarray(a, dtype)
        made = self.empty(host.shape, host.dtype)
        made.set(host)
        return made

    def ascontiguousarray(self, a: Any) -> Any:
        """Return an array, or a copy of one that is not row-major."""
        return a if a.flags.c_contiguous else a.copy()

    def asnumpy(self, a: Any, stream: Any = None) -> Any:
        """Return an array of the host."""
        return a.get(stream) if isinstance(a, self.ndarray) else np.asarray(a)

    def argsort(self, a: Any) -> Any:
        """Return the positions that sort an array along its last dimension, stably."""
        made = self.empty(a.shape, np.int64)

        def run(stamp: object) -> None:
            made.host[...] = np.argsort(a.host, axis=-1, kind="stable")

        a.submit(Work("a sort by CuPy", (a.access(writes=False), made.access(writes=True)), run))
        return made
