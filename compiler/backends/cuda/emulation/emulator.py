"""The emulator: it builds CUDA kernels with g++ and runs their launches on arrays of this process."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from compiler.backends.cpu.libraries import Library, load_library
from compiler.backends.cuda.emulation.counting import (
    MOST_ACCESSES,
    CBufferCounts,
    CCounts,
    CWindow,
    KernelCounts,
    counts_of,
    sample_windows,
)
from compiler.backends.cuda.emulation.toolchain import find_compiler, toolchain
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import ArgumentError, UnknownNameError

__all__ = ["EmulatedKernels", "Extent", "available", "build"]

Extent = int | tuple[int, int] | tuple[int, int, int]
"""The number of blocks or threads along x, y and z; an integer: along x."""
ALIGNMENT = 16
"""The largest access of a thread in bytes; arrays must be aligned to it."""
MOST_THREADS = 1024
"""Threads per block."""
L1_BYTES = 32 << 10
"""Size of the level 1 cache that a block has for itself if several share that of a multiprocessor."""
_PARTS = re.compile(r"if \(block_ < (\d+)\)")
"""Where in a source the blocks of a nest end that runs beside others."""


class _Index(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class _Buffer(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_ulong)]


class _Launch(ctypes.Structure):
    """`struct Launch` of runtime.h."""

    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_int),
        ("image", ctypes.c_void_p * 4),
        ("dynamic_shared", ctypes.c_ulong),
        ("grid", _Index),
        ("block", _Index),
        ("windows", ctypes.c_void_p),
        ("window_count", ctypes.c_int),
        ("counts", ctypes.c_void_p),
        ("buffer_counts", ctypes.c_void_p),
        ("l1_bytes", ctypes.c_ulong),
        ("most_accesses", ctypes.c_ulong),
    ]


@dataclass(frozen=True)
class _Runtime:
    """The runtime of the emulator, which runs one launch at a time."""

    library: Library
    connection: int
    run: ctypes._CFunctionType = field(repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


@dataclass(frozen=True)
class EmulatedKernels:
    """Kernels that were built for the emulator.

    Attributes:
        specs: the kernels by symbol.
    """

    specs: dict[str, KernelSpec]
    _runtime: _Runtime = field(repr=False)
    _libraries: dict[str, Library] = field(repr=False)

    def launch(
        self,
        symbol: str,
        pointers: Sequence[int],
        grid: Extent | None = None,
        block: Extent | None = None,
        max_blocks: int | None = None,
        shared_bytes: int | None = None,
    ) -> str:
        """Run a kernel and return the first error that was detected, "" if there was none.

        Errors are accesses outside of the arguments or not aligned, races on shared memory, reads of shared memory that
        was not written, and threads that wait for each other. Blocks run one after another, from the first to the last.

        Args:
            symbol: the symbol of a kernel in `specs`.
            pointers: the addresses of its inputs and outputs, which must be multiples of `ALIGNMENT`.
            grid: the number of blocks; that of the kernel when None.
            block: threads per block; those of the kernel when None.
            max_blocks: launch at most so many blocks along x; kernels that loop over the grid do the same work.
            shared_bytes: bytes of dynamic shared memory; those of the kernel when None.

        Raises:
            UnknownNameError: there is no kernel with this symbol.
            ArgumentError: the launch does not suit the kernel.
        """
        with self._prepared(symbol, pointers, grid, block, shared_bytes) as launch:
            if max_blocks is not None:
                launch.grid.x = min(launch.grid.x, max_blocks)
            return self._run(launch)

    def count(
        self,
        symbol: str,
        pointers: Sequence[int],
        grid: Extent | None = None,
        block: Extent | None = None,
        shared_bytes: int | None = None,
        l1_bytes: int = L1_BYTES,
        most_accesses: int = MOST_ACCESSES,
    ) -> tuple[KernelCounts, str]:
        """Run some blocks of a launch and return what the whole launch would do on a GPU, and the first error.

        The sampled blocks change the arrays as `launch` does, and have the same errors.

        Args:
            symbol: see `launch`; so are `pointers`, `grid`, `block` and `shared_bytes`.
            pointers: the addresses of the arrays; what the kernel does may depend on their values.
            grid: the number of blocks.
            block: threads per block.
            shared_bytes: bytes of dynamic shared memory.
            l1_bytes: size of the level 1 cache that a block has for itself.
            most_accesses: number of accesses of the sampled threads that are counted; the rest is extrapolated.

        Raises:
            UnknownNameError: there is no kernel with this symbol.
            ArgumentError: the launch does not suit the kernel.
        """
        with self._prepared(symbol, pointers, grid, block, shared_bytes) as launch:
            blocks = launch.grid.x * launch.grid.y * launch.grid.z
            threads = launch.block.x * launch.block.y * launch.block.z
            parts = [int(n) for n in _PARTS.findall(self.specs[symbol].source)]
            chosen = sample_windows(blocks, parts=[n for n in parts if n < blocks])
            windows = (CWindow * len(chosen))(*(CWindow(*w) for w in chosen))
            counts, buffers = CCounts(), (CBufferCounts * max(1, launch.buffer_count))()
            launch.windows, launch.window_count = ctypes.addressof(windows), len(chosen)
            launch.counts, launch.buffer_counts = ctypes.addressof(counts), ctypes.addressof(buffers)
            launch.l1_bytes = l1_bytes
            most_accesses *= 1 + bool(parts)
            launch.most_accesses = max(1, most_accesses // (threads * sum(count for _, count in chosen)))
            error = self._run(launch)
        spec = self.specs[symbol]
        sizes = [s.byte_size for s in (*spec.inputs, *spec.outputs)]
        return counts_of(counts, buffers[: len(sizes)], sizes, blocks, threads, chosen), error

    @contextmanager
    def _prepared(
        self,
        symbol: str,
        pointers: Sequence[int],
        grid: Extent | None,
        block: Extent | None,
        shared_bytes: int | None,
    ) -> Iterator[_Launch]:
        """Check and yield a launch; it refers to memory that is freed afterwards."""
        spec = self._spec(symbol)
        blocks, threads = _index(spec.grid if grid is None else grid), _index(spec.block if block is None else block)
        _check(spec, pointers, blocks, threads)
        dynamic = spec.shared_bytes if shared_bytes is None else shared_bytes
        arguments = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        sizes = [s.byte_size for s in (*spec.inputs, *spec.outputs)]
        buffers = (_Buffer * max(1, len(sizes)))(*map(_Buffer, pointers, sizes))
        yield _Launch(
            kernel=self._libraries[symbol].function(f"run_{symbol}"), arguments=ctypes.addressof(arguments),
            buffers=ctypes.addressof(buffers), buffer_count=len(sizes), dynamic_shared=dynamic, grid=blocks,
            block=threads,
        )  # fmt: skip

    def _run(self, launch: _Launch) -> str:
        with self._runtime.lock:
            message: bytes = self._runtime.run(ctypes.byref(launch))
        return message.decode()

    def _spec(self, symbol: str) -> KernelSpec:
        if symbol not in self.specs:
            raise UnknownNameError("kernel", symbol, list(self.specs))
        return self.specs[symbol]


def available() -> bool:
    """Check whether kernels can be emulated: whether g++ is installed."""
    return find_compiler() is not None


def build(specs: Sequence[KernelSpec]) -> EmulatedKernels:
    """Return kernels in CUDA C++ built for the emulator; what was built before is in the cache of compiled code.

    Raises:
        CodegenError: g++ rejects the source of a kernel or takes too long.
        BackendError: g++ is not installed or cannot run, or the cache cannot be written.
    """
    tools = toolchain()
    runtime = _load_runtime(tools.runtime())
    objects = tools.objects(specs)
    libraries = {path: load_library(path) for path in set(objects.values())}
    for library in libraries.values():
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.function("emulation_connect"))(runtime.connection)
    found = {s.symbol: s for s in specs}
    return EmulatedKernels(found, runtime, {symbol: libraries[objects[symbol]] for symbol in found})


@cache
def _load_runtime(path: Path) -> _Runtime:
    library = load_library(path)
    connection = ctypes.CFUNCTYPE(ctypes.c_void_p)(library.function("emulation_runtime_of"))()
    run = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(library.function("emulation_run"))
    return _Runtime(library, connection, run)


def _index(extent: Extent) -> _Index:
    parts = (extent,) if isinstance(extent, int) else extent
    return _Index(*parts, *(1,) * (3 - len(parts)))


def _check(spec: KernelSpec, pointers: Sequence[int], blocks: _Index, threads: _Index) -> None:
    """Raise ArgumentError if a launch does not suit a kernel."""
    count = len(spec.inputs) + len(spec.outputs)
    if len(pointers) != count:
        raise ArgumentError(f"kernel {spec.name} has {count} arrays, but {len(pointers)} addresses were given")
    for k, address in enumerate(pointers):
        if address % ALIGNMENT:
            raise ArgumentError(f"array {k} of kernel {spec.name} is not aligned to {ALIGNMENT} bytes")
    per_block = threads.x * threads.y * threads.z
    if not 1 <= per_block <= MOST_THREADS:
        raise ArgumentError(f"kernel {spec.name}: a block must have 1 to {MOST_THREADS} threads, not {per_block}")
    if blocks.x * blocks.y * blocks.z < 1:
        raise ArgumentError(f"kernel {spec.name}: a launch must have a block")
