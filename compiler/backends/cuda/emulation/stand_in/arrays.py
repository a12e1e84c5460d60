"""Arrays and memory of the GPU, as CuPy has them, with only what the backend and those who read its results use."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from compiler.backends.cuda.emulation.stand_in.gpu import Gpu, OutOfMemoryError, Work
from compiler.backends.cuda.emulation.stand_in.memory import Access, Allocation, FaultError
from compiler.backends.cuda.emulation.stand_in.streams import Streams

__all__ = ["Arrays"]


@dataclass(frozen=True)
class Flags:
    """The flags of an array that the backend reads."""

    c_contiguous: bool
    owndata: bool


class Arrays:
    """The classes and functions of `cupy` that concern arrays, for one simulated GPU.

    Attributes:
        ndarray: the class of arrays.
        memory: the class `cupy.cuda.Memory`, of memory outside of the pool.
    """

    def __init__(self, gpu: Gpu, streams: Streams) -> None:
        current = streams.get_current_stream

        def allocated(size: int, what: str, stream: int | None) -> Allocation:
            found = gpu.allocate(size, what, stream)
            if found is None:
                raise OutOfMemoryError(size, gpu.heap.used)
            return found

        class Memory:
            """Memory that is freed with this object."""

            def __init__(self, size: int) -> None:
                gpu.check_alive()
                self.allocation = allocated(size, "device", None)
                self.ptr, self.size = self.allocation.address, size
                weakref.finalize(self, gpu.free, self.allocation).atexit = False

        class PooledMemory:
            def __init__(self, size: int) -> None:
                self.allocation = allocated(size, "device", current().ptr)
                weakref.finalize(self, gpu.free, self.allocation).atexit = False

        class PinnedMemory:
            def __init__(self, size: int) -> None:
                self.allocation = allocated(size, "pinned", None)
                self.ptr = self.allocation.address
                weakref.finalize(self, gpu.free, self.allocation).atexit = False

        class ndarray:  # noqa: N801 - CuPy's name
            """An array; operations on it are work on the current stream."""

            def __init__(self, shape: Any, dtype: Any, memptr: Any = None, view: Any = None, base: Any = None) -> None:
                self.dtype, self.shape = np.dtype(dtype), tuple(shape)
                size = math.prod(self.shape) * self.dtype.itemsize
                self._memory = memptr.mem if memptr is not None else PooledMemory(max(1, size))
                allocation = self._memory.allocation
                if view is None:
                    start = allocation.address if memptr is None else memptr.ptr
                    view = allocation.bytes(start, size).view(self.dtype).reshape(self.shape)
                self._host, self.base = view, base

            @property
            def data(self) -> Any:
                return SimpleNamespace(ptr=self._host.ctypes.data, mem=self._memory)

            @property
            def flags(self) -> Flags:
                return Flags(bool(self._host.flags.c_contiguous), self.base is None)

            @property
            def nbytes(self) -> int:
                return int(self._host.nbytes)

            @property
            def size(self) -> int:
                return int(self._host.size)

            @property
            def ndim(self) -> int:
                return int(self._host.ndim)

            def _derived(self, host: Any) -> ndarray:
                return ndarray(host.shape, host.dtype, SimpleNamespace(mem=self._memory), host, self)

            def view(self, dtype: Any = None) -> ndarray:
                return self._derived(self._host.view(self.dtype if dtype is None else dtype))

            def reshape(self, *shape: Any) -> ndarray:
                return self._derived(self._host.reshape(*shape))

            def transpose(self, *axes: Any) -> ndarray:
                return self._derived(self._host.transpose(*axes))

            @property
            def T(self) -> ndarray:  # noqa: N802
                return self.transpose()

            def __getitem__(self, key: Any) -> ndarray:
                return self._derived(np.asarray(self._host[key]))

            def _access(self, writes: bool) -> Access:
                allocation = self._memory.allocation
                return Access(allocation.address, allocation.size, writes)

            def __setitem__(self, key: Any, value: Any) -> None:
                def run(stamp: object) -> None:
                    self._host[key] = value._host if isinstance(value, ndarray) else value

                gpu.submit(current().ptr, Work("an assignment to an array", (self._access(True),), run))

            def get(self, stream: Any = None) -> Any:
                """Return a copy in memory of the host, after waiting for the stream."""
                gpu.check_alive()
                handle = (stream or current()).ptr
                out: list[Any] = []

                def run(stamp: object) -> None:
                    out.append(np.array(self._host))

                gpu.submit(handle, Work("the host's reading of an array", (self._access(False),), run))
                gpu.synchronize(handle)
                gpu.check_alive()
                return out[0]

            def set(self, arr: Any, stream: Any = None) -> None:
                """Copy from an array of the host, which is read now."""
                values = np.array(arr)

                def run(stamp: object) -> None:
                    self._host[...] = values

                gpu.submit((stream or current()).ptr, Work("a copy from the host", (self._access(True),), run))

            def copy(self) -> ndarray:
                made = ndarray(self.shape, self.dtype)

                def run(stamp: object) -> None:
                    made._host[...] = self._host

                accesses = (self._access(False), made._access(True))
                gpu.submit(current().ptr, Work("a copy of an array", accesses, run))
                return made

            def item(self) -> Any:
                return self.get().item()

            def __array__(self, *_: object) -> Any:
                raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

        def alloc(size: int) -> Any:
            gpu.check_alive()
            memory = PooledMemory(max(1, size))
            return SimpleNamespace(ptr=memory.allocation.address, mem=memory)

        class UnownedMemory:
            """Memory that another object owns."""

            def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
                del owner, device_id
                found = gpu.heap.find(ptr)
                if found is None or not found.alive:
                    raise FaultError("memory that is not allocated is wrapped")
                self.ptr, self.size, self.allocation = ptr, size, found

        def memory_pointer(mem: Any, offset: int) -> Any:
            return SimpleNamespace(ptr=mem.ptr + offset, mem=mem)

        def argsort(a: ndarray) -> ndarray:
            made = empty(a.shape, np.int64)

            def run(stamp: object) -> None:
                made._host[...] = np.argsort(a._host, axis=-1, kind="stable")

            accesses = (a._access(False), made._access(True))
            gpu.submit(current().ptr, Work("a sort by CuPy", accesses, run))
            return made

        def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
            gpu.check_alive()
            return ndarray(tuple(shape) if isinstance(shape, tuple | list) else (int(shape),), dtype)

        def asarray(a: Any, dtype: Any = None) -> ndarray:
            if isinstance(a, ndarray):
                return a
            host = np.asarray(a, dtype)
            made = empty(host.shape, host.dtype)
            made.set(host)
            return made

        def ascontiguousarray(a: Any) -> ndarray:
            contiguous: ndarray = a if a.flags.c_contiguous else a.copy()
            return contiguous

        def asnumpy(a: Any, stream: Any = None) -> Any:
            return a.get(stream) if isinstance(a, ndarray) else np.asarray(a)

        self.unowned_memory, self.memory_pointer, self.argsort = UnownedMemory, memory_pointer, argsort
        self.ndarray, self.memory, self.alloc = ndarray, Memory, alloc
        self.empty, self.asarray, self.ascontiguousarray, self.asnumpy = empty, asarray, ascontiguousarray, asnumpy
        self.alloc_pinned_memory = PinnedMemory
