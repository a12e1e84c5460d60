"""Top-k in stages: the first elements of a long row are chosen among those of its chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register

CHUNKS_PER_UNIT = 2
"""Chunks that a multiprocessor orders."""
LEAST_CHUNK = 1024
"""Fewest elements of a chunk: a block takes about as long to order fewer."""
SHARE = 4
"""Fewest elements of a chunk per element that is chosen from it."""
MOST_ELEMENTS = 1 << 31
"""Elements of an array whose positions are s32."""
_S32 = PrimitiveType.S32


@register
@dataclass(frozen=True)
class TopkStages(InstructionPass):
    """Rewrite topk(x) -> topk(topk(chunks of x)) with the positions in x, if few rows leave multiprocessors idle.

    Results are the same: equal elements have the order of their positions in each chunk, and chunks follow each other.

    Attributes:
        units: number of multiprocessors.
    """

    name: ClassVar[str] = "topk-stages"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.TOPK})
    units: int = number_option(132, 1, 4096)

    def visit(self, instruction: HloInstruction) -> bool:
        """Split a topk; return whether anything changed."""
        i = instruction
        if i.parent is None or i.control_predecessors:
            return False
        x, k = i.operand(0), int(i.attributes["k"])
        if x.shape.is_dynamic or 0 in x.shape.dimensions or not k or x.shape.num_elements >= MOST_ELEMENTS:
            return False
        chunks = self._chunks(x.shape, k)
        if chunks < 2:
            return False
        _split(i, x, k, chunks)
        return True

    def _chunks(self, shape: Shape, k: int) -> int:
        """Return into how many chunks a row should be divided; 1 for none."""
        *outer, length = shape.dimensions
        rows = math.prod(outer)
        if 2 * rows > self.units:
            return 1
        most = min(CHUNKS_PER_UNIT * self.units // rows, length // max(LEAST_CHUNK, SHARE * k))
        return next((n for n in range(most, 1, -1) if length % n == 0), 1)


def _split(i: HloInstruction, x: HloInstruction, k: int, chunks: int) -> None:
    """Replace a topk of rows by one of their chunks, and one of what was chosen of these."""
    computation = i.parent
    assert computation is not None  # noqa: S101 - the pass found it in a computation
    b = Builder(computation)
    *outer, length = x.shape.dimensions
    rows, candidates = math.prod(outer), chunks * k

    def chosen(of: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
        kept = {name: value for name, value in i.attributes.items() if name in ("k", "largest", "is_stable")}
        made = b.add(Opcode.TOPK, of, **kept)
        return b.add(Opcode.GET_TUPLE_ELEMENT, made, index=0), b.add(Opcode.GET_TUPLE_ELEMENT, made, index=1)

    def numbered(sizes: tuple[int, ...], dim: int, step: int) -> HloInstruction:
        shape = Shape(_S32, sizes)
        return b.add(Opcode.MULTIPLY, b.add(Opcode.IOTA, shape=shape, iota_dimension=dim), b.splat(step, shape))

    values, positions = chosen(b.reshape(x, (rows, chunks, length // chunks)))
    positions = b.add(Opcode.ADD, positions, numbered((rows, chunks, k), 1, length // chunks))
    found, among = chosen(b.reshape(values, (rows, candidates)))
    at = b.add(Opcode.ADD, among, numbered((rows, k), 0, candidates))
    origin = b.add(
        Opcode.GATHER, b.reshape(positions, (rows * candidates,)), b.reshape(at, (rows, k, 1)),
        offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=2, slice_sizes=(1,),
    )  # fmt: skip
    results = (b.reshape(r, (*outer, k)) for r in (found, origin))
    computation.replace(i, b.add(Opcode.TUPLE, *results))
