"""Updates of one array after each other, as the stacked outputs of an unrolled loop make them."""

from __future__ import annotations

import math
from collections.abc import Container

from compiler.ir import HloInstruction, Opcode

MANY_ELEMENTS = 4096
"""Elements of a window from which on there are enough for the threads of a GPU, each of which makes all updates."""
LARGE_ARRAY = 1 << 20
"""Elements of an array from which on it takes longer to write all of them than to make the updates in any way."""


def updates_of(last: HloInstruction, inside: Container[HloInstruction] | None = None) -> tuple[HloInstruction, ...]:
    """Return the updates, first to last, that one loop over their windows can make in the array that the first updates.

    Their windows are alike, and whole or single elements along each dimension: where two of them overlap, an element
    has the same place in both, so that it is written in order. For small windows of small arrays there is only the last
    one: a loop over the array computes each element by one of the updates, with more threads.

    Args:
        last: a dynamic-update-slice.
        inside: the instructions among which the others may be; None: all.
    """
    chain, window = [last], last.operands[1].shape.dimensions
    simple = all(n in (1, size) for n, size in zip(window, last.shape.dimensions, strict=True))
    enough = math.prod(window) >= MANY_ELEMENTS or last.shape.num_elements >= LARGE_ARRAY
    while simple and enough:
        following, i = chain[-1], chain[-1].operands[0]
        if i.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or (inside is not None and i not in inside):
            break
        if len(i.users) != 1 or i in following.operands[1:] or i.operands[1].shape.dimensions != window:
            break
        chain.append(i)
    return tuple(reversed(chain))
