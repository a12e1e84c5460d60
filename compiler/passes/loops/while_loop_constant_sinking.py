"""Constant sinking: recreates invariant elements with known values in the loop instead of carrying them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.while_loop import LoopView, invariant_elements
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.registry import register
from compiler.passes.loops.loop_editing import Loops


@register
@dataclass(frozen=True)
class WhileLoopConstantSinking:
    """Replace reads of an invariant element by a copy of its initial value, if that is known at compile time.

    Constants, iotas and broadcast constants are known. `while-loop-simplifier` then stops carrying them.
    """

    name: ClassVar[str] = "while-loop-constant-sinking"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            changed |= _sink(view, loops)
        return changed


def _sink(view: LoopView, loops: Loops) -> bool:
    known = [n for n in sorted(invariant_elements(view)) if _is_known(view.init[n]) and _is_read(view, n)]
    if not known:
        return False
    view = loops.owned(view)
    for n in known:
        for computation, gtes in ((view.body, view.body_reads[n]), (view.condition, view.condition_reads[n])):
            uses = [use for g in gtes for use in _uses(g, view, n)]
            if not uses:
                continue
            copy = _copy(view.init[n], computation)
            for user, position in uses:
                user.replace_operand(position, copy)
    return True


def _is_read(view: LoopView, n: int) -> bool:
    reads = (*view.body_reads[n], *view.condition_reads[n])
    return any(True for g in reads for _ in _uses(g, view, n))


def _uses(gte: HloInstruction, view: LoopView, n: int) -> list[tuple[HloInstruction, int]]:
    """Return users with operand positions, except the body's root that returns element `n` unchanged."""
    return [
        (user, position)
        for user in gte.users
        for position in user.operand_indices(gte)
        if not (user is view.body.root and position == n)
    ]


def _is_known(value: HloInstruction) -> bool:
    if value.opcode is Opcode.BROADCAST:
        return value.operand(0).opcode is Opcode.CONSTANT
    return value.opcode in (Opcode.CONSTANT, Opcode.IOTA)


def _copy(value: HloInstruction, computation: HloComputation) -> HloInstruction:
    return computation.clone_instruction(value, [_copy(o, computation) for o in value.operands])
