"""XLA's horizontal loop fusion: independent kernels that feed one consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.policies.xla import traits
from compiler.fusion.rewriting import consumers_of, instructions_of, outputs_of, producers_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, Opcode


@dataclass(eq=False)
class HorizontalFusion(Walk):
    """Fuses the kernels that one instruction reads (xla/service/gpu/transforms/horizontal_loop_fusion.cc).

    Kernels that take no longer than their launch gain most, so that large ones stay alone.

    Attributes:
        elements: greatest number of elements of a kernel's output; XLA's limit is 8192 * 8192.
        instructions: greatest number of instructions of a kernel; XLA's limit is 128.
        fusions: outputs of one kernel made of fusions stay below this; XLA's limit is 32.
        single_instructions: the same for kernels made of unfused instructions; XLA's limit is 64.
        arguments: operands and outputs of one kernel stay below this; 500 pointers fill CUDA's 4000 bytes.
    """

    elements: int = 8192 * 8192
    instructions: int = 128
    fusions: int = 32
    single_instructions: int = 64
    arguments: int = 500

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the fusions of what each consumer reads, from the results upwards, then of what a new fusion reads."""
        for sequence in state.sequences.values():
            work = nodes_of(sequence)
            while work:
                consumer = work.pop()
                if consumer.parent is None:
                    continue
                for group in self._groups(sequence, consumer):
                    first = group[0]
                    for other in group[1:]:
                        a, b = sequence.nodes.sorted([first, other])
                        action = FusionAction("horizontal", sequence.computation.name, a.name, (b.name,))
                        if sequence.decide(action):
                            yield action
                            first = state.find(sequence.computation.name, state.made[-1][-1])
                    if first is not group[0]:
                        work.append(first)

    def _groups(self, sequence: SequenceState, consumer: HloInstruction) -> Iterator[list[HloInstruction]]:
        """Yield the kernels that a consumer reads, two or more alike together."""
        found = [p for p in producers_of(consumer) if self.why_not(sequence, p, consumer) is None]
        found.sort(key=lambda p: (*_kind(p), len(instructions_of(p))))
        start = 0
        while start < len(found):
            end = self._end_of_group(found, start)
            if end - start > 1:
                yield found[start:end]
            start = end

    def _end_of_group(self, nodes: list[HloInstruction], start: int) -> int:
        """Return where the group that begins at `start` ends; it has at least one member."""
        first = nodes[start]
        most = self.fusions if first.opcode is Opcode.FUSION else self.single_instructions
        outputs = arguments = 0
        for end in range(start, len(nodes)):
            node = nodes[end]
            outputs += len(outputs_of(node))
            arguments += len(node.operands) + len(outputs_of(node))
            full = outputs >= most or arguments >= self.arguments
            if end > start and (full or _kind(node) != _kind(first)):
                return end
        return len(nodes)

    def why_not(self, sequence: SequenceState, node: HloInstruction, consumer: HloInstruction) -> str | None:
        """Return the first reason against a kernel as a part of a horizontal fusion, or None."""
        refusal = sequence.legality.refusal_of(node)
        if refusal is not None:
            return refusal
        if not (node.opcode.is_elementwise and node.operands) and not traits.is_loop_fusion(node):
            return f"%{node.name} is neither elementwise nor a loop fusion"
        if len({o.shape.element_type for o in outputs_of(node)}) > 1:
            return f"the outputs of %{node.name} have different types"
        if consumers_of(node) != [consumer]:
            return f"%{node.name} has other users than %{consumer.name}"
        if outputs_of(node)[0].shape.num_elements > self.elements:
            return f"%{node.name} is large: its launch hardly counts"
        if len(instructions_of(node)) > self.instructions:
            return f"%{node.name} has more than {self.instructions} instructions"
        others = {p for p in producers_of(consumer) if p is not node}
        parameters = (o for o in node.operands if o.opcode is Opcode.PARAMETER)
        shared = next((o for o in parameters if others.intersection(o.users)), None)
        return f"%{node.name} shares the parameter %{shared.name} with another kernel" if shared else None


def _kind(node: HloInstruction) -> tuple[str, int, tuple[int, ...]]:
    """Return what kernels of one group have in common: type, number of outputs, dimensions."""
    outputs = outputs_of(node)
    shape = outputs[0].shape
    return shape.element_type.name, len(outputs), shape.dimensions
