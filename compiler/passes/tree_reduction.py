"""Tree reduction: a reduction to few results is done in two steps, the first of which has work for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.base import InstructionPass
from compiler.passes.builder import Builder
from compiler.passes.patterns import identity_value, scalar_function, splat_value
from compiler.passes.registry import register


@register
@dataclass(frozen=True)
class TreeReduction(InstructionPass):
    """Split the longest reduced dimension in two, and reduce one after the other.

    Done where a dimension of at least `threshold` elements is reduced to at most `max_results` results by a function
    with a known neutral element; sums change their order. The first step yields about the square root of the dimension.

    Attributes:
        threshold: shortest dimension to split.
        max_results: reductions to more results have enough to do as they are.
    """

    name: ClassVar[str] = "tree-reduction"
    threshold: int = 32768
    max_results: int = 32

    def visit(self, instruction: HloInstruction) -> bool:
        """See the class."""
        i, computation = instruction, instruction.parent
        if i.opcode is not Opcode.REDUCE or len(i.operands) != 2 or computation is None or i.shape.is_dynamic:
            return False
        if i.control_predecessors or i.shape.num_elements > self.max_results:
            return False
        source, init = i.operands
        axis = max(i.dimensions, key=lambda d: source.shape.dimensions[d], default=0)
        size = source.shape.dimensions[axis] if i.dimensions else 0
        inner = _factor(size) if size >= self.threshold and _starts_neutral(i) else 1
        if inner == 1:
            return False
        b = Builder(computation)
        dims = source.shape.dimensions
        split = b.reshape(source, (*dims[:axis], size // inner, inner, *dims[axis + 1 :]))
        function = i.attributes["to_apply"]
        first = b.reduce(split, init, [axis + 1], function)
        computation.replace(i, b.reduce(first, init, i.dimensions, function))
        return True


def _factor(size: int) -> int:
    """The divisor nearest to the square root from below that leaves both parts above 1; 1 when there is none."""
    root = int(size**0.5)
    return next((n for n in range(root, 1, -1) if size % n == 0), 1)


def _starts_neutral(i: HloInstruction) -> bool:
    function, start = scalar_function(i.attributes["to_apply"]), splat_value(i.operand(1))
    if function is None or start is None or i.operand(0).shape.element_type is not i.shape.element_type:
        return False
    neutral = identity_value(function, i.shape.element_type)
    return neutral is not None and bool(start == neutral)
