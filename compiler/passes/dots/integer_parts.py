"""Products of short integers in parts whose sums are exact in f32, which is at least twice as fast as f64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, make_dot
from compiler.passes.dots.outlining import is_fused
from compiler.passes.dots.product_fusion import ProductSizes
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder

EXACT = 1 << 24
"""Integers up to this number are exact in f32."""
UNIT = 8
"""The depth of a part is a multiple of it, so that rows of halves are aligned to 16 bytes."""


@dataclass(frozen=True)
class IntegerParts(InstructionPass):
    """Rewrite s32[m,n] dot(s8[m,4096], s8[4096,n]) -> the sum of s32[4,m,n] dot(s8[4,m,1024], s8[4,1024,n]).

    The largest sum of a part is exact in f32, so that the products of the batch need no f64. The parts are added in the
    type of the result, where both wrap around. A depth that cannot be divided is padded with zeros. Products with
    vectors, which are sums of integers, stay.
    """

    name: ClassVar[str] = "integer-parts"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.DOT})

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a dot; return whether anything changed."""
        dot, computation = instruction, instruction.parent
        if computation is None or dot.control_predecessors or not is_plain_dot(dot) or is_fused(computation):
            return False
        if any(x.shape.is_dynamic or not x.shape.element_type.is_integer for x in (dot, *dot.operands)):
            return False
        types = [o.shape.element_type for o in dot.operands]
        sizes, most = ProductSizes.of(dot), EXACT >> sum(t.bits - t.is_signed for t in types)
        if any(t.bits > UNIT for t in types) or sizes.k <= most or min(sizes.m, sizes.n) < 2 or sizes.batch < 1:
            return False
        dims = DotDims.of(dot)
        lengths = [dot.operands[0].shape.dimensions[d] for d in dims.lhs_contracting]
        longest = lengths.index(max(lengths))
        depth = most // (sizes.k // lengths[longest]) // UNIT * UNIT
        if depth == 0:
            return False
        parts = -(-lengths[longest] // depth)
        depth = -(-lengths[longest] // (parts * UNIT)) * UNIT
        _divide(dot, longest, parts, depth)
        return True


def _divide(dot: HloInstruction, position: int, parts: int, depth: int) -> None:
    """Replace a dot by the sum of products of `parts` parts of a contracted dimension, of `depth` elements each."""
    computation = dot.parent
    assert computation is not None  # noqa: S101 - the pass found it in a computation
    b, dims = Builder(computation), DotDims.of(dot)
    lhs = _divided(dot.operands[0], dims.lhs_contracting[position], parts, depth, b)
    rhs = _divided(dot.operands[1], dims.rhs_contracting[position], parts, depth, b)

    def moved(which: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d + 1 for d in which)

    made = DotDims(
        moved(dims.lhs_contracting), moved(dims.rhs_contracting), (0, *moved(dims.lhs_batch)),
        (0, *moved(dims.rhs_batch)),
    )  # fmt: skip
    computation.replace(dot, b.sum(make_dot(b, dot, lhs, rhs, made), (0,)))


def _divided(x: HloInstruction, d: int, parts: int, depth: int, b: Builder) -> HloInstruction:
    """Return an operand with a first dimension of parts; dimension `d`, now the next one, has their depth."""
    sizes = x.shape.dimensions
    ends = [PadDim(0, parts * depth - n if k == d else 0) for k, n in enumerate(sizes)]
    padded = b.pad(x, b.scalar(0, x.shape.element_type), ends)
    split = b.reshape(padded, (*sizes[:d], parts, depth, *sizes[d + 1 :]))
    return b.transpose(split, (d, *(k for k in range(len(sizes) + 1) if k != d)))
