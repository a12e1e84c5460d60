"""Products of booleans, as products of floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder


@dataclass(frozen=True)
class BooleanDots(InstructionPass):
    """Replace a dot of booleans by a dot of floats, 0 and 1, whose result is compared with 0.

    Kernels and libraries compute dots of floats. A dot of booleans is true where any product of two elements is true,
    which is where the sum of the products of floats is not 0; no such sum is rounded to 0.
    """

    name: ClassVar[str] = "boolean-dots"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.DOT})

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite one dot; return whether it changed."""
        i, boolean, number = instruction, PrimitiveType.PRED, PrimitiveType.F32
        if i.parent is None or i.control_predecessors or i.shape.is_dynamic:
            return False
        if any(s.element_type is not boolean for s in (i.shape, *(o.shape for o in i.operands))):
            return False
        b = Builder(i.parent)
        operands = [b.convert(o, number) for o in i.operands]
        dot = b.with_operands(i, operands, i.shape.with_type(number))
        i.parent.replace(i, b.compare(dot, b.splat(0, dot.shape), "NE"))
        return True
