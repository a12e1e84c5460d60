"""Batching rules: compute an instruction for all iterations of a loop at once, with a new leading dimension.

A rule takes the instruction and its operands, which are batched (iterations first) or the same in every iteration, and
returns the batched result, or None if it does not support the case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim
from compiler.passes.infrastructure.builder import Builder


@dataclass(frozen=True)
class Batched:
    """A value in the computation around the loop; `varies` tells whether it has the leading dimension."""

    value: HloInstruction
    varies: bool


Rule: TypeAlias = Callable[[HloInstruction, Sequence[Batched], int, Builder], "HloInstruction | None"]


def has_rule(i: HloInstruction) -> bool:
    """Check whether there is a rule for the instruction's opcode."""
    return i.shape.is_array and (i.opcode in _RULES or (i.opcode.is_elementwise and i.opcode is not Opcode.MAP))


def batch(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction | None:
    """Return the stacked results of `count` iterations of `i`."""
    rule = _elementwise if i.opcode.is_elementwise else _RULES[i.opcode]
    return rule(i, operands, count, b)


def stacked(operand: Batched, count: int, b: Builder) -> HloInstruction:
    """Return the operand with the leading dimension, broadcast if it does not vary."""
    if operand.varies:
        return operand.value
    dims = operand.value.shape.dimensions
    return b.broadcast(operand.value, (count, *dims), range(1, len(dims) + 1))


def _elementwise(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    sizes = (count, *i.shape.dimensions)
    wide = [_to_shape(stacked(o, count, b), sizes, b) for o in operands]
    return b.with_operands(i, wide, i.shape.with_dimensions(sizes))


def _to_shape(x: HloInstruction, sizes: tuple[int, ...], b: Builder) -> HloInstruction:
    """Broadcast one scalar per iteration (of a select or clamp) to the shape of the iteration's result."""
    return x if x.shape.dimensions == sizes else b.broadcast(x, sizes, (0,))


def _broadcast(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    sizes = (count, *i.shape.dimensions)
    return b.broadcast(operands[0].value, sizes, (0, *(d + 1 for d in i.dimensions)))


def _reshape(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    return b.reshape(operands[0].value, (count, *i.shape.dimensions))


def _transpose(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    return b.transpose(operands[0].value, (0, *(d + 1 for d in i.dimensions)))


def _slice(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    return b.slice(operands[0].value, (SliceDim(0, count), *i.attributes["slice"]))


def _reverse(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    return b.add(Opcode.REVERSE, operands[0].value, dimensions=tuple(d + 1 for d in i.dimensions))


def _concatenate(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    return b.concatenate([stacked(o, count, b) for o in operands], i.dimensions[0] + 1)


def _pad(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction | None:
    if operands[1].varies:
        return None
    return b.pad(stacked(operands[0], count, b), operands[1].value, (PadDim(0, 0), *i.attributes["padding"]))


def _reduce(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction | None:
    if len(operands) != 2 or operands[1].varies:
        return None
    over = [d + 1 for d in i.dimensions]
    return b.reduce(operands[0].value, operands[1].value, over, i.attributes["to_apply"])


def _dot(i: HloInstruction, operands: Sequence[Batched], count: int, b: Builder) -> HloInstruction:
    left, right = operands
    dims = {n: tuple(i.attr(n, ())) for n in _DOT_DIMS}
    batches = len(dims["lhs_batch_dims"])
    if left.varies:
        dims |= {n: tuple(d + 1 for d in dims[n]) for n in ("lhs_batch_dims", "lhs_contracting_dims")}
    if right.varies:
        dims |= {n: tuple(d + 1 for d in dims[n]) for n in ("rhs_batch_dims", "rhs_contracting_dims")}
    at = batches
    if left.varies and right.varies:
        dims |= {n: (0, *dims[n]) for n in ("lhs_batch_dims", "rhs_batch_dims")}
        at = 0
    elif right.varies:
        lhs = i.operand(0).shape.rank - batches - len(dims["lhs_contracting_dims"])
        at = batches + lhs
    attributes = {k: v for k, v in i.attributes.items() if k not in _DOT_DIMS and k != "control-predecessors"}
    attributes |= {n: d for n, d in dims.items() if d}
    shape = i.shape.with_dimensions((*i.shape.dimensions[:at], count, *i.shape.dimensions[at:]))
    product = b.add(Opcode.DOT, left.value, right.value, shape=shape, **attributes)
    rest = [d for d in range(product.shape.rank) if d != at]
    return b.transpose(product, (at, *rest))


_DOT_DIMS = ("lhs_batch_dims", "lhs_contracting_dims", "rhs_batch_dims", "rhs_contracting_dims")
_RULES: dict[Opcode, Rule] = {
    Opcode.BROADCAST: _broadcast,
    Opcode.RESHAPE: _reshape,
    Opcode.TRANSPOSE: _transpose,
    Opcode.SLICE: _slice,
    Opcode.REVERSE: _reverse,
    Opcode.CONCATENATE: _concatenate,
    Opcode.PAD: _pad,
    Opcode.REDUCE: _reduce,
    Opcode.DOT: _dot,
}
"""Rules of opcodes that are not elementwise."""
