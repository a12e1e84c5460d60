"""What a convolution computes: a layer forward, or a gradient."""

from __future__ import annotations

import math

from compiler.ir.attributes import ConvDimLabels, Window
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

FEW_OUTPUTS = 3
"""Number of output features up to which sums of scaled rows are faster than a library's blocks of features."""
FEW_FEATURES, FEW_OUTPUTS_OF_FEW = 4, 8
"""Number of features of the input up to which that also holds for more output features."""
MIN_ROW = 8
"""Positions per row from which on vectors along rows are not mostly empty."""
FEW = 16
"""Number of features up to which a library's blocks of features are mostly empty."""
MAX_SLICES = 9
"""Elements of a depthwise kernel up to which ops add the slices under all of them by default."""
MAX_INPUT_DILATION = 2
"""Largest distance of the input's elements up to which a loop that tests which of them it reads is fast."""


def is_weights_gradient(i: HloInstruction) -> bool:
    """Check for a gradient of weights: the batch is grouped, or the kernel has more positions than the result."""
    labels: ConvDimLabels = i.attributes["dim_labels"]
    kernel, out = (
        math.prod(n for n, c in zip(s.dimensions, text, strict=True) if c.isdigit())
        for s, text in ((i.operands[1].shape, labels.rhs), (i.shape, labels.out))
    )
    return bool(i.attr("batch_group_count", 1) > 1 or (i.attr("feature_group_count", 1) == 1 and kernel > out))


def is_depthwise(i: HloInstruction) -> bool:
    """Check for a convolution with a kernel and one output feature for each feature of the input."""
    return bool(i.attr("feature_group_count", 1) == _features(i) == _outputs(i))


def slides_along_rows(i: HloInstruction) -> bool:
    """Check for few output features, or one per group, and for adjacent positions that are adjacent in memory.

    Each row of the result is a sum of rows of the input, each scaled by an element of the kernel.
    """
    return _has_few_outputs(i) and _has_rows(i)


def _has_few_outputs(i: HloInstruction) -> bool:
    features, outputs, groups = _features(i), _outputs(i), i.attr("feature_group_count", 1)
    few = FEW_OUTPUTS_OF_FEW if features <= FEW_FEATURES else FEW_OUTPUTS
    if i.attr("batch_group_count", 1) > 1 or (groups != outputs and (groups > 1 or outputs > few)):
        return False
    return all(w.lhs_dilate <= MAX_INPUT_DILATION for w in i.attr("window", Window()).dims)


def _has_rows(i: HloInstruction) -> bool:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    lhs = labels.lhs.replace("f", "") if _features(i) == 1 else labels.lhs
    out = labels.out.replace("f", "") if _outputs(i) == 1 else labels.out
    return lhs[-1].isdigit() and out[-1] == lhs[-1]


def _features(i: HloInstruction) -> int:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    return i.operands[0].shape.dimensions[labels.lhs.index("f")]


def _outputs(i: HloInstruction) -> int:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    return i.shape.dimensions[labels.out.index("f")]


def window_size(i: HloInstruction) -> int:
    """Return the number of elements of the kernel for one output feature."""
    labels: ConvDimLabels = i.attributes["dim_labels"]
    return math.prod(n for n, c in zip(i.operands[1].shape.dimensions, labels.rhs, strict=True) if c != "o")


def suits_windows(i: HloInstruction) -> bool:
    """Check for a convolution of which a kernel sums scaled rows in a loop, rather than in ops that others may join.

    `rows_last` puts the positions last where they are not. That takes longer than a library if there are many outputs.
    """
    if i.opcode is not Opcode.CONVOLUTION or i.shape.element_type.is_complex or not _has_few_outputs(i):
        return False
    window: Window = i.attr("window", Window())
    if not window.dims or any(w.lhs_dilate > 1 for w in window.dims):
        return False
    d = _row_dimension(i)
    if window.dims[d].stride > 1 or window.dims[d].size == 1:
        return False
    labels: ConvDimLabels = i.attributes["dim_labels"]
    if i.shape.dimensions[labels.out.index(str(d))] < MIN_ROW * (1 + (_outputs(i) > FEW_OUTPUTS)):
        return False
    if not _has_rows(i):
        return _outputs(i) < FEW
    return not is_depthwise(i) or window_size(i) > MAX_SLICES


def rows_last(i: HloInstruction) -> ConvDimLabels:
    """Return labels of a convolution with adjacent positions adjacent in memory: its own if they are."""
    labels: ConvDimLabels = i.attributes["dim_labels"]
    if _has_rows(i):
        return labels
    order = "bf" + "".join(sorted(c for c in labels.out if c.isdigit()))
    return ConvDimLabels(order, labels.rhs, order)


def _row_dimension(i: HloInstruction) -> int:
    """Return the spatial dimension along the rows."""
    last = [c for c in rows_last(i).out if c.isdigit()][-1]
    return int(last)
