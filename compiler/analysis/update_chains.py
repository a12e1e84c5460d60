"""Updates of one array after each other, as the stacked outputs of an unrolled loop make them."""

from __future__ import annotations

from collections.abc import Container

from compiler.ir import HloInstruction, Opcode


def updates_of(last: HloInstruction, inside: Container[HloInstruction] | None = None) -> tuple[HloInstruction, ...]:
    """Return the updates, first to last, that one loop over their windows can make in the array that the first updates.

    Their windows are alike, and whole or single elements along each dimension: where two of them overlap, an element
    has the same place in both, so that it is written in order.

    Args:
        last: a dynamic-update-slice.
        inside: the instructions among which the others may be; None: all.
    """
    chain, window = [last], last.operands[1].shape.dimensions
    simple = all(n in (1, size) for n, size in zip(window, last.shape.dimensions, strict=True))
    while simple:
        following, i = chain[-1], chain[-1].operands[0]
        if i.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or (inside is not None and i not in inside):
            break
        if len(i.users) != 1 or i in following.operands[1:] or i.operands[1].shape.dimensions != window:
            break
        chain.append(i)
    return tuple(reversed(chain))
