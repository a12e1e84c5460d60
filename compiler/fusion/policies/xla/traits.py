"""What XLA's fusion passes ask about an instruction: its kind of kernel, its price, how much of it is transposed."""

from __future__ import annotations

from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.codegen.lowering.lower import roots_of
from compiler.codegen.lowering.nests import nests_of
from compiler.fusion.rewriting import (
    body_of,
    instructions_of,
    is_multi_output,
    outputs_of,
    source_of,
)
from compiler.fusion.sequence import SequenceState
from compiler.fusion.trial_bodies import trial_fusion
from compiler.ir import HloInstruction, Opcode, Trait

_IN_LIBRARIES = (Opcode.DOT, Opcode.CONVOLUTION, Opcode.SORT)


def is_expensive(node: HloInstruction) -> bool:
    """Check whether computing a node twice costs more than a load, by the table of ops."""
    return any(i.opcode.has(Trait.EXPENSIVE) for i in instructions_of(node))


def is_loop_fusion(node: HloInstruction) -> bool:
    """Check whether a node is a fusion of one loop over its outputs, without a reduction (XLA's kind kLoop)."""
    inside = instructions_of(node)
    return (
        node.opcode is Opcode.FUSION and not has_reduction(node) and all(i.opcode not in TEMPLATE_OPS for i in inside)
    )


def library_refusal(*nodes: HloInstruction) -> str | None:
    """Return a reason if a node has a product, convolution or sort, which XLA's loop fusions leave to libraries."""
    found = (i for n in nodes for i in instructions_of(n) if i.opcode in _IN_LIBRARIES)
    i = next(found, None)
    return None if i is None else f"%{i.name}: XLA leaves a {i.opcode.text} to a library"


def loops_refusal(kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
    """Return a reason if the outputs of a kernel of two nodes would not come from one loop nest, as XLA demands.

    Args:
        kind: see `trial_fusion`.
        first: the producer, or the earlier of two independent nodes.
        second: the consumer, or the later node.
    """
    x, y = outputs_of(first)[0].shape, outputs_of(second)[0].shape
    alike = x.dimensions == y.dimensions
    if has_reduction(first) or has_reduction(second):
        body = trial_fusion(kind, first, second)
        alike = len(nests_of(body.post_order(), roots_of(body))) == 1
    return None if alike else f"%{first.name} ({x}) and %{second.name} ({y}) need loops of different shapes"


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
