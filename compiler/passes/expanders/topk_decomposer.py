"""Top-k decomposition: a sort, of which the first k elements are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class TopkDecomposer(RewritePass):
    """Replace topk by a stable sort of values and positions, and slices of its results.

    Floats are in total order, as in topk: NaN is above infinity, and zeros are ordered by sign.
    """

    name: ClassVar[str] = "topk-decomposer"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.TOPK)
def _decompose(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, module = i.operand(0), b.computation.parent
    if module is None or x.shape.is_dynamic or 0 in x.shape.dimensions:
        return None
    axis = x.shape.rank - 1
    positions = b.add(Opcode.IOTA, shape=Shape(PrimitiveType.S32, x.shape.dimensions), iota_dimension=axis)
    comparator = module.add(_comparator(x.shape.element_type, "GT" if i.attr("largest", True) else "LT"))
    made = b.add(Opcode.SORT, x, positions, dimensions=(axis,), is_stable=True, to_apply=comparator)
    spec = [*(SliceDim(0, n) for n in x.shape.dimensions[:-1]), SliceDim(0, i.attributes["k"])]
    return b.add(Opcode.TUPLE, *(b.slice(b.add(Opcode.GET_TUPLE_ELEMENT, made, index=n), spec) for n in range(2)))


def _comparator(element_type: PrimitiveType, direction: str) -> HloComputation:
    made = HloComputation(f"topk_{direction.lower()}_{element_type.text}")
    values = [made.add_parameter(n, Shape(element_type)) for n in range(2)]
    for n in range(2):
        made.add_parameter(2 + n, Shape(PrimitiveType.S32))
    kind = {"type": "TOTALORDER"} if element_type.is_float else {}
    made.root = made.add(Opcode.COMPARE, values, attributes={"direction": direction, **kind})
    return made
