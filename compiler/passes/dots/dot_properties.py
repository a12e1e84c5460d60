"""What passes on matrix products share: the dimensions of a dot, its cost, and building one like another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.passes.infrastructure.builder import Builder


@dataclass(frozen=True)
class DotDims:
    """Batch and contracting dimensions of both operands; what is left over is free.

    The result has the batch dimensions, then the free ones of the left operand, then those of the right, each in order.
    """

    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()

    @staticmethod
    def of(dot: HloInstruction) -> DotDims:
        """As the attributes say."""
        get = dot.attributes.get
        return DotDims(
            tuple(get("lhs_contracting_dims", ())),
            tuple(get("rhs_contracting_dims", ())),
            tuple(get("lhs_batch_dims", ())),
            tuple(get("rhs_batch_dims", ())),
        )

    def lhs_free(self, rank: int) -> list[int]:
        """Dimensions of the left operand that are neither batch nor contracting."""
        return [d for d in range(rank) if d not in self.lhs_contracting and d not in self.lhs_batch]

    def rhs_free(self, rank: int) -> list[int]:
        """Dimensions of the right operand that are neither batch nor contracting."""
        return [d for d in range(rank) if d not in self.rhs_contracting and d not in self.rhs_batch]

    def swapped(self) -> DotDims:
        """Of the product with its operands exchanged."""
        return DotDims(self.rhs_contracting, self.lhs_contracting, self.rhs_batch, self.lhs_batch)

    def attributes(self) -> dict[str, tuple[int, ...]]:
        """By their text names, empty batch dimensions left out."""
        found = {"lhs_contracting_dims": self.lhs_contracting, "rhs_contracting_dims": self.rhs_contracting}
        if self.lhs_batch:
            found |= {"lhs_batch_dims": self.lhs_batch, "rhs_batch_dims": self.rhs_batch}
        return found


_DIM_NAMES = frozenset({"lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims"})


def is_plain_dot(i: HloInstruction) -> bool:
    """A dot of two operands without sparsity."""
    return i.opcode is Opcode.DOT and len(i.operands) == 2 and "sparsity" not in i.attributes


def is_uniform_dot(i: HloInstruction) -> bool:
    """A plain dot whose operands have the result's element type."""
    if not is_plain_dot(i):
        return False
    t = i.shape.element_type
    return i.operands[0].shape.element_type is t and i.operands[1].shape.element_type is t


def make_dot(
    b: Builder, like: HloInstruction, lhs: HloInstruction, rhs: HloInstruction, dims: DotDims
) -> HloInstruction:
    """A dot with the precision and element type of `like` on other operands and dimensions."""
    kept: dict[str, Any] = {
        k: v
        for k, v in like.attributes.items()
        if k not in _DIM_NAMES and k not in ("control-predecessors", "metadata")
    }
    declared = Shape(like.shape.element_type)
    return b.add(Opcode.DOT, lhs, rhs, shape=declared, **dims.attributes(), **kept)


def dot_flops(i: HloInstruction) -> int:
    """Multiplications and additions of a plain dot: 2 for each element of the result and each contracted element."""
    contracted = math.prod(i.operands[0].shape.dimensions[d] for d in DotDims.of(i).lhs_contracting)
    return 2 * i.shape.num_elements * contracted
