"""Which instructions oneDNN computes: what it can, and what it is likely to compute faster than our kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from compiler.analysis.flops import instruction_flops
from compiler.backends.cpu.onednn.convolution import describe_convolution
from compiler.backends.cpu.onednn.description import Description
from compiler.backends.cpu.onednn.library import OneDnn, load_onednn
from compiler.backends.cpu.onednn.pooling import describe_pooling
from compiler.backends.cpu.onednn.products import describe_product, suits_blas
from compiler.errors import BackendError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.libraries import LibraryCall

MIN_FLOPS = 100_000
"""Convolutions with fewer floating point operations are computed by our kernels: a call takes a few microseconds."""

MIN_POOLING_FLOPS = 10_000
"""Poolings with fewer operations are computed by our kernels."""

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
        if instruction.opcode not in _DESCRIBE:
            return None
        try:
            return _planned(instruction)
        except (UnsupportedError, BackendError):
            return None


def _planned(i: HloInstruction) -> LibraryCall:
    """Return the call that computes an instruction; raise UnsupportedError or BackendError with the reason if none."""
    describe = _DESCRIBE.get(i.opcode)
    if describe is None:
        raise UnsupportedError(f"oneDNN computes no {i.opcode.text} here")
    if i.opcode is Opcode.FUSION and i.attributes["kind"] != "kCustom":
        raise UnsupportedError("oneDNN computes only custom fusions")
    flops = instruction_flops(i)
    if flops < (MIN_FLOPS if i.opcode in (Opcode.CONVOLUTION, Opcode.DOT) else MIN_POOLING_FLOPS):
        raise UnsupportedError(f"%{i.name} is too small for a library call")
    if i.opcode is Opcode.DOT and suits_blas(i):
        raise UnsupportedError(f"%{i.name} suits BLAS")
    description = replace(describe(i), one_thread=flops < MIN_FLOPS_OF_THREADS)
    description, scratch_bytes = implemented(description)
    operands = (0,) if description.is_pooling else tuple(range(len(i.operands)))
    return LibraryCall(description.to_json(), operands, scratch_bytes, flops)


_DESCRIBE: Mapping[Opcode, Callable[[HloInstruction], Description]] = {
    Opcode.CONVOLUTION: describe_convolution,
    Opcode.DOT: describe_product,
    Opcode.REDUCE_WINDOW: describe_pooling,
    Opcode.FUSION: describe_pooling,
}

_NARROW = frozenset({T.BF16, T.F16, T.S8, T.U8})
_SLOW = ("ref", "simple")
"""Beginnings of the names of implementations without vector code."""

_NATIVE = ("bf16", "fp16", "vnni", "int8", "amx")
"""Parts of the names of implementations that use a processor's instructions for narrow types."""


def implemented(description: Description) -> tuple[Description, int]:
    """Return a description that oneDNN has a fast implementation of, possibly in other layouts, and its scratch bytes.

    Raises:
        UnsupportedError: oneDNN has no implementation of the primitive, or no fast one.
        BackendError: oneDNN is not available.
    """
    library = load_onednn()
    reason = f"oneDNN has no implementation of this {description.operation}"
    for d in dict.fromkeys((description, description.with_free_layouts())):
        found = _created(library, d)
        if found is None:
            continue
        size, name = found
        narrow = d.tensors[0].element_type in _NARROW
        if not name.startswith(_SLOW) and (not narrow or any(part in name for part in _NATIVE)):
            return d, size
        reason = f"oneDNN has no fast implementation of this {description.operation}, only {name}"
    raise UnsupportedError(reason)


@functools.lru_cache(maxsize=1024)
def _created(library: OneDnn, description: Description) -> tuple[int, str] | None:
    step = library.create(description)
    return None if step is None else (step.scratch_bytes, step.implementation)
