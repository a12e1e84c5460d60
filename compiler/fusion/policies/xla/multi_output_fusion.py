"""XLA's multi-output fusion: siblings, and producers whose values are needed elsewhere too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.policies.xla import traits
from compiler.fusion.rewriting import body_of, consumers_of, has_other_use, instructions_of, is_multi_output
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, Opcode


@dataclass(eq=False)
class MultiOutputFusion(Walk):
    """Fuses siblings, then producers with one consumer, in reverse post order (xla/service/gpu/multi_output_fusion.cc).

    Attributes:
        small_bytes: size of a shared operand below which siblings may read disjoint slices of it; XLA's is 1024.
    """

    small_bytes: int = 1024

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield for each value the fusions of its readers, then that of its producer with one of them."""
        for sequence in state.sequences.values():
            for producer in reversed(nodes_of(sequence)):
                if producer.opcode is Opcode.CONSTANT:
                    continue
                if producer.parent is not None:
                    yield from self._siblings(state, sequence, producer)
                if producer.parent is not None:
                    yield from self._with_consumer(sequence, producer)

    # ---- siblings

    def _siblings(self, state: FusionState, sequence: SequenceState, parent: HloInstruction) -> Iterator[FusionAction]:
        if all(s.num_elements == 1 for s in parent.shape.leaves()):
            return  # a scalar that two kernels read is no saving
        refusal = sequence.legality.refusal_of
        readers = [u for u in sequence.nodes.sorted(consumers_of(parent)) if refusal(u) is None]
        readers.sort(key=_preference, reverse=True)
        while readers:
            first = readers.pop(0)
            if first.opcode is not Opcode.FUSION:
                return  # fusions come first: no fusion is left
            others, readers = readers, []
            for other in others:
                if self.why_not_siblings(sequence, first, other, parent) is not None:
                    readers.append(other)
                    continue
                a, b = sequence.nodes.sorted([first, other])
                yield FusionAction("sibling", sequence.computation.name, a.name, (b.name,))
                first = state.find(sequence.computation.name, state.made[-1][-1])

    def why_not_siblings(
        self, sequence: SequenceState, first: HloInstruction, second: HloInstruction, parent: HloInstruction
    ) -> str | None:
        """Return the first reason against fusing two readers of a value, or None."""
        if traits.updates_in_place(first) or traits.updates_in_place(second):
            return "updates in place are not fused side by side"
        if second.opcode is Opcode.FUSION and traits.is_loop_fusion(first) != traits.is_loop_fusion(second):
            return f"one of %{first.name} and %{second.name} contains a reduction and the other does not"
        if self._reads_disjoint_slices(first, second, parent):
            return f"%{first.name} and %{second.name} read disjoint slices of %{parent.name}"
        a, b = sequence.nodes.sorted([first, second])
        reason = traits.library_refusal(first, second) or sequence.legality.side_by_side(first, second).reason
        return reason or traits.loops_refusal("sibling", a, b)

    def _reads_disjoint_slices(self, first: HloInstruction, second: HloInstruction, parent: HloInstruction) -> bool:
        if parent.shape.is_tuple or parent.shape.byte_size < self.small_bytes:
            return False
        a, b = _only_slice(parent, first), _only_slice(parent, second)
        if a is None or b is None:
            return False
        bounds = zip(_bounds(a), _bounds(b), strict=True)
        return any(low >= other_high or other_low >= high for (low, high), (other_low, other_high) in bounds)

    # ---- producers with a consumer

    def _with_consumer(self, sequence: SequenceState, producer: HloInstruction) -> Iterator[FusionAction]:
        if sequence.legality.refusal_of(producer) is not None:
            return
        users = sequence.nodes.sorted(consumers_of(producer))
        fitting = [u for u in users if self.why_not_together(sequence, producer, u) is None]
        if fitting:
            consumer = max(fitting, key=_preference)
            yield FusionAction("multi-output", sequence.computation.name, producer.name, (consumer.name,))

    def why_not_together(
        self, sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction
    ) -> str | None:
        """Return the first reason against one kernel for a producer and a consumer with both results, or None."""
        if not has_other_use(producer) and not is_multi_output(consumer):
            return f"%{consumer.name} is the only user of %{producer.name}: the fusion merger decides about it"
        if any(map(traits.is_transposing, instructions_of(producer))):
            return f"%{producer.name} transposes"
        if traits.updates_in_place(producer):
            return f"%{producer.name} writes in place"
        reason = (
            traits.library_refusal(producer, consumer)
            or sequence.legality.multi_output(producer, consumer).reason
            or traits.loops_refusal("multi-output", producer, consumer)
        )
        if reason is not None:
            return reason
        action = FusionAction("multi-output", sequence.computation.name, producer.name, (consumer.name,))
        return "the two would take longer as one kernel" if sequence.saving(action) < 0 else None


def _preference(node: HloInstruction) -> int:
    """Return the rank of a candidate: fusions of several outputs before fusions before single instructions."""
    return 2 if is_multi_output(node) else int(node.opcode is Opcode.FUSION)


def _only_slice(parent: HloInstruction, reader: HloInstruction) -> HloInstruction | None:
    """Return the one slice through which a node reads a value, or None when there is another way."""
    if reader.opcode is Opcode.SLICE:
        return reader
    if reader.opcode is not Opcode.FUSION or reader.operands.count(parent) != 1:
        return None
    users = list(body_of(reader).parameters[reader.operands.index(parent)].users)
    return users[0] if len(users) == 1 and users[0].opcode is Opcode.SLICE else None


def _bounds(node: HloInstruction) -> list[tuple[int, int]]:
    return [(d.start, d.limit) for d in node.attributes["slice"]]
