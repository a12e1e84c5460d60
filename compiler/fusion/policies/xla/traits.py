"""What XLA's fusion passes ask about an instruction: its kind of kernel, its price, how much of it is transposed."""

from __future__ import annotations

from compiler.fusion.rewriting import body_of, instructions_of, is_multi_output, source_of
from compiler.fusion.sequence import SequenceState
from compiler.ir import HloInstruction, Opcode, Trait


def is_expensive(node: HloInstruction) -> bool:
    """Check whether computing a node twice costs more than a load, by the table of ops."""
    return any(i.opcode.has(Trait.EXPENSIVE) for i in instructions_of(node))


def is_loop_fusion(node: HloInstruction) -> bool:
    """Check whether a node is a fusion of one loop over its outputs, without a reduction (XLA's kind kLoop)."""
    return node.opcode is Opcode.FUSION and not has_reduction(node)


def has_reduction(node: HloInstruction) -> bool:
    """Check whether a node contains a reduction, so that XLA's kind of its fusion is kInput."""
    return any(i.opcode is Opcode.REDUCE for i in instructions_of(node))


def is_transposing(instruction: HloInstruction) -> bool:
    """Check whether an instruction changes the order of elements in memory."""
    if instruction.opcode is not Opcode.TRANSPOSE:
        return False
    order = [d for d in instruction.attributes["dimensions"] if instruction.operands[0].shape.dimensions[d] > 1]
    return order != sorted(order)


def transposed_share(node: HloInstruction) -> float:
    """Return the elements that the transposes of a node write, divided by the elements of its outputs."""
    outputs = sum(s.num_elements for s in node.shape.leaves())
    return sum(i.shape.num_elements for i in instructions_of(node) if is_transposing(i)) / max(1, outputs)


def reads_repeatedly(sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> bool:
    """Check whether a consumer reads elements of a producer more than once, as a broadcast does."""
    inputs = sequence.legality.facts(consumer).summary.inputs
    by_operand = dict(zip(consumer.operands, inputs, strict=True))
    return any(i.loads > i.elements for o, i in by_operand.items() if source_of(o) is producer)


def copies_of(sequence: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> int:
    """Return how often the code of a producer would be in the kernel of a consumer."""
    inputs = sequence.legality.facts(consumer).summary.inputs
    by_operand = dict(zip(consumer.operands, inputs, strict=True))
    return sum(i.copies for o, i in by_operand.items() if source_of(o) is producer)


def updates_in_place(node: HloInstruction) -> bool:
    """Check whether a node writes the window of an update into one of its operands."""
    outputs = body_of(node).root if node.opcode is Opcode.FUSION else node
    roots = outputs.operands if is_multi_output(node) else (outputs,)
    return any(r.opcode is Opcode.DYNAMIC_UPDATE_SLICE for r in roots)
