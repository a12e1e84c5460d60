"""Kernels that overwrite an operand: a result takes the memory of an operand that nothing reads afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.coalesce import Timeline, timeline
from compiler.runtime.thunks import KernelThunk, Thunk, walk

__all__ = ["share_buffers"]


def share_buffers(thunks: list[Thunk], results: Sequence[Buffer]) -> None:
    """Merge operands and results of kernels that may share a buffer, in place, until no more can be merged.

    An operand is merged with a result of the same size if the kernel allows it, the operand is a temporary that nothing
    reads after the kernel, and the memory of the result is not used before. The arena becomes smaller, and fewer cache
    lines are touched.

    Args:
        thunks: the steps of a program in their final order.
        results: the buffers that are read after the last step.
    """
    kernels = [t for t in walk(thunks) if isinstance(t, KernelThunk) and t.spec.in_place]
    while _run_round(kernels, timeline(thunks, results)):
        pass


def _run_round(kernels: Sequence[KernelThunk], t: Timeline) -> bool:
    """Merge buffers; return whether any were. Each takes part in one merge: its live range is not known afterwards."""
    merged: set[Buffer] = set()
    for kernel in kernels:
        for read, written in _pairs(kernel):
            if read in merged or written in merged or not _can_share(read, written, t.step[kernel], t):
                continue
            merged |= {read, written}
            read.merge(written)
    return bool(merged)


def _pairs(kernel: KernelThunk) -> list[tuple[Buffer, Buffer]]:
    """Return the operands and results of a kernel that may share a buffer wherever the operand is read."""
    inputs = [b.resolve() for b in kernel.inputs]
    outputs = [b.resolve() for b in kernel.outputs]
    allowed = set(kernel.spec.in_place)
    return [
        (read, written)
        for read in dict.fromkeys(inputs)
        for o, written in enumerate(outputs, len(inputs))
        if read is not written
        and read not in outputs
        and outputs.count(written) == 1
        and written not in inputs
        and all((i, o) in allowed for i, b in enumerate(inputs) if b is read)
    ]


def _can_share(read: Buffer, written: Buffer, step: int, t: Timeline) -> bool:
    """Check that an operand is a temporary that ends at a step, and that its result's memory is not used before it."""
    if read.kind is not BufferKind.TEMPORARY or read.size != written.size:
        return False
    if t.interval(read).end != step or not t.writes.get(read):
        return False
    if written.kind is BufferKind.TEMPORARY:
        return t.interval(written).start == step
    uses = [x[0] for x in (t.reads.get(written), t.writes.get(written)) if x]
    return written.kind is BufferKind.OUTPUT and min(uses) == step
