"""Stable sort expansion: breaks ties by position, so that any sorting algorithm can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable


@register
@dataclass(frozen=True)
class StableSortExpander:
    """Replace a stable sort by one that also compares positions if the comparator does not order two elements.

    Positions are s32 and the last operand; dimensions of 2^31 or more elements are not supported.
    """

    name: ClassVar[str] = "stable-sort-expander"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        for computation in treatable(module):
            sorts = [i for i in computation.instructions if i.opcode is Opcode.SORT and i.attr("is_stable")]
            fixed = pinned(computation) if sorts else set()
            for i in sorts:
                changed |= i not in fixed and not i.shape.is_dynamic and _expand(i, computation, module)
        if changed:
            module.remove_unreachable()
        return changed


def _expand(sort: HloInstruction, computation: HloComputation, module: HloModule) -> bool:
    first, (axis,) = sort.operand(0).shape, sort.dimensions
    if first.rank == 0 or first.dimensions[axis] >= 1 << 31:
        return False
    positions = computation.add(
        Opcode.IOTA, shape=Shape(PrimitiveType.S32, first.dimensions), attributes={"iota_dimension": axis}
    )
    attributes = {k: v for k, v in sort.attributes.items() if k != "is_stable"}
    attributes["to_apply"] = module.add(_with_positions(sort.attributes["to_apply"], len(sort.operands)))
    new = computation.add(Opcode.SORT, [*sort.operands, positions], attributes=attributes, name=sort.name)
    parts = [computation.add(Opcode.GET_TUPLE_ELEMENT, [new], index=n) for n in range(len(sort.operands))]
    computation.replace(sort, parts[0] if len(parts) == 1 else computation.add(Opcode.TUPLE, parts))
    return True


def _with_positions(comparator: HloComputation, count: int) -> HloComputation:
    """Return a comparator that orders by `comparator`, then by position."""
    made = HloComputation(f"{comparator.name}_stable")
    parameters = [made.add_parameter(n, p.shape, p.name) for n, p in enumerate(comparator.parameters)]
    positions = [made.add_parameter(2 * count + n, Shape(PrimitiveType.S32)) for n in range(2)]
    before = made.inline(comparator, parameters)
    swapped = [parameters[n ^ 1] for n in range(2 * count)]
    after = made.inline(comparator, swapped)
    earlier = made.add(Opcode.COMPARE, positions, direction="LT")
    tie = made.add(Opcode.COMPARE, [before, after], direction="EQ")
    made.root = made.add(Opcode.SELECT, [tie, earlier, before])
    return made
