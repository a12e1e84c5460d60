"""Cubins: compiled kernels, one per kernel, built in parallel and kept on disk.

A cubin is found by the hash of its source with the preamble, the options, the version of NVRTC and the architecture,
so a new fusion decision compiles only the kernels that it changes. Nothing here needs a GPU: `compile_cubins` also
compiles for an architecture that is only named, to see what resources kernels need there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from compiler.backends.cpu.object_cache import ObjectCache
from compiler.backends.cpu.toolchain import object_cache
from compiler.backends.cuda import nvrtc
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import ArgumentError, CodegenError
from compiler.support.threads import available_cores
from compiler.support.untrusted import short_repr

__all__ = ["Cubin", "Resources", "architecture_name", "compile_cubins", "read_cubin", "stored_cubin"]

MOST_THREADS = 16
ARCHITECTURE = re.compile(r"sm_([0-9]{2,3})[af]?")
"""Names of architectures of GPUs."""
_VERBOSE = "--ptxas-options=-v"


@dataclass(frozen=True)
class Resources:
    """What a kernel needs of a multiprocessor, as the assembler reports it.

    Attributes:
        registers: 32-bit registers per thread.
        shared_bytes: shared memory per block, static and dynamic.
        stack_bytes: local memory per thread, for arrays and calls.
        spill_stores: bytes per thread that are stored because registers ran out.
        spill_loads: bytes per thread that are loaded again.
        dynamic_bytes: how much of the shared memory is dynamic.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int
    dynamic_bytes: int = 0


@dataclass(frozen=True)
class Cubin:
    """One compiled kernel.

    Attributes:
        symbol: name of the function.
        architecture: for which it was compiled, such as "sm_90".
        image: the cubin, which the driver loads.
        resources: what it needs.
    """

    symbol: str
    architecture: str
    image: bytes
    resources: Resources


def architecture_name(architecture: str | int) -> str:
    """Return the name of an architecture, such as "sm_90", given that or its number, such as 90.

    Raises:
        ArgumentError: it is neither.
    """
    number = isinstance(architecture, int) and not isinstance(architecture, bool)
    name = f"sm_{architecture}" if number else architecture
    if not isinstance(name, str) or not ARCHITECTURE.fullmatch(name):
        raise ArgumentError(
            f"an architecture is a name such as 'sm_90', or its number 90, not {short_repr(architecture)}"
        )
    return name


def compile_cubins(kernels: Sequence[KernelSpec], architecture: str | int = "sm_90") -> dict[str, Cubin]:
    """Return the cubin of each distinct kernel, by symbol; those that are not in the cache are compiled.

    Args:
        kernels: in CUDA C++.
        architecture: a real architecture, "sm_80" for A100, "sm_90" for H100 and H200, "sm_100" for B200; or its
            number.

    Raises:
        ArgumentError: `architecture` is not one that NVRTC compiles for, or a kernel is not in CUDA C++.
        BackendError: NVRTC or CUDA's headers are missing.
        CodegenError: NVRTC rejects a kernel; the message names it.
    """
    name = architecture_name(architecture)
    foreign = next((k for k in kernels if k.language != "cuda"), None)
    if foreign is not None:
        raise ArgumentError(f"the kernel of %{foreign.name} is in {foreign.language}; compile the program for 'cuda'")
    distinct = list({k.symbol: k for k in kernels}.values())
    if not distinct:
        return {}
    compiler = nvrtc.compiler()
    _check_supported(compiler, name)
    build = _Build(compiler, name, object_cache())
    with ThreadPoolExecutor(min(available_cores(), MOST_THREADS, len(distinct))) as pool:
        return dict(zip((k.symbol for k in distinct), pool.map(build, distinct), strict=True))


def _check_supported(compiler: nvrtc.Compiler, name: str) -> None:
    """Raise ArgumentError if NVRTC cannot compile for an architecture; it would blame a kernel."""
    found, known = ARCHITECTURE.fullmatch(name), compiler.architectures()
    if found is not None and known and int(found[1]) not in known:
        listed = ", ".join(f"sm_{n}" for n in known)
        raise ArgumentError(f"NVRTC {compiler.version()} compiles for {listed}, not for {name}")


class _Build:
    """Finds or compiles the cubin of one kernel; threads may call it at once."""

    def __init__(self, compiler: nvrtc.Compiler, architecture: str, cache: ObjectCache) -> None:
        self._compiler, self._architecture, self._cache = compiler, architecture, cache
        self._options = (*nvrtc.OPTIONS, f"--gpu-architecture={architecture}", _VERBOSE)
        identity = "\n".join([compiler.version(), *self._options])
        self._index = f"kernels-nvrtc-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def __call__(self, kernel: KernelSpec) -> Cubin:
        source = f"// {kernel.symbol}: {kernel.signature}\n{nvrtc.source_of([kernel])}"
        key = hashlib.sha256(source.encode()).hexdigest()
        path = self._cache.find(self._index, key)
        found = None if path is None else read_cubin(kernel.symbol, self._architecture, path.read_bytes())
        if found is not None:
            return found
        made = self._compiled(kernel, source)
        self._cache.record(self._index, key, self._cache.store(stored_cubin(made)))
        return made

    def _compiled(self, kernel: KernelSpec, source: str) -> Cubin:
        try:
            image, log = self._compiler.compile(source, (*self._options, *nvrtc.header_options(source)))
        except CodegenError as e:
            raise CodegenError(f"the kernel {kernel.symbol} of %{kernel.name} cannot be compiled: {e}") from None
        return Cubin(kernel.symbol, self._architecture, image, _resources(log, kernel.shared_bytes))


def _resources(log: str, dynamic_bytes: int) -> Resources:
    """Return what the assembler reports in its verbose log, zeros if it reports nothing, and dynamic shared memory."""

    def number(pattern: str) -> int:
        return max((int(n) for n in re.findall(pattern, log)), default=0)

    return Resources(
        registers=number(r"Used (\d+) registers"),
        shared_bytes=number(r"(\d+) bytes smem") + dynamic_bytes,
        stack_bytes=number(r"(\d+) bytes stack frame"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
        dynamic_bytes=dynamic_bytes,
    )


# ---- the form on disk: one line of JSON, then the image


def stored_cubin(cubin: Cubin) -> bytes:
    """Return a cubin as it is stored: a line of JSON with its resources, then the image."""
    return json.dumps(asdict(cubin.resources)).encode() + b"\n" + cubin.image


def read_cubin(symbol: str, architecture: str, data: bytes) -> Cubin | None:
    """Return a stored cubin, or None if it is damaged."""
    head, _, image = data.partition(b"\n")
    try:
        values: Mapping[str, int] = json.loads(head)
        return Cubin(symbol, architecture, image, Resources(**values))
    except (ValueError, TypeError):
        return None
