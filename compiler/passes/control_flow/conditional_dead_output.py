"""Dead outputs of conditionals: removes unused results from all branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.cleanup.dead_outputs import trim_each
from compiler.passes.control_flow.conditional_simplifier import branches_of
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class ConditionalDeadOutput:
    """Give conditionals new branches without the elements of their result that are unused."""

    name: ClassVar[str] = "conditional-dead-output"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        computations = reversed(module.control_flow_computations())
        return trim_each(module, computations, frozenset({Opcode.CONDITIONAL}), _trim)


def _trim(i: HloInstruction, computation: HloComputation, module: HloModule) -> bool:
    read: dict[int, list[HloInstruction]] = {}
    for user in i.users:
        if user.users or user.is_root:
            read.setdefault(user.attributes["index"], []).append(user)
    kept = sorted(read)
    if not kept or len(kept) == len(i.shape.tuple_shapes):
        return False
    trimmed = tuple(module.add(_with_outputs(c, kept)) for c in branches_of(i))
    attributes = dict(i.attributes)
    attributes.pop("sharding", None)
    if "branch_computations" in attributes:
        attributes["branch_computations"] = trimmed
    else:
        attributes |= {"true_computation": trimmed[0], "false_computation": trimmed[1]}
    new = computation.add(Opcode.CONDITIONAL, i.operands, name=i.name, attributes=attributes)
    for position, n in enumerate(kept):
        value = computation.add(Opcode.GET_TUPLE_ELEMENT, [new], index=position)
        for user in read[n]:
            computation.replace_uses(user, value)
    for user in list(i.users):
        computation.remove(user)
    computation.remove(i)
    return True


def _with_outputs(branch: HloComputation, kept: Sequence[int]) -> HloComputation:
    copy = branch.clone()
    root = copy.root
    if root.opcode is Opcode.TUPLE:
        parts = [root.operand(n) for n in kept]
    else:
        parts = [copy.add(Opcode.GET_TUPLE_ELEMENT, [root], index=n) for n in kept]
    copy.root = copy.add(Opcode.TUPLE, parts, name=root.name)
    copy.remove_dead()
    return copy
