"""Loop-invariant code motion: hoists what each iteration computes identically out of the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.while_loop import LoopView, invariant_elements
from compiler.ir import HloInstruction, HloModule, Opcode, Trait
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import Options
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.loop_editing import LoopEdit, Loops, copy_with_operands


@register
@dataclass(frozen=True)
class WhileLoopInvariantCodeMotion(Options):
    """Hoist ops that depend only on invariant elements and constants, and carry their results.

    An op is hoisted if it does work and its result is no larger than its operands; broadcasts, reshapes and similar ops
    stay with their users. Ops that run computations as control flow are not hoisted, because the loop may run zero
    times.

    Attributes:
        inflating: also hoist ops whose result is larger than their operands.
    """

    name: ClassVar[str] = "while-loop-invariant-code-motion"
    inflating: bool = False

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            moved = _Invariants(view, self.inflating).frontier()
            if not moved:
                continue
            # The positions identify the instructions again if the body has to be cloned first.
            where = {i: n for n, i in enumerate(view.body.instructions)}
            positions = [where[i] for i in moved]
            view = loops.owned(view)
            body = view.body.instructions
            _hoist(view, [body[n] for n in positions], loops)
            changed = True
        return changed


class _Invariants:
    """The invariant instructions of a loop body.

    Attributes:
        fixed: instructions that compute the same in each iteration.
        depends: those of them that depend on a carried element, so that hoisting them saves work.
    """

    def __init__(self, view: LoopView, inflating: bool) -> None:
        self.view = view
        self.inflating = inflating
        self.order = view.body.post_order()
        self.reads = {g for n in invariant_elements(view) for g in view.body_reads[n]}
        self.depends: set[HloInstruction] = set(self.reads)
        self.fixed: set[HloInstruction] = set(self.reads)
        held = pinned(view.body)
        for i in self.order:
            if i not in self.fixed and i not in held and _movable(i) and all(o in self.fixed for o in i.operands):
                self.fixed.add(i)
                if any(o in self.depends for o in i.operands):
                    self.depends.add(i)

    def frontier(self) -> list[HloInstruction]:
        """Return the invariant instructions to hoist, which something in the loop uses, operands first."""
        # From users to operands: an invariant instruction that is not worth carrying stays, and may need its operands.
        stay = {i for i in self.order if i not in self.fixed}
        found: set[HloInstruction] = set()
        for i in reversed(self.order):
            if i in stay or i in self.reads or not any(u in stay for u in i.users):
                continue
            if self._worth(i):
                found.add(i)
            else:
                stay.add(i)
        return [i for i in self.order if i in found]

    def _worth(self, i: HloInstruction) -> bool:
        if i not in self.depends or i.opcode in _CHEAP:
            return False
        if self.inflating or i.opcode.has(Trait.LIBRARY) or i.opcode.has(Trait.REDUCTION):
            return True
        return i.shape.byte_size <= sum(o.shape.byte_size for o in i.operands)


_CHEAP = frozenset(
    {Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST, Opcode.SLICE, Opcode.CONVERT, Opcode.COPY, Opcode.IOTA}
)


def _movable(i: HloInstruction) -> bool:
    if i.opcode is Opcode.PARAMETER or not i.shape.is_array or i.opcode.has(Trait.CONTROL):
        return False
    if any(not o.shape.is_array for o in i.operands) or i.opcode.has(Trait.COLLECTIVE):
        return False
    return not (i.attributes and has_side_effect(i)) and not i.opcode.has(Trait.SIDE_EFFECT)


def _hoist(view: LoopView, moved: list[HloInstruction], loops: Loops) -> None:
    outside = view.instruction.parent
    assert outside is not None  # noqa: S101 - the loop was found in it
    mapping = {g: view.init[n] for n, gtes in enumerate(view.body_reads) for g in gtes}
    known = len(mapping)
    carried = [copy_with_operands(i, outside, mapping) for i in moved]
    loops.note_copies([*mapping.values()][known:])
    edit = LoopEdit.begin(view, [*view.init, *carried], {n: n for n in range(view.size)})
    outputs = list(view.outputs)
    for n, i in enumerate(moved):
        read = edit.body_read(view.size + n)
        view.body.replace_uses(i, read)
        outputs = [read if o is i else o for o in outputs]
        outputs.append(read)
    edit.finish(outputs)
    edit.discard()
    view.body.remove_dead(moved)
