"""Common subexpression elimination, and deduplication of computations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from compiler.analysis.structure import StructuralIds, is_commutative, may_merge
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import rewrite_each
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class CommonSubexpressionElimination:
    """Merge instructions that compute the same.

    They must have the same opcode, shape, attributes (except metadata), constants and operands (in any order for
    commutative ops), and call computations that are equal up to names.
    """

    name: ClassVar[str] = "cse"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        # In post order, a computation has already been processed when its first caller numbers it.
        ids = StructuralIds()
        return rewrite_each(module.post_order(), self, lambda c: merge_equal(c, ids) > 0)


class Rewrites(Protocol):
    """What merges instructions: a computation, or what notes its changes."""

    def replace_uses(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace every use of `old` by `new`, also as the root."""

    def remove_dead(self, start: Iterable[HloInstruction]) -> int:
        """Remove those of some instructions that nothing needs, then what only they needed; return how many."""


def merge_equal(
    computation: HloComputation,
    ids: StructuralIds | None = None,
    commute: bool = True,
    rewrites: Rewrites | None = None,
) -> int:
    """Merge the instructions of one computation that compute the same; return how many were removed.

    Args:
        computation: whose instructions are merged.
        ids: the numbers of called computations, which calls for the same module may share.
        commute: whether operands of commutative ops may be in another order.
        rewrites: what makes the changes; None: the computation itself.
    """
    ids, rewrites = ids or StructuralIds(), rewrites or computation
    met: dict[Hashable, HloInstruction | None] = {}  # by opcode and operands; None: those are in `known`
    known: dict[Hashable, HloInstruction] = {}  # where several have the same ones, by all that they compute
    numbers: dict[HloInstruction, int] = {}
    merged = 0
    for i in computation.post_order():
        operands: Hashable = i.operands
        if commute:
            numbers[i] = len(numbers)
            if is_commutative(i):
                operands = tuple(sorted([numbers[o] for o in i.operands]))
        alike = (i.opcode, operands)
        earlier = met.setdefault(alike, i)
        # The rest is looked at only now, because most instructions are like no other one.
        if earlier is i or not may_merge(i) or (i.attributes and has_side_effect(i)):
            continue
        if earlier is not None:
            known[ids.key(earlier, alike)] = earlier
            met[alike] = None
        first = known.setdefault(ids.key(i, alike), i)
        if first is i:
            continue
        rewrites.replace_uses(i, first)
        rewrites.remove_dead([i])
        merged += 1
    return merged


@register
@dataclass(frozen=True)
class ComputationDeduplication:
    """Redirect calls of computations that are equal up to names to one of them, and remove the others.

    Fused computations are kept, because each must have a single caller.
    """

    name: ClassVar[str] = "computation-deduplication"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        ids = StructuralIds()
        first: dict[int, HloComputation] = {}
        mapping: dict[HloComputation, HloComputation] = {}
        order = module.post_order()
        bodies = {c for o in order for i in o.notable if i.opcode is Opcode.FUSION for c in i.called_computations()}
        alike = Counter(map(_opcode_counts, order))
        for computation in order:
            if computation in bodies or alike[_opcode_counts(computation)] == 1:
                continue
            kept = first.setdefault(ids.of(computation), computation)
            if kept is not computation:
                mapping[computation] = kept
        if not mapping:
            return False
        for computation in module.computations:
            for i in computation.notable:
                if not mapping.keys().isdisjoint(i.called_computations()):
                    i.replace_called_computations(mapping)
        module.remove_unreachable()
        return True


def _opcode_counts(computation: HloComputation) -> Hashable:
    return frozenset(computation.opcodes.items())
