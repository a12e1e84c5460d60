"""The numbers of a fusion that has not been made, from those of the two kernels it would consist of.

What a producer needs in one context of its own follows it into every context in which the consumer needs the producer.
So the cost of a candidate takes time in proportion to its arguments, not to what stands inside.
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
    """The kernel that computes `producer` inside `consumer`.

    Exact unless a reduction of the producer needs a loop, or one of the two updates in place: make the fusion then.

    Args:
        producer: the kernel that goes in.
        consumer: the kernel that takes it in.
        producer_inputs: what each of its inputs stands for, by position; equal ones are read once, None is not read.
        consumer_inputs: the same; None for what the producer yields.
        contexts: in which the consumer needs the producer's output; {} for kernels that stand side by side.
        keep: whether the producer's output is also written.
    """
    merged: dict[Hashable, tuple[Input, Contexts]] = {}
    for what, i in zip(consumer_inputs, consumer.inputs, strict=True):
        if what is not None and what not in merged:
            merged[what] = (i, {k: Use(u.evaluations, u.distinct, u.copies) for k, u in i.contexts.items()})
    wanted = dict(contexts)
    if keep:
        n = producer.elements
        wanted[OWN] = Use(n, n)
    fresh: dict[Hashable, Input] = dict(zip(producer_inputs, producer.inputs, strict=True))
    fresh.pop(None, None)
    for what, i in fresh.items():
        into = merged.setdefault(what, (i, {}))[1]
        for context, use in wanted.items():
            _follow(i, into, context, use, producer.elements)
    evaluations = sum(u.evaluations for u in wanted.values())
    inputs = tuple(Input(i.elements, i.element_bytes, c) for i, c in merged.values())
    return replace(
        consumer,
        inputs=inputs,
        bytes_read=sum(i.bytes for i in inputs),
        loads=sum(i.loads for i in inputs),
        bytes_written=consumer.bytes_written + (producer.bytes_written if keep else 0.0),
        flops=consumer.flops + producer.flops * evaluations / max(1.0, producer.elements),
        statements=consumer.statements + producer.statements * sum(u.copies for u in wanted.values()),
    )


def _follow(read: Input, into: Contexts, context: int, use: Use, elements: float) -> None:
    """What an input of the producer is needed for in one context of the producer."""
    scale, reach = use.evaluations / max(1.0, elements), min(1.0, use.distinct / max(1.0, elements))
    for own, inner in read.contexts.items():
        if own == SCALAR:
            add_use(into, SCALAR, inner)
            continue
        there = context if own == OWN else hash((context, own))
        distinct = min(float(read.elements), inner.distinct * reach)
        add_use(into, there, Use(inner.evaluations * scale, distinct, inner.copies * use.copies))
