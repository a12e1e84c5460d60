"""Sorts of complex arrays as sorts of their real and imaginary parts, which kernels can move and compare."""

from __future__ import annotations

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.builder import Builder

PARTS = {PrimitiveType.C64: PrimitiveType.F32, PrimitiveType.C128: PrimitiveType.F64}
"""The type of the parts of a complex type."""


def split_sort(b: Builder, sort: HloInstruction, comparator: HloComputation) -> HloInstruction:
    """Return the results of a sort with complex operands, computed by a sort of the parts of these operands.

    Args:
        b: adds the instructions.
        sort: the sort.
        comparator: the comparator of the parts (`comparator_of_parts`), in the module of the sort.
    """
    operands: list[HloInstruction] = []
    for o in sort.operands:
        operands += [b.add(Opcode.REAL, o), b.add(Opcode.IMAG, o)] if o.shape.element_type in PARTS else [o]
    split = b.add(Opcode.SORT, *operands, **{**sort.attributes, "to_apply": comparator})
    sorted_ = [b.add(Opcode.GET_TUPLE_ELEMENT, split, index=n) for n in range(len(operands))]
    results = []
    for place, o in zip(_places(sort), sort.operands, strict=True):
        is_complex = o.shape.element_type in PARTS
        results.append(b.add(Opcode.COMPLEX, *sorted_[place : place + 2]) if is_complex else sorted_[place])
    return results[0] if len(results) == 1 else b.add(Opcode.TUPLE, *results)


def comparator_of_parts(sort: HloInstruction) -> HloComputation:
    """Return the comparator of a sort with two parameters for each complex one, which belongs to no module yet."""
    comparator: HloComputation = sort.attributes["to_apply"]
    copy, mapping = comparator.clone_with_mapping()
    places = _places(sort)
    for n, original in enumerate(comparator.parameters):
        p, first = mapping[original], 2 * places[n // 2] + n % 2
        if p.shape.element_type not in PARTS:
            p.set_parameter_number(first)
            continue
        t = Shape(PARTS[p.shape.element_type])
        real, imaginary = copy.add_parameter(first, t), copy.add_parameter(first + 2, t)
        for user in list(p.users):
            if user.opcode in (Opcode.REAL, Opcode.IMAG):
                copy.replace(user, real if user.opcode is Opcode.REAL else imaginary)
        if p.users:
            copy.replace_uses(p, copy.add(Opcode.COMPLEX, [real, imaginary]))
        copy.remove(p)
    return copy


def _places(sort: HloInstruction) -> list[int]:
    """Return the position of each operand, or of its real part, before the imaginary one, among the operands."""
    widths = [2 if o.shape.element_type in PARTS else 1 for o in sort.operands]
    return [sum(widths[:n]) for n in range(len(widths))]
