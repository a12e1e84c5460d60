"""XLA's instruction fusion: producers into consumers, from the results of a computation upwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.policies.xla import traits
from compiler.fusion.rewriting import consumers_of, has_other_use, producers_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, Opcode

Rule: TypeAlias = Callable[["InstructionFusion", SequenceState, HloInstruction, HloInstruction], str | None]
"""Returns the reason against a producer within a consumer, or None."""

_GENERATED = frozenset({Opcode.BROADCAST, Opcode.IOTA, Opcode.CONSTANT})


@dataclass(eq=False)
class InstructionFusion(Walk):
    """Fuses producers into consumers, consumers in reverse post order (xla/service/instruction_fusion.cc).

    Attributes:
        may_duplicate: whether a producer that has other uses may be computed in each of them.
        code_duplication: greatest number of copies of a producer's code in one kernel; XLA's limit is 15.
        keep_expensive: whether an expensive producer stays out of a kernel if it would be computed more than once, for
            several users or for elements that one user reads repeatedly.
        region_limit: instructions between a producer and its users that are examined before the producer counts as
            one that cannot be fused on all paths.
    """

    may_duplicate: bool = True
    code_duplication: int = 15
    keep_expensive: bool = True
    region_limit: int = 256

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the fusions of each consumer until it has no producer to take, then those of the one before it."""
        for sequence in state.sequences.values():
            kept = self._never_duplicated(sequence)
            work = nodes_of(sequence)
            refused: set[HloInstruction] = set()  # what has no kernel with the present consumer, however that grows
            while work:
                consumer = work.pop()
                producer = None if consumer.parent is None else self._producer_for(sequence, consumer, kept, refused)
                if producer is None:
                    refused = set()
                    continue
                yield FusionAction("producer-consumer", sequence.computation.name, producer.name, (consumer.name,))
                work.append(state.find(sequence.computation.name, state.made[-1][-1]))

    def _producer_for(
        self,
        sequence: SequenceState,
        consumer: HloInstruction,
        kept: set[HloInstruction],
        refused: set[HloInstruction],
    ) -> HloInstruction | None:
        """Return the last of the producers in post order that is fused into the consumer, or None.

        Producers that have no kernel with the consumer are added to `refused`. A kernel that computes more only has
        more against another producer, and making the kernel again to see this takes time in the size of the kernel.
        """
        if sequence.legality.refusal_of(consumer) is not None:
            return None
        for p in reversed(sequence.nodes.sorted(producers_of(consumer))):
            if p in refused or (p in kept and has_other_use(p)) or self.rule_against(sequence, p, consumer) is not None:
                continue
            if not sequence.legality.is_refused("producer-consumer", p, consumer):
                return p
            refused.add(p)
        return None

    def why_not(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return the first reason against computing a producer within a consumer, or None."""
        return self.rule_against(sequence, producer, consumer) or sequence.edge(producer, consumer).reason

    def rule_against(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return the first reason of these rules, without asking for a kernel of both."""
        refusal = sequence.legality.refusal_of(producer) or sequence.legality.refusal_of(consumer)
        refusal = refusal or traits.library_refusal(producer, consumer)
        if refusal is not None:
            return refusal
        for rule in self._rules:
            reason = rule(self, sequence, producer, consumer)
            if reason is not None:
                return reason
        return None

    # ---- rules

    def duplicated(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return a reason if an expensive producer would be computed for several users."""
        del sequence, consumer
        if producer.opcode in _GENERATED or not has_other_use(producer):
            return None
        if not self.may_duplicate:
            return f"%{producer.name} has other uses"
        kept = self.keep_expensive and traits.is_expensive(producer)
        return f"%{producer.name} is expensive and has other uses" if kept else None

    def reused(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return a reason if an expensive producer would be computed several times within the consumer."""
        if not self.keep_expensive or not traits.is_expensive(producer):
            return None
        if traits.reads_repeatedly(sequence, producer, consumer):
            return f"%{producer.name} is expensive, and %{consumer.name} reads its elements repeatedly"
        return None

    def uncoalesced(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return a reason if a reduction would read through a transpose."""
        del sequence
        if traits.is_transposing(producer) and traits.has_reduction(consumer):
            return f"the reduction %{consumer.name} would read through the transpose %{producer.name}"
        return None

    def repeated_code(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return a reason if the producer's code would be in the kernel too often."""
        if consumer.opcode is not Opcode.FUSION:
            return None
        copies = traits.copies_of(sequence, producer, consumer)
        if copies > self.code_duplication:
            return f"%{producer.name} would be {copies} times in %{consumer.name}, more than {self.code_duplication}"
        return None

    _rules: ClassVar[tuple[Rule, ...]] = (duplicated, reused, uncoalesced, repeated_code)

    # ---- producers that stay

    def _never_duplicated(self, sequence: SequenceState) -> set[HloInstruction]:
        """Return the producers with several users that are not fused into any while another use remains.

        These are producers that read more elements than they write, from more than one large input, and that some path
        to a user does not let through: computing them twice would read more than it saves.
        """
        kept: set[HloInstruction] = set()
        for p in reversed(nodes_of(sequence)):
            if len(consumers_of(p)) < 2 or _is_at_most_unary(p) or _elements_read(p) <= _elements_of(p):
                continue
            if sequence.legality.refusal_of(p) is not None or not self._goes_through_all_paths(sequence, p, kept):
                kept.add(p)
        return kept

    def _goes_through_all_paths(
        self, sequence: SequenceState, producer: HloInstruction, kept: set[HloInstruction]
    ) -> bool:
        """Check whether every edge on every path from a producer to its users can be fused."""
        between = self._between(sequence, producer)
        if between is None:
            return False
        for node in sequence.nodes.sorted(between):
            for p in producers_of(node):
                if (p is producer or p in between) and (p in kept or not self._can_fuse(sequence, p, node)):
                    return False
        return True

    def _can_fuse(self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> bool:
        """Check whether `why_not` has no reason, without stating it."""
        if self.rule_against(sequence, producer, consumer) is not None:
            return False
        return not sequence.legality.is_refused("producer-consumer", producer, consumer)

    def _between(self, sequence: SequenceState, producer: HloInstruction) -> set[HloInstruction] | None:
        """Return the users of a producer and what lies between it and them; None beyond the limit."""
        users = consumers_of(producer)
        last = max(map(sequence.order.rank, users))
        below: set[HloInstruction] = set()
        work = list(users)
        while work:
            node = work.pop()
            if node in below or sequence.order.rank(node) > last:
                continue
            below.add(node)
            if len(below) > self.region_limit:
                return None
            work.extend(consumers_of(node))
        found = set(users)
        work = list(users)
        while work:
            for p in producers_of(work.pop()):
                if p in below and p not in found:
                    found.add(p)
                    work.append(p)
        return found


def _elements_of(node: HloInstruction) -> int:
    return sum(s.num_elements for s in node.shape.leaves())


def _elements_read(node: HloInstruction) -> int:
    return sum(map(_elements_of, dict.fromkeys(node.operands)))


def _is_at_most_unary(node: HloInstruction) -> bool:
    """Check whether at most one operand is as large as the result in rank, not counting generated values."""

    def rank(i: HloInstruction) -> int:
        return max((sum(d > 1 for d in s.dimensions) for s in i.shape.leaves()), default=0)

    return sum(o.opcode not in _GENERATED and rank(o) >= rank(node) for o in node.operands) <= 1
