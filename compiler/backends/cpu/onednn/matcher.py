"""Which instructions oneDNN computes: what it can, and what it is likely to compute faster than our kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from compiler.analysis.flops import instruction_flops
from compiler.backends.cpu.onednn.convolution import describe_convolution, scales_rows
from compiler.backends.cpu.onednn.description import Description
from compiler.backends.cpu.onednn.library import OneDnn, load_onednn
from compiler.backends.cpu.onednn.pooling import describe_pooling, suits_rows
from compiler.backends.cpu.onednn.products import describe_product, suits_blas, suits_reduction
from compiler.errors import BackendError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.convolution_patches import suits_tiles
from compiler.passes.dots.convolution_simplifier import is_product
from compiler.runtime.libraries import LibraryCall

MIN_FLOPS = 100_000
"""Convolutions with fewer floating point operations are computed by our kernels: a call takes a few microseconds."""

MIN_POOLING_FLOPS = 10_000
"""Poolings with fewer operations are computed by our kernels."""

MIN_FLOPS_OF_THREADS = 2_000_000
"""Calls with fewer operations run on one thread."""


THREADS = "threads"
"""The knob of a call: 0 for one thread, 1 for all threads of the pool."""


def refusal(i: HloInstruction) -> str | None:
    """Return why oneDNN cannot compute an instruction, or None if it can."""
    try:
        call_of(i)
    except (UnsupportedError, BackendError) as e:
        return str(e)
    return None


def preference_refusal(i: HloInstruction) -> str | None:
    """Return why oneDNN should not compute an instruction by default, or None if it should.

    Small calls, and products that suit BLAS, are computed by others.
    """
    if i.opcode not in _DESCRIBE:
        return f"oneDNN computes no {i.opcode.text} here"
    if instruction_flops(i) < (MIN_FLOPS if i.opcode in (Opcode.CONVOLUTION, Opcode.DOT) else MIN_POOLING_FLOPS):
        return f"%{i.name} is too small for a library call"
    if i.opcode is Opcode.CONVOLUTION and scales_rows(i):
        return f"%{i.name} suits a loop over rows"
    if i.opcode is Opcode.CONVOLUTION and (is_product(i) or suits_tiles(i)):
        return f"%{i.name} suits a matrix product"
    if i.opcode is Opcode.REDUCE_WINDOW and suits_rows(i):
        return f"%{i.name} suits a loop over rows"
    if i.opcode is Opcode.DOT and suits_reduction(i):
        return f"%{i.name} suits a reduction"
    reason = refusal(i)
    if reason is None and i.opcode is Opcode.DOT and suits_blas(i):
        return f"%{i.name} suits BLAS"
    return reason


def default_threads(i: HloInstruction) -> int:
    """Return the default of the knob THREADS: a small call runs on one thread."""
    return int(instruction_flops(i) >= MIN_FLOPS_OF_THREADS)


def call_of(i: HloInstruction, threads: int | None = None) -> LibraryCall:
    """Return the call that computes an instruction.

    Args:
        i: the instruction.
        threads: the value of the knob THREADS; None for its default.

    Raises:
        UnsupportedError: oneDNN has nothing that computes it.
        BackendError: oneDNN is not available.
    """
    describe = _DESCRIBE.get(i.opcode)
    if describe is None:
        raise UnsupportedError(f"oneDNN computes no {i.opcode.text} here")
    if i.opcode is Opcode.FUSION and i.attributes["kind"] != "kCustom":
        raise UnsupportedError("oneDNN computes only custom fusions")
    description = replace(describe(i), one_thread=not (default_threads(i) if threads is None else threads))
    description, scratch_bytes = implemented(description)
    operands = (0,) if description.is_pooling else tuple(range(len(i.operands)))
    return LibraryCall(description.to_json(), operands, scratch_bytes, instruction_flops(i))


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
