"""How an instruction indexes its operands: how often it reads an element, and by which index arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from compiler.ir import HloInstruction, Opcode

__all__ = ["INDEX_ATTRIBUTES", "evaluation_share", "index_move", "long_dimensions"]

INDEX_ATTRIBUTES = ("dimensions", "slice", "padding")
"""Attributes that tell which elements of its operands an instruction reads."""


def evaluation_share(i: HloInstruction, n: int, o: HloInstruction) -> float:
    """Return the evaluations of operand `n` per evaluation of the result."""
    result, size = max(1, i.shape.num_elements), o.shape.num_elements
    match i.opcode:
        case Opcode.BROADCAST:
            return _broadcast_share(i)
        case Opcode.CONCATENATE | Opcode.PAD:
            return min(1.0, size / result)
        case Opcode.DYNAMIC_UPDATE_SLICE:
            update = i.operands[1].shape.num_elements
            return update / result if n == 1 else max(0.0, 1.0 - update / result) if n == 0 else 0.0
        case Opcode.GATHER if n == 1:
            return min(1.0, size / result)
        case _:
            return 1.0


def _broadcast_share(i: HloInstruction) -> float:
    """Return the share of a broadcast; a value constant along the minor dimensions is computed outside their loops."""
    kept = set(i.dimensions)
    repeated = 1
    for d in range(i.shape.rank - 1, -1, -1):
        if d in kept:
            break
        repeated *= i.shape.dimensions[d]
    return 1.0 / max(1, repeated)


def index_move(i: HloInstruction, n: int) -> int | None:
    """Return a number of the index arithmetic for operand `n`, equal for equal ones; None if it keeps the index."""
    what: Hashable
    if i.opcode in (Opcode.RESHAPE, Opcode.BITCAST):
        own, read = i.shape.dimensions, i.operands[n].shape.dimensions
        # Otherwise only dimensions of size 1 are added or removed.
        return None if long_dimensions(own) == long_dimensions(read) else hash((Opcode.RESHAPE, own, read))
    if i.opcode in (Opcode.GATHER, Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE):
        what = id(i)
    else:
        what = tuple([i.attributes.get(a) for a in INDEX_ATTRIBUTES])
    return hash((i.opcode, i.shape.dimensions, what, n))


def long_dimensions(dimensions: Sequence[int]) -> list[int]:
    """Return the dimensions that are not 1."""
    return [n for n in dimensions if n != 1]
