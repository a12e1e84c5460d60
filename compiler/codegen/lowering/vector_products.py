"""Products of matrices with vectors as multiplications and sums, which read each element of the matrix once.

The template of products divides both operands into blocks and packs those whose elements are not adjacent. For a single
column it would transpose the whole matrix, which takes longer than the product.
"""

from __future__ import annotations

import math

from compiler.ir import HloComputation, HloInstruction, HloModule
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot
from compiler.passes.dots.dot_strength_reduction import multiply_and_sum
from compiler.passes.infrastructure.builder import Builder


def with_vector_product_as_sum(fused: HloComputation, dot: HloInstruction) -> HloComputation | None:
    """Return a copy of a fused computation in which its dot is a multiplication and a sum.

    Args:
        fused: the computation.
        dot: its only dot.

    Returns:
        The copy, with the same parameters and outputs; None if no operand of the dot is a vector, or a batch of them.
    """
    if not is_uniform_dot(dot) or not _has_vector(dot):
        return None
    copy, copies = fused.clone_with_mapping()
    HloModule("vector_product").add(copy, entry=True)
    b = Builder(copy)
    copy.replace(copies[dot], multiply_and_sum(copies[dot], b))
    return copy


def _has_vector(dot: HloInstruction) -> bool:
    dims, lhs = DotDims.of(dot), dot.operands[0].shape.dimensions
    depth = math.prod(lhs[d] for d in dims.lhs_contracting)
    size = depth * math.prod(lhs[d] for d in dims.lhs_batch)
    return depth > 1 and dot.shape.num_elements > 0 and any(o.shape.num_elements == size for o in dot.operands)
