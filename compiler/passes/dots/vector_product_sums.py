"""Products of matrices with vectors as sums for a GPU: they take as long as the matrix needs to be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot
from compiler.passes.dots.dot_strength_reduction import multiply_and_sum
from compiler.passes.dots.outlining import is_fused
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder

_TYPES = frozenset({T.F32, T.F64})
"""Types of products that no other pass has made sums; those of halves and of complex numbers are sums by now."""


@dataclass(frozen=True)
class VectorProductSums(InstructionPass):
    """Rewrite dots of which one operand is a vector (per batch element) -> multiply and reduce.

    The sums fuse with what surrounds them, and long ones are divided among the multiprocessors.
    """

    name: ClassVar[str] = "vector-product-sums"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.DOT})

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a dot; return whether anything changed."""
        i, computation = instruction, instruction.parent
        if computation is None or i.control_predecessors or not _has_vector(i) or is_fused(computation):
            return False
        computation.replace(i, multiply_and_sum(i, Builder(computation)))
        return True


def _has_vector(i: HloInstruction) -> bool:
    """Check for a dot of real numbers with a vector, or with a batch of them."""
    if not is_uniform_dot(i) or i.shape.element_type not in _TYPES:
        return False
    dims, (lhs, rhs) = DotDims.of(i), (o.shape for o in i.operands)
    left = math.prod(lhs.dimensions[d] for d in dims.lhs_free(lhs.rank))
    right = math.prod(rhs.dimensions[d] for d in dims.rhs_free(rhs.rank))
    return lhs.num_elements > 0 and rhs.num_elements > 0 and min(left, right) == 1
