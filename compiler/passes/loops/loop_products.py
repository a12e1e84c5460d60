"""Products of few elements in loops, as sums for a GPU, one thread of which may then run the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloModule, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot
from compiler.passes.dots.dot_strength_reduction import multiply_and_sum
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_numeric
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable

MOST_MULTIPLICATIONS = 128
"""Multiplications of a product up to which a thread computes it in less time than a kernel takes to launch."""


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
                lhs = i.operands[0].shape
                work = i.shape.num_elements * math.prod(lhs.dimensions[d] for d in DotDims.of(i).lhs_contracting)
                if 0 < work <= MOST_MULTIPLICATIONS:
                    body.replace(i, multiply_and_sum(i, Builder(body)))
                    changed = True
        return changed
