"""The work of ops with algorithms of their own, in a library and in the kernels that are generated for them."""

from __future__ import annotations

import math

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import ConvDimLabels, Window

NETWORK_ROW, NETWORK_ROWS = 16, 16
"""Elements of the longest row whose sort by a key is a network for all types, and the least number of such rows."""
TEMPLATE_OPS = frozenset({Opcode.DOT, Opcode.CONVOLUTION, Opcode.SCATTER, Opcode.SORT, Opcode.REDUCE_WINDOW})
"""Opcodes whose kernels are generated from a template, which may compute other ops before and after them."""
LARGE_PRODUCT, DEEP_PRODUCT = 1 << 24, 8192
"""Multiplications of one matrix, and bytes along the contracted dimensions, from which on the packing and blocking of a
library are worth it; measured, see results/kernels/products.md."""
LARGE_SLOWDOWN, HALF_SLOWDOWN = 1.5, 2.0
"""How much longer a generated product then takes, and one of half types, for which libraries use special
instructions."""
REPACKED_FROM = 512
"""Rows or columns of a block for which an operand is computed once."""
SCAN_COLUMNS = 16
"""Adjacent columns from which on a scan advances in vectors."""
TRACKS_FROM, FEW_ROWS = 1024, 32
"""Elements of a row from which on a scan divides it into tracks, if there are fewer rows than that."""
CONVOLUTION_SLOWDOWN, SPREAD_SLOWDOWN, DEPTHWISE_SLOWDOWN = 1.3, 2.0, 7.0
"""How much longer a generated convolution takes than that of a library: with the features of the input adjacent in
memory, with others adjacent, and with one input feature per group. Measured on one thread with AVX-512, see
results/kernels/convolutions.md."""


def library_flops(i: HloInstruction) -> float:
    """Return the scalar operations of an op that is not a generated kernel."""
    out = sum(s.num_elements for s in i.shape.leaves())
    match i.opcode:
        case Opcode.DOT:
            dims = i.operands[0].shape.dimensions
            contracted: int = math.prod(dims[d] for d in i.attr("lhs_contracting_dims", ()))
            return 2.0 * out * contracted
        case Opcode.CONVOLUTION:
            kernel, labels = i.operands[1].shape, i.attributes["dim_labels"].rhs
            outputs: int = kernel.dimensions[labels.index("o")]
            return 2.0 * out * kernel.num_elements / max(1, outputs)
        case Opcode.SORT | Opcode.TOPK | Opcode.FFT:
            n = max((o.shape.num_elements for o in i.operands), default=1)
            last = i.operands[0].shape.dimensions[-1] if i.operands[0].shape.dimensions else 1
            return 5.0 * n * math.log2(max(2, last))
        case Opcode.CHOLESKY | Opcode.TRIANGULAR_SOLVE:
            n = i.operands[0].shape.dimensions[-1]
            return float(out * n)
        case Opcode.SCATTER:
            return 4.0 * sum(o.shape.num_elements for o in i.operands[1:])
        case Opcode.REDUCE_WINDOW | Opcode.SELECT_AND_SCATTER:
            window: Window = i.attr("window", Window())
            if _is_cumulative(i, window):
                return 2.0 * out
            return float(out * math.prod(w.size for w in window.dims))
        case _:
            return float(out * i.opcode.row.flops)


def scans_rows(i: HloInstruction) -> bool:
    """Check for a cumulative reduction along rows, of which adjacent ones do not advance together in vectors."""
    window: Window = i.attr("window", Window())
    long = [d for d, w in enumerate(window.dims) if w.size > 1]
    dims = i.operands[0].shape.dimensions
    return len(long) == 1 and math.prod(dims[long[0] + 1 :]) < SCAN_COLUMNS


def _has_tracks(i: HloInstruction) -> bool:
    """Check whether few long rows are divided into tracks, whose elements are computed twice."""
    dims = i.operands[0].shape.dimensions
    long = max((w.size for w in i.attr("window", Window()).dims), default=1)
    return scans_rows(i) and long >= TRACKS_FROM and math.prod(dims) < FEW_ROWS * long


def _is_cumulative(i: HloInstruction, window: Window) -> bool:
    """Check whether each window is the one before it and one more element, so that a scan computes them."""
    long = [(w, n) for w, n in zip(window.dims, i.operands[0].shape.dimensions, strict=False) if w.size > 1]
    return len(long) == 1 and all(w.size == n and n - 1 in (w.pad_low, w.pad_high) for w, n in long)


def product_time(i: HloInstruction) -> float:
    """Return the scalar operations of a dot or a convolution, times how much longer its generated kernel takes."""
    return library_flops(i) * convolution_slowdown(i) if i.opcode is Opcode.CONVOLUTION else _dot_time(i)


def convolution_slowdown(i: HloInstruction) -> float:
    """Return how much longer the generated kernel of a convolution takes than a library."""
    labels: ConvDimLabels = i.attributes["dim_labels"]
    x, kernel = (o.shape for o in i.operands)
    if i.attr("feature_group_count", 1) > 1 and kernel.dimensions[labels.rhs.index("i")] == 1:
        return DEPTHWISE_SLOWDOWN
    halves = x.element_type.is_half
    spread = x.dimensions[labels.lhs.index("f")] > 1 and labels.lhs[-1] != "f"
    return (SPREAD_SLOWDOWN if spread else CONVOLUTION_SLOWDOWN) * (HALF_SLOWDOWN if halves else 1.0)


def _dot_time(dot: HloInstruction) -> float:
    flops, (lhs, rhs) = library_flops(dot), dot.operands[:2]
    if lhs.shape.element_type.is_half:
        return flops * HALF_SLOWDOWN
    batch = math.prod(lhs.shape.dimensions[d] for d in dot.attr("lhs_batch_dims", ()))
    depth = math.prod(lhs.shape.dimensions[d] for d in dot.attr("lhs_contracting_dims", ()))
    matrix = max(1, batch * depth)
    narrow = min(lhs.shape.num_elements // matrix, rhs.shape.num_elements // matrix) <= 1
    large = flops > 2.0 * LARGE_PRODUCT * batch or depth * lhs.shape.element_type.byte_size > DEEP_PRODUCT
    return flops * (LARGE_SLOWDOWN if narrow or large else 1.0)


def operand_reads(i: HloInstruction, number: int) -> float:
    """Return how often a template computes each element of an operand that it does not read from memory."""
    if i.opcode is Opcode.SORT:
        root = i.attributes["to_apply"].root
        by_key = root.opcode is Opcode.COMPARE and (
            not root.operands[0].shape.element_type.is_float or root.attr("type") == "TOTALORDER"
        )
        shape, rows = i.operands[0].shape, i.operands[0].shape.dimensions[i.attributes["dimensions"][0]]
        if by_key and rows <= NETWORK_ROW and shape.num_elements >= NETWORK_ROWS * rows:
            return 1.0  # a network of scalars
        # For the key, or for every comparison; and where the element is moved.
        return 2.0 if by_key else 2.0 * math.log2(max(2, rows)) + 1.0
    if i.opcode is Opcode.REDUCE_WINDOW:
        return 2.0 if _has_tracks(i) else 1.0  # the totals of tracks are needed first
    if i.opcode not in (Opcode.DOT, Opcode.CONVOLUTION):
        return 1.0
    shape = i.operands[number].shape
    other = library_flops(i) / 2.0 / max(1, shape.num_elements)
    if i.opcode is Opcode.CONVOLUTION and number == 0:
        # Each element is computed for all windows that contain it.
        labels: ConvDimLabels = i.attributes["dim_labels"]
        outputs = i.shape.dimensions[labels.out.index("f")]
        return max(1.0, other / outputs) * 2.0 * math.ceil(outputs / REPACKED_FROM)
    # Its elements are computed into a packed block, which costs more than to read them.
    return 2.0 * math.ceil(other / REPACKED_FROM)
