"""Product in stages: a long product with a small result becomes products of parts of its depth and their sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, make_dot
from compiler.passes.dots.product_fusion import ProductSizes
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.reductions.reduce_stages import SECOND_STAGE

TILE, STEP = 32, 32
"""Edge of the smallest tile of a result, and the elements of the depth that a block loads at a time."""
STEP_SECONDS = 4e-7
"""Estimated seconds of such a step on a multiprocessor with one tile, which waits for its loads."""
L2_BYTES = 2.5e12
"""Estimated bytes of partial results per second that are stored and loaded again."""
LEAST_DEPTH = 4 * STEP
"""Least depth of a part."""
FEWEST_PARTS = 4
"""Least number of parts: a library gains as much as from two by other means."""
GAIN = 1.25
"""How many times as fast two stages must be estimated to be: the figures here are not measured."""
_TYPES = frozenset({T.F32, T.F64})


@register
@dataclass(frozen=True)
class ProductStages(InstructionPass):
    """Rewrite dot(x, y) -> reduce(dot(parts of x, parts of y)), if one product has too few tiles for a GPU.

    Each part is one matrix of a batch, whose partial results a second kernel adds in a fixed order. How many parts
    there are depends on shapes alone, so results do not depend on the GPU; sums change their order. Halves, of whose
    partial results the interpreter would round each, are left alone.

    Attributes:
        units: number of multiprocessors.
    """

    name: ClassVar[str] = "product-stages"
    units: int = number_option(132, 1, 4096)

    def visit(self, instruction: HloInstruction) -> bool:
        """Split a product; return whether anything changed."""
        dot = instruction
        if not is_plain_dot(dot) or dot.parent is None or dot.shape.is_dynamic or dot.control_predecessors:
            return False
        if any(x.shape.element_type not in _TYPES or x.shape.is_dynamic for x in (dot, *dot.operands)):
            return False
        sizes = ProductSizes.of(dot)
        if min(sizes.batch, sizes.k) < 1 or min(sizes.m, sizes.n) < 2:
            return False  # a product with a vector is a reduction
        dims = DotDims.of(dot)
        lengths = [dot.operands[0].shape.dimensions[d] for d in dims.lhs_contracting]
        most = min(2 * self.units, sizes.k // LEAST_DEPTH)
        found = (
            (self._seconds(dot, sizes, parts), parts, position)
            for position, length in enumerate(lengths)
            for parts in range(FEWEST_PARTS, min(most, length) + 1)
            if length % parts == 0
        )
        seconds, parts, position = min(found, default=(math.inf, 1, 0))
        if seconds * GAIN > self._seconds(dot, sizes, 1):
            return False
        _split(dot, dims, position, parts)
        return True

    def _seconds(self, dot: HloInstruction, sizes: ProductSizes, parts: int) -> float:
        """Return the estimated seconds of a product in parts, with their sum."""
        tiles = parts * sizes.batch * -(-sizes.m // TILE) * -(-sizes.n // TILE)
        product = -(-sizes.k // (parts * STEP)) * STEP_SECONDS * -(-tiles // self.units)
        sums = SECOND_STAGE + 2 * parts * dot.shape.byte_size / L2_BYTES
        return product + (sums if parts > 1 else 0.0)


def _split(dot: HloInstruction, dims: DotDims, position: int, parts: int) -> None:
    """Replace a dot by a batch of dots of parts of one contracted dimension, and the sum of their results."""
    computation = dot.parent
    assert computation is not None  # noqa: S101 - the pass found it in a computation
    b = Builder(computation)
    lhs, rhs = dot.operands
    left, right = dims.lhs_contracting[position], dims.rhs_contracting[position]

    def divided(x: HloInstruction, at: int) -> HloInstruction:
        sizes = x.shape.dimensions
        return b.reshape(x, (*sizes[:at], parts, sizes[at] // parts, *sizes[at + 1 :]))

    def moved(which: tuple[int, ...], at: int) -> tuple[int, ...]:
        return tuple(d + (d >= at) for d in which)

    made = DotDims(
        moved(dims.lhs_contracting, left),
        moved(dims.rhs_contracting, right),
        (left, *moved(dims.lhs_batch, left)),
        (right, *moved(dims.rhs_batch, right)),
    )
    partial = make_dot(b, dot, divided(lhs, left), divided(rhs, right), made)
    computation.replace(dot, b.sum(partial, [0]))
