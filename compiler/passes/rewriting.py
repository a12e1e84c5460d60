"""Passes as lists of rewrite rules, and the driver that applies them to a fixed point in time linear in the program.

A rule is `rule(instruction, builder) -> HloInstruction | None`: what computes the same value, or None for no match.
Rules are kept by opcode, so that an instruction meets only those that can match it. The driver visits operands
first, visits what a rule made at once, and repeats rounds until one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, Trait
from compiler.ir.computation import has_side_effect
from compiler.ir.shape import default_layout
from compiler.passes.base import ComputationPass
from compiler.passes.builder import Builder

Rule = Callable[[HloInstruction, Builder], HloInstruction | None]

MAX_ROUNDS = 50
"""A guard against rules that undo each other, not a tuning knob: programs settle in two to five rounds."""


class RuleSet:
    """Rules by the opcode they match; filled by `on` where they are defined, in order of preference."""

    def __init__(self) -> None:
        self._by_opcode: dict[Opcode, list[Rule]] = {}

    def on(self, *opcodes: Opcode) -> Callable[[Rule], Rule]:
        """Decorator: the function is a rule for these opcodes."""

        def keep(rule: Rule) -> Rule:
            for opcode in opcodes:
                self._by_opcode.setdefault(opcode, []).append(rule)
            return rule

        return keep

    def of(self, opcode: Opcode) -> Sequence[Rule]:
        """The rules that may match an instruction of this opcode."""
        return self._by_opcode.get(opcode, ())


ELEMENTWISE = tuple(op for op in Opcode if op.has(Trait.ELEMENTWISE))


@dataclass(frozen=True)
class RewritePass(ComputationPass):
    """A pass that is a set of rules."""

    rules: ClassVar[RuleSet]

    def run_on(self, computation: HloComputation) -> bool:
        """Apply the rules to a fixed point."""
        return rewrite(computation, self.rules.of)


def rewrite(computation: HloComputation, rules_of: Callable[[Opcode], Sequence[Rule]]) -> bool:
    """Apply rules to a computation until none matches; whether any did.

    Left alone: instructions with or without users that control dependencies name, those with side effects, and those
    with dynamic dimensions.
    """
    changed = False
    for _ in range(MAX_ROUNDS):
        if not _round(computation, rules_of):
            break
        changed = True
    return changed


def _round(computation: HloComputation, rules_of: Callable[[Opcode], Sequence[Rule]]) -> bool:
    pinned = _control_dependent(computation)
    work = computation.post_order()
    work.reverse()
    budget = 20 * len(work) + 1000
    changed = False
    while work and budget:
        i = work.pop()
        rules = rules_of(i.opcode)
        if not rules or i.parent is not computation or i in pinned or i.is_dead or _untouchable(i):
            continue
        made = _apply(i, rules, computation)
        if made is None:
            continue
        changed = True
        budget -= 1
        work.extend(reversed(made))
    return changed


def _apply(i: HloInstruction, rules: Iterable[Rule], computation: HloComputation) -> list[HloInstruction] | None:
    """What the first matching rule made, after putting it in place; None when none matched."""
    for rule in rules:
        builder = Builder(computation)
        new = rule(i, builder)
        if new is not None and new is not i and substitute(i, new, fresh=new in builder.made):
            return builder.made
        if builder.made:
            computation.remove_dead(builder.made)
    return None


def substitute(old: HloInstruction, new: HloInstruction, fresh: bool) -> bool:
    """Put `new` in the place of `old` and remove what that leaves dead; False when the layouts forbid it.

    Args:
        old: what is replaced.
        new: of a compatible shape, in the same computation.
        fresh: `new` has just been made and has no other user, so it may take over layout and metadata.
    """
    computation = old.parent
    if computation is None or not new.shape.compatible(old.shape):
        raise ValueError(f"%{new.name} of shape {new.shape} cannot stand for %{old.name} of shape {old.shape}")
    if fresh:
        if new.shape is not old.shape and not _same_layout(new, old):
            new.shape = replace(new.shape, layout=old.shape.layout)
        if "metadata" in old.attributes and "metadata" not in new.attributes:
            new.attributes["metadata"] = old.attributes["metadata"]
    elif not _same_layout(new, old):
        return False
    computation.replace_uses(old, new)
    computation.remove_dead([old])
    return True


def _same_layout(a: HloInstruction, b: HloInstruction) -> bool:
    if not a.shape.is_array:
        return a.shape == b.shape or a.shape.without_layout() == b.shape.without_layout()
    default = default_layout(a.shape.rank)
    return (a.shape.layout or default) == (b.shape.layout or default)


def _untouchable(i: HloInstruction) -> bool:
    if i.shape.dynamic or any(o.shape.dynamic for o in i.operands):
        return True
    return i.opcode.has(Trait.SIDE_EFFECT) or (bool(i.attributes) and has_side_effect(i))


def _control_dependent(computation: HloComputation) -> frozenset[HloInstruction]:
    found: set[HloInstruction] = set()
    for i in computation.instructions:
        if i.control_predecessors:
            found.add(i)
            found.update(i.control_predecessors)
    return frozenset(found)
