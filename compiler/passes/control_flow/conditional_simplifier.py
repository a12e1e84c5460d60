"""Conditional simplification: selects known branches, and converts cheap conditionals to selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Trait
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, separate_fusions, treatable


@register
@dataclass(frozen=True)
class ConditionalSimplifier(Options):
    """Replace conditionals by a branch or by selects.

    - With a constant predicate or index, or if all branches are the same computation: the branch.
    - If no branch has effects, control flow or library calls, they have at most `max_ops` instructions in total, and
      those that are not taken cost little: all branches, and selects between their results. An index out of range
      selects the last branch.

    Attributes:
        max_ops: maximum number of instructions in all branches of a conditional that becomes selects; 0 disables this.
        max_work: maximum number of operations of the branches that are not taken, unless they are two for each element
            of the result; an expensive operation counts as 8. Conditionals in loops have no such limit: the loop may
            become one kernel.
    """

    name: ClassVar[str] = "conditional-simplifier"
    max_ops: int = number_option(48, 0, 10_000)
    max_work: int = number_option(1 << 15, 0, 1 << 30)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        looping: set[HloComputation] | None = None
        treated = set(treatable(module))
        for computation in module.control_flow_computations():
            if computation not in treated:
                continue
            found = computation.of_opcode(Opcode.CONDITIONAL)
            if not found:
                continue
            looping = _in_loops(module) if looping is None else looping
            fixed = pinned(computation)
            for i in found:
                if i not in fixed:
                    changed |= self._simplify(i, computation, computation in looping)
        if changed:
            module.remove_unreachable()
            separate_fusions(module)
        return changed

    def _simplify(self, i: HloInstruction, computation: HloComputation, in_loop: bool) -> bool:
        branches = branches_of(i)
        taken = _known_branch(i, branches)
        if taken is not None:
            result = computation.inline(branches[taken], [i.operand(1 + taken)])
            computation.replace_uses(i, result)
            computation.remove(i)  # also if it has side effects, which the copy has, too
            return True
        if not all(map(_flattenable, branches)) or sum(len(c) for c in branches) > self.max_ops:
            return False
        if not in_loop and _wasted_work(branches) > max(self.max_work, 2 * _elements(i)):
            return False
        results = [computation.inline(c, [o]) for c, o in zip(branches, i.operands[1:], strict=True)]
        computation.replace(i, _choose(i.operand(0), results, Builder(computation)))
        computation.remove_dead(results)
        return True


def branches_of(conditional: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the branches by number; for a predicate, true comes first."""
    found: tuple[HloComputation, ...] | None = conditional.attr("branch_computations")
    if found is not None:
        return found
    return (conditional.attributes["true_computation"], conditional.attributes["false_computation"])


def _known_branch(i: HloInstruction, branches: Sequence[HloComputation]) -> int | None:
    which = i.operand(0)
    same_arguments = all(o is i.operand(1) for o in i.operands[1:])
    if len(branches) == 1 or (same_arguments and all(c is branches[0] for c in branches)):
        return 0
    if which.opcode is not Opcode.CONSTANT:
        return None
    value = which.value.value
    if which.shape.element_type is PrimitiveType.PRED:
        return 0 if bool(value) else 1
    index = int(value)
    return index if 0 <= index < len(branches) else len(branches) - 1


def _flattenable(branch: HloComputation) -> bool:
    shape = branch.root.shape
    leaves = shape.tuple_shapes if shape.is_tuple else (shape,)
    if not leaves or not all(s.is_array and not s.is_dynamic for s in leaves) or branch.parent is None:
        return False
    return not any(
        i.opcode.has(Trait.CONTROL)
        or i.opcode.has(Trait.LIBRARY)
        or i.opcode in (Opcode.SCATTER, Opcode.REDUCE_WINDOW, Opcode.SELECT_AND_SCATTER)
        or has_side_effect(i)
        for i in branch.instructions
    )


def _in_loops(module: HloModule) -> set[HloComputation]:
    """Return the computations that loops run, directly or through calls and branches."""
    work = [
        called
        for computation in module.computations
        for i in computation.instructions
        if i.opcode is Opcode.WHILE
        for called in i.called_computations()
    ]
    found: set[HloComputation] = set()
    while work:
        computation = work.pop()
        if computation not in found:
            found.add(computation)
            work += (called for i in computation.instructions for called in i.called_computations())
    return found


def _wasted_work(branches: Sequence[HloComputation]) -> int:
    """Return the operations of all branches but the one with most."""
    work = [sum(map(_work, branch.instructions)) for branch in branches]
    return sum(work) - max(work)


def _work(i: HloInstruction) -> int:
    if i.opcode.has(Trait.LEAF) or i.opcode.has(Trait.MOVEMENT) or i.opcode.has(Trait.TUPLE) or not i.shape.is_array:
        return 0
    elements = max(s.num_elements for s in (i.shape, *(o.shape for o in i.operands)) if s.is_array)
    return elements * (8 if i.opcode.has(Trait.EXPENSIVE) else 1)


def _elements(i: HloInstruction) -> int:
    return sum(s.num_elements for s in i.shape.leaves() if s.is_array)


def _choose(which: HloInstruction, results: Sequence[HloInstruction], b: Builder) -> HloInstruction:
    """Select between results of the same shape, arrays or tuples of arrays."""
    shape = results[0].shape
    if not shape.is_tuple:
        return _select(which, results, b)
    parts = [[_element(r, n, b) for r in results] for n in range(len(shape.tuple_shapes))]
    return b.add(Opcode.TUPLE, *(_select(which, p, b) for p in parts))


def _element(value: HloInstruction, n: int, b: Builder) -> HloInstruction:
    return value.operand(n) if value.opcode is Opcode.TUPLE else b.add(Opcode.GET_TUPLE_ELEMENT, value, index=n)


def _select(which: HloInstruction, values: Sequence[HloInstruction], b: Builder) -> HloInstruction:
    if which.shape.element_type is PrimitiveType.PRED:
        return b.add(Opcode.SELECT, which, values[0], values[1])
    chosen = values[-1]
    for n in reversed(range(len(values) - 1)):
        this = b.compare(which, b.constant(np.asarray(n, which.shape.dtype)), "EQ")
        chosen = b.add(Opcode.SELECT, this, values[n], chosen)
    return chosen
