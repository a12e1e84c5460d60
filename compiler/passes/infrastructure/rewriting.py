"""Passes that are lists of rewrite rules, and the driver that applies the rules until nothing changes.

A rule is `rule(instruction, builder) -> HloInstruction | None`: an instruction that computes the same value, or None if
the rule does not match. Rules are indexed by opcode, so that an instruction is only tested against rules that can match
it. The driver visits operands first, visits new instructions at once, and repeats rounds until one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Trait
from compiler.ir.computation import has_side_effect
from compiler.ir.shape import default_layout
from compiler.passes.infrastructure.base import ComputationPass, rewrite_each
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable

Rule = Callable[[HloInstruction, Builder], HloInstruction | None]
RulesOf = Callable[[Opcode], Sequence[Rule]]

MAX_ROUNDS = 50
"""Guards against rules that undo each other; programs converge in two to five rounds."""


class RuleSet:
    """Rules by the opcode they match, in order of preference; `on` adds them where they are defined."""

    def __init__(self) -> None:
        self._by_opcode: dict[Opcode, list[Rule]] = {}

    def on(self, *opcodes: Opcode) -> Callable[[Rule], Rule]:
        """Register the decorated function as a rule for these opcodes."""

        def keep(rule: Rule) -> Rule:
            for opcode in opcodes:
                self._by_opcode.setdefault(opcode, []).append(rule)
            return rule

        return keep

    def of(self, opcode: Opcode) -> Sequence[Rule]:
        """Return the rules that may match an instruction of this opcode."""
        return self._by_opcode.get(opcode, ())


ELEMENTWISE = tuple(op for op in Opcode if op.has(Trait.ELEMENTWISE))


@dataclass(frozen=True)
class RewritePass(ComputationPass):
    """A pass that consists of rewrite rules; passes with options override `rules_of`."""

    rules: ClassVar[RuleSet]

    def rules_of(self) -> RulesOf:
        """Return a function from an opcode to the rules to try."""
        return self.rules.of

    def run_on(self, computation: HloComputation) -> bool:
        """Apply the rules until nothing changes; return whether anything did."""
        return rewrite(computation, self.rules_of())

    def run_sweeps(self, module: HloModule, sweeps: int) -> bool:
        """Apply the rules in at most `sweeps` sweeps over each computation; return whether anything changed."""
        # A pass that finds something finds it in the first sweep, so what is known holds for any number of them.
        rules_of = self.rules_of()
        return rewrite_each(treatable(module), self, lambda c: sweep(c, rules_of, sweeps))


def rewrite(computation: HloComputation, rules_of: RulesOf) -> bool:
    """Apply rules to a computation until none matches; return whether any did.

    Instructions at either end of a control edge, with side effects, or with dynamic dimensions are skipped.
    """
    return _rounds(computation, rules_of, MAX_ROUNDS, revisit=True)


def sweep(computation: HloComputation, rules_of: RulesOf, sweeps: int = 1) -> bool:
    """Visit each instruction once per sweep, operands first, and apply the first matching rule; return whether any did.

    Instructions that a rule creates are not visited in the same sweep. The same instructions as in `rewrite` are
    skipped.
    """
    return _rounds(computation, rules_of, sweeps, revisit=False)


def _rounds(computation: HloComputation, rules_of: RulesOf, limit: int, revisit: bool) -> bool:
    changed = False
    for _ in range(limit):
        if not _round(computation, rules_of, revisit):
            break
        changed = True
        computation.reorder()  # the next walk then gets the order for free
    return changed


def _round(computation: HloComputation, rules_of: RulesOf, revisit: bool) -> bool:
    if not any(map(rules_of, computation.opcodes)):
        return False
    by_opcode = {opcode: rules_of(opcode) for opcode in computation.opcodes}
    order = computation.post_order()
    work = [i for i in reversed(order) if by_opcode[i.opcode]]
    fixed = pinned(computation)
    # The budget bounds a round in case that rules keep creating new matches.
    budget = 20 * len(order) + 1000
    changed = False
    builder = Builder(computation)
    while work and budget:
        i = work.pop()
        rules = by_opcode.get(i.opcode)
        if rules is None:
            rules = by_opcode[i.opcode] = rules_of(i.opcode)
        if not rules or i.parent is not computation or i in fixed or i.is_dead or _untouchable(i):
            continue
        if not _apply(i, rules, builder):
            continue
        changed = True
        budget -= 1
        if revisit:
            work.extend(reversed(builder.made))
        builder = Builder(computation)
    return changed


def _apply(i: HloInstruction, rules: Iterable[Rule], builder: Builder) -> bool:
    """Replace `i` by the result of the first matching rule; return False if none matches."""
    for rule in rules:
        new = rule(i, builder)
        if new is not None and new is not i and substitute(i, new, fresh=new in builder.made):
            builder.computation.remove_dead(builder.made)
            return True
        if builder.made:
            builder.computation.remove_dead(builder.made)
            builder.made.clear()
    return False


def substitute(old: HloInstruction, new: HloInstruction, fresh: bool) -> bool:
    """Replace `old` by `new` and remove what becomes dead; return False if their layouts differ.

    Args:
        old: the instruction to replace.
        new: an instruction of a compatible shape in the same computation.
        fresh: `new` was just created and has no other user, so it may adopt the layout and metadata of `old`.
    """
    computation = old.parent
    if computation is None or not new.shape.compatible(old.shape):
        raise ValueError(f"%{new.name} of shape {new.shape} cannot replace %{old.name} of shape {old.shape}")
    if fresh:
        if new.shape is not old.shape and not _same_layout(new, old):
            new.set_shape(replace(new.shape, layout=old.shape.layout))
        if "metadata" in old.attributes and "metadata" not in new.attributes:
            new.set_attribute("metadata", old.attributes["metadata"])
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
    if i.shape.dynamic:
        return True
    for o in i.operands:
        if o.shape.dynamic:
            return True
    return has_side_effect(i)
