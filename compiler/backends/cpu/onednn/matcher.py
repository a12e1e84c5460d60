"""Which instructions oneDNN computes: what it can, and what it is likely to compute faster than our kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from compiler.analysis.flops import instruction_flops
from compiler.analysis.post_operations import MIN_CONVOLUTION_FLOPS, suits_call
from compiler.backends.cpu.onednn.convolution import describe_convolution, scales_rows
from compiler.backends.cpu.onednn.description import Description
from compiler.backends.cpu.onednn.epilogues import describe_epilogue, epilogue_in, product_of
from compiler.backends.cpu.onednn.library import OneDnn, load_onednn
from compiler.backends.cpu.onednn.pooling import describe_pooling, suits_rows, suits_scan, suits_slices
from compiler.backends.cpu.onednn.products import describe_product, suits_blas, suits_reduction
from compiler.errors import BackendError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.convolution_patches import fills_tiles, suits_patches, suits_tiles
from compiler.passes.dots.convolution_simplifier import is_product
from compiler.passes.reductions.separable_windows import suits_separation
from compiler.runtime.libraries import LibraryCall

MIN_FLOPS = MIN_CONVOLUTION_FLOPS
"""Least number of operations of convolutions and products of the library."""

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
    if i.opcode is Opcode.FUSION and (hero := product_of(i)) is not None:
        return _epilogue_refusal(i, hero)
    if instruction_flops(i) < (MIN_FLOPS if i.opcode in (Opcode.CONVOLUTION, Opcode.DOT) else MIN_POOLING_FLOPS):
        return f"%{i.name} is too small for a library call"
    if i.opcode in (Opcode.REDUCE_WINDOW, Opcode.FUSION) and suits_scan(i):
        return f"%{i.name} is a scan"
    if i.opcode is Opcode.CONVOLUTION and scales_rows(i):
        return f"%{i.name} suits a loop over rows"
    if i.opcode is Opcode.CONVOLUTION and (is_product(i) or suits_tiles(i) or fills_tiles(i) or suits_patches(i)):
        return f"%{i.name} suits a matrix product"
    if i.opcode is Opcode.REDUCE_WINDOW and suits_rows(i):
        return f"%{i.name} suits a loop over rows"
    if i.opcode is Opcode.REDUCE_WINDOW and suits_separation(i):
        return f"%{i.name} is faster dimension by dimension"
    if i.opcode is Opcode.REDUCE_WINDOW and suits_slices(i):
        return f"%{i.name} suits a kernel that other ops can join"
    if i.opcode is Opcode.DOT and suits_reduction(i):
        return f"%{i.name} suits a reduction"
    reason = refusal(i)
    if reason is None and i.opcode is Opcode.DOT and suits_blas(i):
        return f"%{i.name} suits BLAS"
    return reason


def _epilogue_refusal(i: HloInstruction, hero: HloInstruction) -> str | None:
    """Return why the product or convolution of a fusion should not be a call with what follows it, or None."""
    if not suits_call(hero):
        return f"%{hero.name} suits a generated kernel"
    reason = preference_refusal(hero) or refusal(i)
    if reason is None and not epilogue_in(i).is_faster:
        return f"%{i.name} is not faster than a call and a kernel"
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
    description, operands = _described(i)
    description = replace(description, one_thread=not (default_threads(i) if threads is None else threads))
    description, scratch_bytes = implemented(description)
    return LibraryCall(description.to_json(), operands, scratch_bytes, instruction_flops(i))


def _described(i: HloInstruction) -> tuple[Description, tuple[int, ...]]:
    """Return the primitive that computes an instruction, and the positions of the operands that it reads."""
    if i.opcode is Opcode.FUSION and product_of(i) is not None:
        return describe_epilogue(i)
    describe = _DESCRIBE.get(i.opcode)
    if describe is None:
        raise UnsupportedError(f"oneDNN computes no {i.opcode.text} here")
    if i.opcode is Opcode.FUSION and i.attributes["kind"] != "kCustom":
        raise UnsupportedError("oneDNN computes windows, products and convolutions")
    description = describe(i)
    return description, (0,) if description.is_pooling else tuple(range(len(i.operands)))


_DESCRIBE: Mapping[Opcode, Callable[[HloInstruction], Description]] = {
    Opcode.CONVOLUTION: describe_convolution,
    Opcode.DOT: describe_product,
    Opcode.REDUCE_WINDOW: describe_pooling,
    Opcode.FUSION: describe_pooling,
}

_SLOW = ("ref", "simple")
"""Beginnings of the names of implementations without vector code."""

_NATIVE: Mapping[T, tuple[str, ...]] = {
    T.BF16: ("bf16", "amx"),
    T.F16: ("fp16", "amx"),
    T.S8: ("vnni", "amx"),
    T.U8: ("vnni", "amx"),
}
"""Parts of the names of implementations that use a processor's instructions for a narrow type. Those for bytes that do
without them halve the weights or add pairs of products in 16 bits, which loses bits."""


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
        parts = _NATIVE.get(d.tensors[0].element_type, ("",))
        if not name.startswith(_SLOW) and any(part in name for part in parts):
            return d, size
        reason = f"oneDNN has no fast implementation of this {description.operation}, only {name}"
    raise UnsupportedError(reason)


@functools.lru_cache(maxsize=1024)
def _created(library: OneDnn, description: Description) -> tuple[int, str] | None:
    step = library.create(description)
    return None if step is None else (step.scratch_bytes, step.implementation)
