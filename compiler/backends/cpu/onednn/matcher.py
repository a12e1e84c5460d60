"""Which instructions oneDNN computes: what it can, and what it is likely to compute faster than our kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from compiler.analysis.flops import instruction_flops
from compiler.backends.cpu.onednn.convolution import describe_convolution
from compiler.backends.cpu.onednn.description import Description
from compiler.backends.cpu.onednn.library import OneDnn, load_onednn
from compiler.errors import BackendError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.runtime.libraries import LibraryCall

MIN_FLOPS = 100_000
"""Convolutions with fewer floating point operations are computed by our kernels: a call takes a few microseconds."""

MIN_FLOPS_OF_THREADS = 2_000_000
"""Calls with fewer operations run on one thread."""


@dataclass(frozen=True)
class OneDnnMatcher:
    """The `KernelLibrary` of the cpu backend."""

    def refusal(self, i: HloInstruction) -> str | None:
        """Return why oneDNN should not compute an instruction, or None if it should."""
        try:
            _planned(i)
        except (UnsupportedError, BackendError) as e:
            return str(e)
        return None

    def call_of(self, instruction: HloInstruction) -> LibraryCall | None:
        """Implement `KernelLibrary.call_of`."""
        try:
            return _planned(instruction)
        except (UnsupportedError, BackendError):
            return None


def _planned(i: HloInstruction) -> LibraryCall:
    """Return the call that computes an instruction; raise UnsupportedError or BackendError with the reason if none."""
    if i.opcode is not Opcode.CONVOLUTION:
        raise UnsupportedError(f"oneDNN computes no {i.opcode.text} here")
    flops = instruction_flops(i)
    if flops < MIN_FLOPS:
        raise UnsupportedError(f"%{i.name} is too small for a library call")
    description = replace(describe_convolution(i), one_thread=flops < MIN_FLOPS_OF_THREADS)
    return LibraryCall(description.to_json(), tuple(range(len(i.operands))), scratch_bytes(description), flops)


def scratch_bytes(description: Description) -> int:
    """Return the size of a primitive's scratch memory.

    Raises:
        UnsupportedError: oneDNN has no implementation of the primitive.
        BackendError: oneDNN is not available.
    """
    found = _scratch_bytes(load_onednn(), description)
    if found is None:
        raise UnsupportedError(f"oneDNN has no implementation of this {description.operation}")
    return found


@functools.lru_cache(maxsize=1024)
def _scratch_bytes(library: OneDnn, description: Description) -> int | None:
    step = library.create(description)
    return None if step is None else step.scratch_bytes
