"""Structural equality: which computations are the same but for names, and keys under which equal instructions meet."""

from __future__ import annotations

from collections.abc import Hashable

from compiler.ir import HloComputation, HloInstruction, Opcode, Shape, Trait
from compiler.ir.literal import Literal
from compiler.ir.shape import default_layout
from compiler.ir.verifier_buffers import has_buffer

IGNORED = frozenset({"metadata", "frontend_attributes", "statistics", "origin"})
"""Attributes that do not change what an instruction computes."""


class StructuralIds:
    """Numbers for computations: two get the same one only if they are equal but for names and metadata.

    Operands of commutative ops may come in any order, as long as that does not change the order of what they are of.
    Valid as long as no computation seen so far changes; make a new one after a change.
    """

    def __init__(self) -> None:
        self._by_computation: dict[HloComputation, int] = {}
        self._by_structure: dict[Hashable, int] = {}

    def of(self, computation: HloComputation) -> int:
        """The number of a computation; its callees are numbered first."""
        found = self._by_computation.get(computation)
        if found is None:
            structure = self._structure(computation)
            found = self._by_structure.setdefault(structure, len(self._by_structure))
            self._by_computation[computation] = found
        return found

    def key(self, instruction: HloInstruction, operands: Hashable) -> Hashable:
        """A key equal for instructions that compute the same from `operands` (which stands for theirs)."""
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
            if value and type(value[0]) is int:  # whole numbers throughout, as dimensions are
                return value
            return tuple([self._value(v) for v in value])
        if isinstance(value, HloComputation):
            return ("computation", self.of(value))
        if isinstance(value, float):
            return repr(value)  # so that nan equals nan, and 0.0 is not -0.0
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
    """Post order from the root, then whatever else stands there (side effects), so that order of text is no matter."""
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
    """The shape with default layouts spelled out, so that `f32[2]` and `f32[2]{0}` are one."""
    if shape.is_tuple:
        return tuple(shape_key(s) for s in shape.tuple_shapes)
    layout = shape.layout or default_layout(len(shape.dimensions))
    return (shape.element_type, shape.dimensions, layout.minor_to_major, layout.suffix, shape.dynamic)


def literal_key(literal: Literal) -> Hashable:
    """Equal for literals with the same bits."""
    if literal.array is not None:
        return (literal.shape.element_type, literal.shape.dimensions, literal.array.tobytes())
    return tuple(literal_key(e) for e in literal.elements)


def is_commutative(instruction: HloInstruction) -> bool:
    """Whether its operands may be swapped."""
    return instruction.opcode in _COMMUTATIVE


_COMMUTATIVE = frozenset(op for op in Opcode if op.has(Trait.COMMUTATIVE))


def may_merge(instruction: HloInstruction) -> bool:
    """Whether two equal instructions on equal operands may become one."""
    i = instruction
    if i.opcode is Opcode.CUSTOM_CALL and has_buffer(i.shape):
        # A buffer is written in one place: two equal ones may not become one with two writers.
        return False
    return i.opcode not in _NEVER_MERGED and not (i.attributes and i.control_predecessors)


_NEVER_MERGED = frozenset(
    op
    for op in Opcode
    if op.has(Trait.SIDE_EFFECT) or op in (Opcode.PARAMETER, Opcode.AFTER_ALL, Opcode.ADD_DEPENDENCY)
)
