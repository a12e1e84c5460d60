"""NVRTC and the driver, as CuPy has them: a "cubin" is the source, which the emulator builds and runs."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from compiler.backends.cuda.emulation import emulator
from compiler.backends.cuda.emulation.stand_in.gpu import CUDADriverError, Gpu, Work
from compiler.backends.cuda.emulation.stand_in.memory import Access, FaultError
from compiler.backends.cuda.emulation.stand_in.ordering import Stamp
from compiler.backends.cuda.modules import MAX_DYNAMIC_SHARED
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.printing import print_cuda
from compiler.ir.shape import Shape
from compiler.text.scanner import Scanner
from compiler.text.shapes import parse_shape

__all__ = ["Driver", "Nvrtc"]

_SIGNATURE = re.compile(r"// (\w+): \((.*)\) -> \((.*)\)\n")
_PARAMETERS = re.compile(r"void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(([^)]*)\)")


class NvrtcError(RuntimeError):
    """An error of NVRTC."""


class Nvrtc:
    """CuPy's binding of NVRTC; it compiles nothing, and returns the source."""

    NVRTCError = NvrtcError

    def __init__(self) -> None:
        self._sources: dict[int, str] = {}
        self._handles = itertools.count(1)

    def getVersion(self) -> tuple[int, int]:  # noqa: N802 - CuPy's name
        return (0, 0)

    def createProgram(self, src: str, name: str, headers: Any, include_names: Any) -> int:  # noqa: N802
        del name, headers, include_names
        handle = next(self._handles)
        self._sources[handle] = src
        return handle

    def compileProgram(self, prog: int, options: Any) -> None:  # noqa: N802
        del prog, options

    def getCUBIN(self, prog: int) -> bytes:  # noqa: N802
        return self._sources[prog].encode()

    def getProgramLog(self, prog: int) -> str:  # noqa: N802
        del prog
        return ""

    def destroyProgram(self, prog: int) -> None:  # noqa: N802
        del self._sources[prog]


STATIC_SHARED = 48 << 10
"""Shared memory of a block that needs no attribute."""


@dataclass
class _Function:
    spec: KernelSpec
    reads_only: tuple[bool, ...]
    dynamic_shared: int = STATIC_SHARED


@dataclass
class Driver:
    """CuPy's binding of the driver.

    Attributes:
        gpu: where kernels run.
        max_blocks: launch at most so many blocks of a kernel; its loops over the grid do the rest.
    """

    gpu: Gpu
    max_blocks: int
    CUDADriverError: type[CUDADriverError] = CUDADriverError
    _modules: dict[int, str] = field(default_factory=dict)
    _functions: dict[int, _Function] = field(default_factory=dict)
    _built: emulator.EmulatedKernels | None = None
    _handles: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802 - CuPy's names
        self.gpu.check_alive()
        self.gpu.forbid_in_capture("a module is loaded")
        handle = next(self._handles)
        self._modules[handle] = image.decode()
        return handle

    def moduleUnload(self, module: int) -> None:  # noqa: N802
        del self._modules[module]

    def moduleGetFunction(self, module: int, funcname: str) -> int:  # noqa: N802
        handle = next(self._handles)
        self._functions[handle] = _parsed(self._modules[module], funcname)
        return handle

    def funcSetAttribute(self, f: int, attribute: int, value: int) -> None:  # noqa: N802
        """Set how much dynamic shared memory the launches of a function may have."""
        self.gpu.check_alive()
        if attribute != MAX_DYNAMIC_SHARED or not 0 <= value <= self.gpu.most_shared:
            raise CUDADriverError(1)  # invalid value
        self._functions[f].dynamic_shared = value

    def launchKernel(  # noqa: N802
        self, f: int, grid_dim_x: int, grid_dim_y: int, grid_dim_z: int, block_dim_x: int, block_dim_y: int,
        block_dim_z: int, shared_mem_bytes: int, stream: int, kernel_params: int, extra: int,
    ) -> None:  # fmt: skip
        """Run a kernel on the arguments that its parameters point to now."""
        del extra
        self.gpu.check_alive()
        function = self._functions[f]
        spec = function.spec
        if spec.symbol in self.gpu.refusing:
            raise CUDADriverError(self.gpu.refusing[spec.symbol])
        if shared_mem_bytes > function.dynamic_shared:
            raise CUDADriverError(1)  # invalid value
        count = len(spec.inputs) + len(spec.outputs)
        slots = (ctypes.c_void_p * max(1, count)).from_address(kernel_params)
        pointers = [ctypes.c_void_p.from_address(slots[n] or 0).value or 0 for n in range(count)]
        sizes = [s.byte_size for s in (*spec.inputs, *spec.outputs)]
        accesses = tuple(
            Access(p, size, not only)
            for p, size, only in zip(pointers, sizes, function.reads_only, strict=True)
        )  # fmt: skip
        grid, block = (grid_dim_x, grid_dim_y, grid_dim_z), (block_dim_x, block_dim_y, block_dim_z)
        description = f"the kernel {spec.symbol}"

        def run(stamp: Stamp) -> None:
            del stamp
            failing = self.gpu.failing.get(spec.symbol)
            if failing is not None:
                self.gpu.failure = failing
                return
            error = self._kernels().launch(spec.symbol, pointers, grid, block, self.max_blocks, shared_mem_bytes)
            if error:
                raise FaultError(f"{description}: {error}")

        self.gpu.submit(stream, Work(description, accesses, run))

    def _kernels(self) -> emulator.EmulatedKernels:
        """Return all kernels that are loaded, built for the emulator together."""
        specs = {f.spec.symbol: f.spec for f in self._functions.values()}
        if self._built is None or not specs.keys() <= self._built.specs.keys():
            self._built = emulator.build(list(specs.values()))
        return self._built


def _parsed(source: str, symbol: str) -> _Function:
    """Return a kernel of a source, whose first line names the shapes of its arrays."""
    signature = _SIGNATURE.match(source)
    if signature is None or signature[1] != symbol:
        raise CUDADriverError(500)  # not found
    inputs, outputs = (_shapes(text) for text in signature.groups()[1:])
    body = source[signature.end() :].removeprefix(print_cuda.preamble()).lstrip()
    found = next((m for m in _PARAMETERS.finditer(body) if m[1] == symbol), None)
    if found is None:
        raise CUDADriverError(500)
    parameters = [p.strip() for p in found[2].split(",")] if found[2].strip() else []
    spec = KernelSpec(symbol, "", "cuda", body, symbol, inputs, outputs, 0, 0, grid=1, block=32)
    return _Function(spec, tuple(p.startswith("const ") for p in parameters))


def _shapes(text: str) -> tuple[Shape, ...]:
    """Return the shapes of a list such as "f32[2,3], s32[]"."""
    parts = re.findall(r"\w+\[[^\]]*\](?:\{[^}]*\})?", text)
    return tuple(parse_shape(Scanner(p)) for p in parts)
