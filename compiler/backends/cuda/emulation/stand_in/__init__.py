"""A stand-in for CuPy and a GPU: programs of the cuda backend run by the code that runs on a GPU, and are checked.

`installed()` is the one way to use it:

    from compiler import compile
    from compiler.backends.cuda.emulation import stand_in

    with stand_in.installed():
        (result,) = compile(text, backend="cuda")(x)
        print(result.get())

Memory of the GPU is memory of the host. Kernels run in the emulator, and products of cuBLAS in numpy. The stand-in
raises `FaultError`, at the latest at the end of the block, where the code uses memory after it was freed, allocates or
waits in a capture, lets two streams access the same memory without an event between them, or reads on the host what a
stream may still be writing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

from compiler.backends.cuda.emulation.stand_in.arrays import (
    ArrayFunctions,
    Memory,
    MemoryPointer,
    Ndarray,
    PinnedMemory,
    UnownedMemory,
)
from compiler.backends.cuda.emulation.stand_in.gpu import (
    CUDARuntimeError,
    Gpu,
    OutOfMemoryError,
)
from compiler.backends.cuda.emulation.stand_in.kernels import Driver, Nvrtc
from compiler.backends.cuda.emulation.stand_in.memory import Access, FaultError, Heap, host_bytes
from compiler.backends.cuda.emulation.stand_in.products import Cublas
from compiler.backends.cuda.emulation.stand_in.streams import Event, Graph, Hardware, Stream, elapsed_time, of_hardware

__all__ = ["FaultError", "Gpu", "host_bytes", "installed"]

MEMORY = 4 << 30
MAX_BLOCKS = 3


@contextmanager
def installed(memory: int = MEMORY, max_blocks: int = MAX_BLOCKS, reuse: bool = True) -> Iterator[Gpu]:
    """Make `import cupy` return the stand-in within a block; the process must not use CuPy otherwise meanwhile.

    Args:
        memory: bytes of memory of the GPU.
        max_blocks: launch at most so many blocks of a kernel; loops over the grid do the rest.
        reuse: whether the pool hands out freed memory again, as CuPy does; otherwise addresses are never used twice.

    Yields:
        the simulated GPU: its `launched` lists what ran, and `failing` and `refusing` plan failures of kernels.

    Raises:
        FaultError: memory was released while a stream might still use it.
    """
    gpu = Gpu(Heap(memory, reuse))
    modules = _modules(gpu, max_blocks)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield gpu
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    if gpu.faults:
        raise FaultError("; ".join(gpu.faults))


def _modules(gpu: Gpu, max_blocks: int) -> dict[str, ModuleType]:
    hardware = Hardware(gpu)
    stream = of_hardware(Stream, hardware)
    hardware.default = stream.null = stream(null=True)
    functions = ArrayFunctions(hardware, of_hardware(Ndarray, hardware))
    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(
        runtime=_Runtime(gpu),
        driver=Driver(gpu, max_blocks),
        nvrtc=Nvrtc(),
        cublas_functions=Cublas(gpu),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        Memory=of_hardware(Memory, hardware),
        MemoryPointer=MemoryPointer,
        UnownedMemory=of_hardware(UnownedMemory, hardware),
        alloc=functions.alloc,
        alloc_pinned_memory=of_hardware(PinnedMemory, hardware),
        Stream=stream,
        Event=of_hardware(Event, hardware),
        Graph=of_hardware(Graph, hardware),
        get_current_stream=hardware.current,
        get_elapsed_time=elapsed_time,
        Device=_Device,
    )
    cupy = ModuleType("cupy")
    pool = SimpleNamespace(free_all_blocks=gpu.heap.free_all_blocks)
    vars(cupy).update(
        __version__="stand-in",
        cuda=cuda,
        ndarray=functions.ndarray,
        empty=functions.empty,
        asarray=functions.asarray,
        ascontiguousarray=functions.ascontiguousarray,
        asnumpy=functions.asnumpy,
        argsort=functions.argsort,
        from_dlpack=functions.asarray,
        get_default_memory_pool=lambda: pool,
    )
    return {"cupy": cupy, "cupy.cuda": cuda}


CAPABILITY = "999"
"""That of no GPU: what was compiled for one is no source to emulate, and the sources here are no cubins for one."""


class _Device:
    """The only GPU, which is like an H100."""

    def __init__(self, device: int | None = None) -> None:
        self.id = device or 0
        self.compute_capability = CAPABILITY
        self.attributes = {"MultiProcessorCount": 132}


class _Runtime:
    """CuPy's binding of the runtime."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3  # noqa: N815 - CuPy's names

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def getDeviceCount(self) -> int:  # noqa: N802
        return 1

    def getDevice(self) -> int:  # noqa: N802
        return 0

    def setDevice(self, device: int) -> None:  # noqa: N802
        self._gpu.check_alive()
        if device != 0:
            raise CUDARuntimeError(101)

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 13_000

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return self._gpu.heap.limit - self._gpu.heap.used, self._gpu.heap.limit

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._gpu.check_alive()
        if kind == self.memcpyDeviceToHost:
            self._gpu.copy_to_host(stream, dst, Access(src, size, False))
        elif kind == self.memcpyHostToDevice:
            self._gpu.copy_from_host(stream, src, Access(dst, size, True))
        else:
            self._gpu.copy(stream, dst, src, size)
