"""The features of a kernel: a vector of fixed size for choosers that learn."""

from __future__ import annotations

import math

from compiler.analysis.cost_model import DeviceModel, is_priced_as_kernel
from compiler.analysis.element_work import needs_loop
from compiler.analysis.kernel_summary import KernelSummary, summarize
from compiler.analysis.trip_count import trip_count_of
from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir import HloInstruction, Opcode, Trait
from compiler.ir.callgraph import callees_first

KINDS = (
    "loop", "reduction", "column-reduction", "block", "transpose", "in-place-update", "scatter", "sort", "loop-kernel",
    "product", "attention", "top-k", "scan",
)  # fmt: skip
"""The kinds of generated kernels, see `loop_ir.Kernel`; any other kind and a library call count as "other"."""
FEATURE_NAMES = (
    *(f"kind {kind}" for kind in (*KINDS, "other")),
    "log elements", "log bytes read", "log bytes written", "log flops", "log flops per byte", "log statements",
    "log instructions", "log inputs", "log outputs", "log runs", "log seconds", "has reduction", "log reduced elements",
    "log trips", "log expensive ops", "log innermost extent", "log outermost extent", "rank", "element bits",
    "transposes", "broadcasts", "slices", "gathers", "updates in place", "fits into cache", "log units", "is cpu",
)  # fmt: skip
"""What the entries of `kernel_features` mean. Logarithms are base 2 and scaled, so that entries are of order one."""

_SLICES = frozenset({Opcode.SLICE, Opcode.PAD, Opcode.CONCATENATE, Opcode.REVERSE})
_GATHERS = frozenset({Opcode.GATHER, Opcode.DYNAMIC_SLICE, Opcode.SCATTER})


def kernel_features(
    instruction: HloInstruction, spec: KernelSpec | None, device: DeviceModel, seconds: float, runs: float
) -> tuple[float, ...]:
    """Return the features of a kernel, one for each of FEATURE_NAMES.

    Args:
        instruction: the instruction that becomes the kernel.
        spec: the generated kernel with the default schedule, if there is one.
        device: the device it runs on.
        seconds: estimated time of one execution.
        runs: expected number of executions per run of the program.
    """
    kind = spec.kind if spec is not None and spec.kind in KINDS else "other"
    inside = [i for c in callees_first(list(instruction.called_computations())) for i in c.instructions]
    inside = inside or [instruction]
    opcodes = {i.opcode for i in inside}
    summary = summarize(instruction) if is_priced_as_kernel(instruction) else KernelSummary()
    leaves = [s for s in instruction.shape.leaves() if s.is_array]
    reads = summary.bytes_read or float(sum(o.shape.byte_size for o in instruction.operands))
    writes = summary.bytes_written or float(instruction.shape.byte_size)
    flops = summary.flops or float(spec.flops if spec is not None else 0)
    largest = max(leaves, key=lambda s: s.num_elements, default=None)
    dims = largest.dimensions if largest is not None else ()
    reduced = [i.operand(0).shape.num_elements / max(1, i.shape.num_elements)
               for i in inside if i.opcode is Opcode.REDUCE and i.shape.is_array]  # fmt: skip
    trips = trip_count_of(instruction) if instruction.opcode is Opcode.WHILE else None
    return (
        *(float(kind == k) for k in (*KINDS, "other")),
        _log(largest.num_elements if largest is not None else 0, 24),
        _log(reads, 26),
        _log(writes, 26),
        _log(flops, 30),
        _log(flops / max(1.0, reads + writes), 8),
        _log(summary.statements, 8),
        _log(len(inside), 8),
        _log(len(set(instruction.operands)), 4),
        _log(len(leaves), 4),
        _log(runs, 14),
        _log(seconds * 1e9, 30),
        float(any(needs_loop(i) for i in inside)),
        _log(max(reduced, default=0.0), 16),
        _log(trips or 0, 14),
        _log(sum(i.opcode.has(Trait.EXPENSIVE) for i in inside), 6),
        _log(dims[-1] if dims else 1, 12),
        _log(dims[0] if dims else 1, 12),
        len(dims) / 4,
        (largest.element_type.bits if largest is not None else 0) / 32,
        float(Opcode.TRANSPOSE in opcodes),
        float(Opcode.BROADCAST in opcodes),
        float(bool(opcodes & _SLICES)),
        float(bool(opcodes & _GATHERS)),
        float(summary.in_place),
        float(reads + writes <= device.cache_bytes),
        _log(device.units, 8),
        float(device.name.startswith("cpu")),
    )


def _log(value: float, scale: float) -> float:
    return math.log2(1.0 + max(0.0, value)) / scale
