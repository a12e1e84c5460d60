"""Products of few elements in loops, as sums for a GPU, one thread of which may then run the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot
from compiler.passes.dots.dot_strength_reduction import multiply_and_sum
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_numeric
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable

MOST_MULTIPLICATIONS = 128
"""Multiplications of a product up to which a thread computes it in less time than a kernel takes to launch."""
MOST_CONTRACTED = 8
"""Terms of the sums of a product of many small matrices, or of many vectors with one small matrix, up to which it is
computed so: a kernel of the product alone would read and write its operands for little work."""


@register
@dataclass(frozen=True)
class LoopProducts:
    """Rewrite dots of few elements in the bodies of loops -> multiply and reduce, which kernels of loops compute."""

    name: ClassVar[str] = "loop-products"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        treated = set(treatable(module))
        loops = (i for c in module.control_flow_computations() for i in c.instructions if i.opcode is Opcode.WHILE)
        for body in dict.fromkeys(i.attributes["body"] for i in loops):
            fixed = pinned(body)
            for i in body.post_order() if body in treated else ():
                if i.opcode is not Opcode.DOT or i in fixed or not is_uniform_dot(i) or not is_numeric(i.shape):
                    continue
                if _is_small(i):
                    body.replace(i, multiply_and_sum(i, Builder(body)))
                    changed = True
        return changed


def _is_small(dot: HloInstruction) -> bool:
    """Check whether a thread computes a product, or that of one position along its first dimension, by itself."""
    lhs = dot.operands[0].shape
    contracted = math.prod(lhs.dimensions[d] for d in DotDims.of(dot).lhs_contracting)
    work = dot.shape.num_elements * contracted
    if 0 < work <= MOST_MULTIPLICATIONS:
        return True
    positions = dot.shape.dimensions[0] if dot.shape.rank > 1 else 1
    return 1 < contracted <= MOST_CONTRACTED and work <= MOST_MULTIPLICATIONS * positions
