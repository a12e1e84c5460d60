"""Shared functions of passes on dots: dimension numbers, cost, and construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.passes.infrastructure.builder import Builder


@dataclass(frozen=True)
class DotDims:
    """Batch and contracting dimensions of both operands; the remaining dimensions are free.

    The result has the batch dimensions, then the free dimensions of the lhs, then those of the rhs, each in order.
    """

    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()

    @staticmethod
    def of(dot: HloInstruction) -> DotDims:
        """Return the dimension numbers of a dot."""
        get = dot.attributes.get
        return DotDims(
            tuple(get("lhs_contracting_dims", ())),
            tuple(get("rhs_contracting_dims", ())),
            tuple(get("lhs_batch_dims", ())),
            tuple(get("rhs_batch_dims", ())),
        )

    def lhs_free(self, rank: int) -> list[int]:
        """Return the dimensions of the lhs that are neither batch nor contracting."""
        return [d for d in range(rank) if d not in self.lhs_contracting and d not in self.lhs_batch]

    def rhs_free(self, rank: int) -> list[int]:
        """Return the dimensions of the rhs that are neither batch nor contracting."""
        return [d for d in range(rank) if d not in self.rhs_contracting and d not in self.rhs_batch]

    def swapped(self) -> DotDims:
        """Return the dimension numbers of the dot with swapped operands."""
        return DotDims(self.rhs_contracting, self.lhs_contracting, self.rhs_batch, self.lhs_batch)

    def attributes(self) -> dict[str, tuple[int, ...]]:
        """Return the attributes by name, without empty batch dimensions."""
        found = {"lhs_contracting_dims": self.lhs_contracting, "rhs_contracting_dims": self.rhs_contracting}
        if self.lhs_batch:
            found |= {"lhs_batch_dims": self.lhs_batch, "rhs_batch_dims": self.rhs_batch}
        return found


_DIM_NAMES = frozenset({"lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims"})


def is_plain_dot(i: HloInstruction) -> bool:
    """Check for a dot of two operands without sparsity."""
    return i.opcode is Opcode.DOT and len(i.operands) == 2 and "sparsity" not in i.attributes


def is_uniform_dot(i: HloInstruction) -> bool:
    """Check for a plain dot whose operands have the element type of the result."""
    if not is_plain_dot(i):
        return False
    t = i.shape.element_type
    return i.operands[0].shape.element_type is t and i.operands[1].shape.element_type is t


def make_dot(
    b: Builder, like: HloInstruction, lhs: HloInstruction, rhs: HloInstruction, dims: DotDims
) -> HloInstruction:
    """Add a dot with the precision and element type of `like`, but other operands and dimensions."""
    kept: dict[str, Any] = {
        k: v
        for k, v in like.attributes.items()
        if k not in _DIM_NAMES and k not in ("control-predecessors", "metadata")
    }
    declared = Shape(like.shape.element_type)
    return b.add(Opcode.DOT, lhs, rhs, shape=declared, **dims.attributes(), **kept)


def dot_flops(i: HloInstruction) -> int:
    """Return the flops of a plain dot: 2 per result element and contracted element."""
    contracted = math.prod(i.operands[0].shape.dimensions[d] for d in DotDims.of(i).lhs_contracting)
    return 2 * i.shape.num_elements * contracted


def needs_transpose(dot: HloInstruction, operand: HloInstruction) -> bool:
    """Check whether the dimensions of an operand of a plain dot are not in an order that a library reads."""
    dims, shape = DotDims.of(dot), operand.shape
    left = operand is dot.operands[0]
    batch, contracted = (dims.lhs_batch, dims.lhs_contracting) if left else (dims.rhs_batch, dims.rhs_contracting)
    free = dims.lhs_free(shape.rank) if left else dims.rhs_free(shape.rank)
    orders = ([*batch, *free, *contracted], [*batch, *contracted, *free])
    stored = [d for d in range(shape.rank) if shape.dimensions[d] != 1]
    return all([d for d in order if shape.dimensions[d] != 1] != stored for order in orders)
