"""What a convolution computes: a layer forward, or a gradient."""

from __future__ import annotations

import math

from compiler.ir.attributes import ConvDimLabels
from compiler.ir.instruction import HloInstruction


def is_weights_gradient(i: HloInstruction) -> bool:
    """Check for a gradient of weights: the batch is grouped, or the kernel has more positions than the result."""
    labels: ConvDimLabels = i.attributes["dim_labels"]
    kernel, out = (
        math.prod(n for n, c in zip(s.dimensions, text, strict=True) if c.isdigit())
        for s, text in ((i.operands[1].shape, labels.rhs), (i.shape, labels.out))
    )
    return bool(i.attr("batch_group_count", 1) > 1 or (i.attr("feature_group_count", 1) == 1 and kernel > out))
