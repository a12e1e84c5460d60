"""Structural equality: numbers for computations that are equal up to names, and keys of equal instructions."""

from __future__ import annotations

from collections.abc import Hashable

from compiler.ir import HloComputation, HloInstruction, Opcode, Shape, Trait
from compiler.ir.literal import Literal
from compiler.ir.shape import default_layout
from compiler.ir.verifier_buffers import has_buffer

IGNORED = frozenset({"metadata", "frontend_attributes", "statistics", "origin"})
"""Attributes without effect on what an instruction computes."""


class StructuralIds:
    """Numbers computations, such that two get the same number only if they are equal up to names and metadata.

    Operands of commutative ops may be swapped, unless that changes the order in which the operands are computed. The
    numbers are valid until one of the computations changes; then make a new object.
    """

    def __init__(self) -> None:
        self._by_computation: dict[HloComputation, int] = {}
        self._by_structure: dict[Hashable, int] = {}

    def of(self, computation: HloComputation) -> int:
        """Return the number of a computation; its callees are numbered first."""
        found = self._by_computation.get(computation)
        if found is None:
            structure = self._structure(computation)
            found = self._by_structure.setdefault(structure, len(self._by_structure))
            self._by_computation[computation] = found
        return found

    def key(self, instruction: HloInstruction, operands: Hashable) -> Hashable:
        """Return a key that is equal for instructions that compute the same from `operands`, a key of theirs."""
        i = instruction
        attributes: Hashable = ()
        if i.attributes:
            named = [k for k in i.attributes if k not in IGNORED]
            named.sort()
            attributes = tuple([(k, self._value(i.attributes[k])) for k in named])
        literal = None if i.literal is None else literal_key(i.literal)
        return (i.opcode, shape_key(i.shape), operands, attributes, literal, i.parameter_number)

    def _value(self, value: object) -> Hashable:
        if type(value) is int or type(value) is str:
            return value
        if isinstance(value, tuple):
            if value and type(value[0]) is int:  # all integers, such as dimensions
                return value
            return tuple([self._value(v) for v in value])
        if isinstance(value, HloComputation):
            return ("computation", self.of(value))
        if isinstance(value, float):
            return repr(value)  # nan equals nan, and 0.0 differs from -0.0
        return value

    def _structure(self, computation: HloComputation) -> Hashable:
        numbers: dict[HloInstruction, int] = {}
        parts = []
        for p in computation.parameters:
            numbers[p] = len(numbers)
            parts.append(self.key(p, ()))
        for i in _needed(computation):
            if i not in numbers:
                numbers[i] = len(numbers)
                operands = [numbers[o] for o in i.operands]
                parts.append(self.key(i, tuple(sorted(operands) if is_commutative(i) else operands)))
        return (tuple(parts), numbers[computation.root], tuple(sorted(computation.attributes.items())))


def _needed(computation: HloComputation) -> list[HloInstruction]:
    """Return the post order from the root, then side effects, so that the insertion order does not matter."""
    order: list[HloInstruction] = []
    seen: set[HloInstruction] = set()
    for start in (computation.root, *computation.instructions):
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter((*start.operands, *start.control_predecessors)))]
        while stack:
            node, pending = stack[-1]
            for o in pending:
                if o not in seen:
                    seen.add(o)
                    stack.append((o, iter((*o.operands, *o.control_predecessors))))
                    break
            else:
                stack.pop()
                order.append(node)
    return order


def shape_key(shape: Shape) -> Hashable:
    """Return a key of a shape with explicit layouts, so that `f32[2]` and `f32[2]{0}` are equal."""
    if shape.is_tuple:
        return tuple(shape_key(s) for s in shape.tuple_shapes)
    layout = shape.layout or default_layout(len(shape.dimensions))
    return (shape.element_type, shape.dimensions, layout.minor_to_major, layout.suffix, shape.dynamic)


def literal_key(literal: Literal) -> Hashable:
    """Return a key that is equal for literals with the same bits."""
    if literal.array is not None:
        return (literal.shape.element_type, literal.shape.dimensions, literal.array.tobytes())
    return tuple(literal_key(e) for e in literal.elements)


def is_commutative(instruction: HloInstruction) -> bool:
    """Check whether the operands may be swapped."""
    return instruction.opcode in _COMMUTATIVE


_COMMUTATIVE = frozenset(op for op in Opcode if op.has(Trait.COMMUTATIVE))


def may_merge(instruction: HloInstruction) -> bool:
    """Check whether two equal instructions on equal operands may be merged."""
    i = instruction
    if i.opcode is Opcode.CUSTOM_CALL and has_buffer(i.shape):
        # A buffer has at most one writer, so two equal buffers must not become one with two writers.
        return False
    return i.opcode not in _NEVER_MERGED and not (i.attributes and i.control_predecessors)


_NEVER_MERGED = frozenset(
    op
    for op in Opcode
    if op.has(Trait.SIDE_EFFECT) or op in (Opcode.PARAMETER, Opcode.AFTER_ALL, Opcode.ADD_DEPENDENCY)
)
