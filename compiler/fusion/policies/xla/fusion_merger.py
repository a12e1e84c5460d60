"""XLA's fusion merger: fusions into all of their users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.queue import all_users_action
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.policies.xla import traits
from compiler.fusion.rewriting import consumers_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, Opcode


@dataclass(eq=False)
class FusionMerger(Walk):
    """Fuses each loop fusion into all of its users or into none, in post order (xla/service/gpu/fusion_merger.cc).

    Attributes:
        transposed_share: share of a producer's elements that pass through transposes from which on it is not fused
            into reductions; XLA's limit is 0.5.
    """

    transposed_share: float = 0.5

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the merges, producers before their users."""
        for sequence in state.sequences.values():
            for producer in nodes_of(sequence):
                if producer.opcode is Opcode.FUSION and self.why_not(sequence, producer) is None:
                    yield all_users_action(sequence, producer)

    def why_not(self, sequence: SequenceState, producer: HloInstruction) -> str | None:
        """Return the first reason against merging a fusion into its users, or None."""
        if producer.parent is None:
            return "it was merged before"
        users = consumers_of(producer)
        if not users:
            return f"%{producer.name} has no users"
        if not traits.is_loop_fusion(producer):
            return traits.library_refusal(producer) or f"%{producer.name} contains a reduction"
        library = traits.library_refusal(*users)
        if library is not None:
            return library
        reduced = next((u for u in users if traits.has_reduction(u)), None)
        if reduced is not None and traits.transposed_share(producer) >= self.transposed_share:
            return f"the reduction %{reduced.name} would read through the transposes of %{producer.name}"
        decision = sequence.into_all_users(producer, users)
        if not decision:
            return decision.reason
        if sequence.estimates.into_all(producer, users) < 0:
            return f"%{producer.name} and its users would take longer"
        return None
