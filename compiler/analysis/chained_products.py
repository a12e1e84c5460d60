"""Recognition of chained products: dots whose one operand is computed from other dots, element by element."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.attention import upstream
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

MOST_PRODUCTS = 2
"""Inner dots, and outer ones, of chained products."""


@dataclass(frozen=True)
class ChainedProducts:
    """Outer dots that multiply values by weights, which are computed from inner dots element by element.

    Attributes:
        inner: the inner dots.
        outer: the outer dots.
        weights: the operand of each outer dot that is computed from inner ones.
    """

    inner: tuple[HloInstruction, ...]
    outer: tuple[HloInstruction, ...]
    weights: tuple[HloInstruction, ...]

    def values(self, n: int) -> HloInstruction:
        """Return the other operand of an outer dot."""
        lhs, rhs = self.outer[n].operands
        return rhs if lhs is self.weights[n] else lhs


def chained_products(computation: HloComputation) -> ChainedProducts | None:
    """Return the chained products that the dots of a computation form, or None."""
    dots = [i for i in computation.post_order() if i.opcode is Opcode.DOT]
    if not 2 <= len(dots) <= 2 * MOST_PRODUCTS:
        return None
    inner: list[HloInstruction] = []
    outer: list[tuple[HloInstruction, HloInstruction]] = []
    for dot in dots:
        computed = [o for o in dot.operands if any(i.opcode is Opcode.DOT for i in upstream(o))]
        if not computed:
            inner.append(dot)
        elif len(computed) == 1 and len(dot.operands) == 2:
            outer.append((dot, computed[0]))
        else:
            return None
    ends = {dot for dot, _ in outer}
    used = {i for _, weights in outer for i in upstream(weights) if i.opcode is Opcode.DOT}
    if used & ends or used != set(inner) or not 1 <= len(outer) <= MOST_PRODUCTS or len(inner) > MOST_PRODUCTS:
        return None
    return ChainedProducts(tuple(inner), tuple(d for d, _ in outer), tuple(w for _, w in outer))
