"""Tuple simplification: elements of new tuples, and tuples of all elements of another tuple."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned


@register
@dataclass(frozen=True)
class TupleSimplifier(ComputationPass):
    """Replace `gte(tuple(a, b), 1)` by `b` and `tuple(gte(t, 0), gte(t, 1))` by `t`.

    Tuples that are roots or operands of a loop are kept, because loop passes work on their elements.
    """

    name: ClassVar[str] = "tuple-simplifier"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        candidates = computation.of_opcode(Opcode.GET_TUPLE_ELEMENT, Opcode.TUPLE)
        if not candidates:
            return False
        fixed = pinned(computation)
        changed = False
        for i in candidates:
            if i.parent is not computation or i in fixed:
                continue
            same = _element(i) if i.opcode is Opcode.GET_TUPLE_ELEMENT else _whole(i)
            if same is None:
                continue
            computation.replace_uses(i, same)
            computation.remove_dead([i])
            changed = True
        return changed


def _element(gte: HloInstruction) -> HloInstruction | None:
    made = gte.operand(0)
    if made.opcode is not Opcode.TUPLE:
        return None
    found = made.operand(gte.attributes["index"])
    return found if found.shape == gte.shape or not gte.is_root else None


def _whole(made: HloInstruction) -> HloInstruction | None:
    if not made.operands or made.is_root or any(u.opcode is Opcode.WHILE for u in made.users):
        return None
    first = made.operand(0)
    if first.opcode is not Opcode.GET_TUPLE_ELEMENT:
        return None
    source = first.operand(0)
    if len(source.shape.tuple_shapes) != len(made.operands):
        return None
    in_order = all(
        o.opcode is Opcode.GET_TUPLE_ELEMENT and o.operand(0) is source and o.attributes["index"] == n
        for n, o in enumerate(made.operands)
    )
    return source if in_order else None
