"""XLA's strategies before priority fusion: instruction fusion and fusion merger."""

from __future__ import annotations

from compiler.fusion.actions import FusionAction
from compiler.fusion.kinds import has_other_use
from compiler.fusion.policies.queue import ProducerQueue, all_users_action
from compiler.fusion.rewriting import body_of, consumers_of, producers_of, source_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, Opcode, Trait


class InstructionFusion:
    """Fuses producers into consumers, consumers in reverse post order (xla/service/instruction_fusion.cc).

    Only data movement is duplicated, and an expensive producer is not fused where it would be computed several times.
    """

    def __init__(self) -> None:
        self._state: FusionState | None = None
        self._work: list[tuple[SequenceState, HloInstruction]] = []
        self._pending: SequenceState | None = None

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next fusion of a producer into a consumer."""
        if state is not self._state:
            self._state, self._pending = state, None
            self._work = [(s, i) for s in state.sequences.values() for i in s.instructions()]
        if self._pending is not None and state.made:
            # Continue with the fusion that the last action made, before its predecessors.
            fusion = self._pending.computation.find(state.made[-1][-1])
            if fusion is not None:
                self._work.append((self._pending, fusion))
            self._pending = None
        while self._work:
            sequence, consumer = self._work.pop()
            producer = None if consumer.parent is None else _producer_for(sequence, consumer)
            if producer is not None:
                self._pending = sequence
                return FusionAction("producer-consumer", sequence.computation.name, producer.name, (consumer.name,))
        return None


def _producer_for(sequence: SequenceState, consumer: HloInstruction) -> HloInstruction | None:
    refusal = sequence.legality.refusal_of
    if refusal(consumer) is not None:
        return None
    for p in producers_of(consumer):
        if refusal(p) is None and _is_worthwhile(sequence, p, consumer) and sequence.edge(p, consumer):
            return p
    return None


def _is_worthwhile(sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> bool:
    if has_other_use(producer):
        return producer.opcode.has(Trait.MOVEMENT) or producer.opcode is Opcode.IOTA
    if not is_expensive(producer):
        return True
    inputs = sequence.legality.facts(consumer).summary.inputs
    by_operand = dict(zip(consumer.operands, inputs, strict=True))
    return all(i.loads <= i.elements for o, i in by_operand.items() if source_of(o) is producer)


def is_expensive(node: HloInstruction) -> bool:
    """Check whether computing a node twice costs more than a load, by the table of ops."""
    inside = body_of(node).instructions if node.opcode is Opcode.FUSION else (node,)
    return any(i.opcode.has(Trait.EXPENSIVE) for i in inside)


class FusionMerger(ProducerQueue):
    """Fuses a fusion into its users if all are fusions and time is saved (xla/service/gpu/fusion_merger.cc)."""

    def priority(self, sequence: SequenceState, producer: HloInstruction) -> float | None:
        """Return the seconds saved, or None unless the producer and all of its users are fusions."""
        users = consumers_of(producer)
        if producer.opcode is not Opcode.FUSION or not users or any(u.opcode is not Opcode.FUSION for u in users):
            return None
        if not sequence.into_all_users(producer, users):
            return None
        saved = sequence.saving_into_all(producer, users)
        return saved if saved > 0 else None

    def action_for(self, sequence: SequenceState, producer: HloInstruction) -> FusionAction | None:
        """Return the fusion into all users if it still saves time."""
        return None if self.priority(sequence, producer) is None else all_users_action(sequence, producer)
