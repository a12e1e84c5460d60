"""The summary of a potential fusion, computed from the summaries of the two kernels it would consist of.

What the producer needs in its own context is needed in every context in which the consumer uses the producer. So the
cost of a candidate takes time linear in the number of its operands, not in the size of the fused computations.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from compiler.analysis.kernel_summary import OWN, SCALAR, Contexts, Input, KernelSummary, Use, add_use


def compose(
    producer: KernelSummary,
    consumer: KernelSummary,
    producer_inputs: Sequence[Hashable],
    consumer_inputs: Sequence[Hashable],
    contexts: Mapping[int, Use],
    keep: bool,
) -> KernelSummary:
    """Return the summary of the kernel that computes `producer` inside `consumer`.

    Exact, unless a reduction of the producer needs a loop, one of the two updates in place or both pad values between
    their elements; then build the fusion.

    Args:
        producer: the kernel that is inlined.
        consumer: the kernel that it is inlined into.
        producer_inputs: a key for each of its inputs; inputs with equal keys are read once, None is not read.
        consumer_inputs: the same; None for the producer's output.
        contexts: the contexts in which the consumer reads the producer's output; {} for sibling (multi-output) fusion.
        keep: whether the producer's output is also written.
    """
    merged: dict[Hashable, Input] = {}
    for what, i in zip(consumer_inputs, consumer.inputs, strict=True):
        if what is not None:
            merged.setdefault(what, i)
    # The producer is computed in each context in which its output is read, and in its own loop if it is kept.
    wanted = dict(contexts)
    if keep:
        n = producer.elements
        wanted[OWN] = Use(n, n)
    # Its inputs are then read in these contexts; an input that the consumer also reads is merged with that one.
    fresh: dict[Hashable, Input] = dict(zip(producer_inputs, producer.inputs, strict=True))
    fresh.pop(None, None)
    for what, i in fresh.items():
        own = merged.get(what)
        into: Contexts = {} if own is None else dict(own.contexts)
        for context, use in wanted.items():
            _follow(i, into, context, use, producer.elements)
        first = own or i
        merged[what] = Input(first.elements, first.element_bytes, into)
    evaluations = sum(u.evaluations for u in wanted.values())
    inputs = tuple(merged.values())
    return replace(
        consumer,
        inputs=inputs,
        bytes_read=sum(i.bytes * i.sweeps for i in inputs),
        loads=sum(i.loads for i in inputs),
        bytes_written=consumer.bytes_written + (producer.bytes_written if keep else 0.0),
        largest_output=max(consumer.largest_output, producer.largest_output if keep else 0.0),
        flops=consumer.flops + producer.flops * evaluations / max(1.0, producer.elements),
        statements=consumer.statements + producer.statements * sum(u.copies for u in wanted.values()),
        strided=consumer.strided + producer.strided * evaluations / max(1.0, producer.elements),
        spreads=consumer.spreads or producer.spreads,
        halves=consumer.halves + (producer.halves if keep else 0.0),
        # A consumer that stores elements of the producer without computing with them rounds these now.
        rounded=consumer.rounded
        + (producer.rounded if keep else min(consumer.halves - consumer.rounded, producer.rounded)),
        reduced=max(consumer.reduced, producer.reduced * evaluations / max(1.0, producer.elements)),
    )


def _follow(read: Input, into: Contexts, context: int, use: Use, elements: float) -> None:
    """Add the uses of a producer's input that follow from one context of the producer's output."""
    scale, reach = use.evaluations / max(1.0, elements), min(1.0, use.distinct / max(1.0, elements))
    for own, inner in read.contexts.items():
        if own == SCALAR:
            add_use(into, SCALAR, inner)
            continue
        there = context if own == OWN else hash((context, own))
        distinct = min(float(read.elements), inner.distinct * reach)
        add_use(into, there, Use(inner.evaluations * scale, distinct, inner.copies * use.copies))
