"""Tree reduction: splits a reduction to few results into two steps, the first of which has more parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value, scalar_function, splat_value
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class TreeReduction(InstructionPass):
    """Split the longest reduced dimension in two, and reduce one after the other.

    Applies if a dimension of at least `threshold` elements is reduced to at most `max_results` results by a function
    with a known identity element; sums change their order. The first step yields about the square root of the
    dimension.

    Attributes:
        threshold: smallest dimension to split.
        max_results: reductions to more results are not split, because they are parallel enough.
    """

    name: ClassVar[str] = "tree-reduction"
    threshold: int = number_option(32768, 2, 1 << 40)
    max_results: int = number_option(32, 0, 1 << 40)

    def visit(self, instruction: HloInstruction) -> bool:
        """Split a reduction, and the parts again; return whether anything changed."""
        work, changed = [instruction], False
        while work:
            i = work.pop()
            axis = self._axis_to_split(i)
            if axis is not None:
                work.extend(_split(i, axis))
                changed = True
        return changed

    def _axis_to_split(self, i: HloInstruction) -> int | None:
        if i.opcode is not Opcode.REDUCE or len(i.operands) != 2 or i.parent is None or i.shape.is_dynamic:
            return None
        if i.control_predecessors or i.shape.num_elements > self.max_results or not i.dimensions:
            return None
        sizes = i.operand(0).shape.dimensions
        axis = max(i.dimensions, key=lambda d: sizes[d])
        long_enough = sizes[axis] >= self.threshold and _factor(sizes[axis]) > 1
        return axis if long_enough and _starts_neutral(i) else None


def _split(i: HloInstruction, axis: int) -> tuple[HloInstruction, HloInstruction]:
    """Replace the reduction by two steps, and return both."""
    computation = i.parent
    assert computation is not None  # noqa: S101 - the pass found it in a computation
    b = Builder(computation)
    source, init = i.operands
    dims = source.shape.dimensions
    inner = _factor(dims[axis])
    split = b.reshape(source, (*dims[:axis], dims[axis] // inner, inner, *dims[axis + 1 :]))
    function = i.attributes["to_apply"]
    first = b.reduce(split, init, [axis + 1], function)
    second = b.reduce(first, init, i.dimensions, function)
    computation.replace(i, second)
    return first, second


def _factor(size: int) -> int:
    """Return the largest divisor of at most the square root that is greater than 1; 1 if there is none."""
    root = int(size**0.5)
    return next((n for n in range(root, 1, -1) if size % n == 0), 1)


def _starts_neutral(i: HloInstruction) -> bool:
    function, start = scalar_function(i.attributes["to_apply"]), splat_value(i.operand(1))
    if function is None or start is None or i.operand(0).shape.element_type is not i.shape.element_type:
        return False
    neutral = identity_value(function, i.shape.element_type)
    return neutral is not None and bool(start == neutral)
