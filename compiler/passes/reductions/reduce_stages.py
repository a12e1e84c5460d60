"""Reduction in stages: a large reduction to few results becomes one of each chunk and one of the chunks' results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, Trait
from compiler.ir.attributes import PadDim
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value, scalar_function
from compiler.passes.infrastructure.registry import register

WARP = 32
"""Adjacent columns that one multiprocessor reduces together."""
SINGLE_BYTES = 50e9
"""Estimated bytes per second that one multiprocessor reads alone: about twice its share of the memory bandwidth."""
ALL_BYTES = 25e9
"""Estimated bytes per second that each multiprocessor reads while all of them read."""
SECOND_STAGE = 3e-6
"""Estimated seconds that the second kernel takes."""
LEAST_BYTES = 16 * 1024
"""Minimum size of what one multiprocessor reduces of a chunk."""
CHUNKS_PER_UNIT = 2
"""Chunks that a multiprocessor reduces."""
MOST_ROWS = 64
"""Rows per multiprocessor up to which the second stage may add up a result of each."""
MOST_OPERATIONS = 64
"""How many operations are followed back from a reduction."""
_SMALL = frozenset({Opcode.BROADCAST, Opcode.CONSTANT, Opcode.IOTA})
"""Opcodes of operands that need not be read from memory for each element."""


@register
@dataclass(frozen=True)
class ReduceStages(InstructionPass):
    """Rewrite reduce(x, init) -> reduce(reduce(chunks of x, identity), init), if the first has more parallelism.

    It applies to reductions by a function with an identity element that would leave most multiprocessors of a GPU idle.
    How many chunks there are depends on shapes alone, so results do not depend on the GPU; sums change their order.
    Where no suitable number of chunks divides the reduced dimensions, they are padded with the identity.

    Attributes:
        units: number of multiprocessors.
    """

    name: ClassVar[str] = "reduce-stages"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.REDUCE})
    units: int = number_option(132, 1, 4096)

    def visit(self, instruction: HloInstruction) -> bool:
        """Split a reduction; return whether anything changed."""
        i = instruction
        if len(i.operands) != 2 or i.parent is None or i.shape.is_dynamic:
            return False
        if i.control_predecessors or not i.dimensions or i.shape.element_type is not i.operand(0).shape.element_type:
            return False
        function = scalar_function(i.attributes["to_apply"])
        t = i.shape.element_type
        if function is None or (t.is_narrow_float and function not in (Opcode.MAXIMUM, Opcode.MINIMUM)):
            return False  # partial results of few bits would be rounded
        neutral = identity_value(function, t)
        group = _adjacent_dimensions(i)
        if neutral is None or group is None:
            return False
        chunks = self._chunks(i, group)
        if chunks < 2:
            return False
        _split(i, group, chunks, Builder(i.parent).scalar(neutral, t))
        return True

    def _chunks(self, i: HloInstruction, group: tuple[int, int]) -> int:
        """Return into how many chunks the adjacent reduced dimensions should be divided; 1 for none."""
        dims = i.operand(0).shape.dimensions
        results, elements = max(1, i.shape.num_elements), math.prod(dims)
        adjacent = _adjacent_in_memory(i.operand(0))
        by_rows = adjacent is None or adjacent in i.dimensions
        busy = results if by_rows else -(-results // WARP)
        size = elements * i.operand(0).shape.element_type.byte_size
        single = size / (min(busy, self.units) * SINGLE_BYTES)
        if busy >= self.units or single < 2 * (size / (self.units * ALL_BYTES) + SECOND_STAGE):
            return 1
        length = math.prod(dims[slice(*group)])
        most = min(length // 2, size // (busy * LEAST_BYTES))
        if most < 2:
            return 1
        rows = _rows_beside(i, group)
        if self.units // 2 <= rows * busy <= MOST_ROWS * self.units:
            return rows
        return divisor_near(min(-(-CHUNKS_PER_UNIT * self.units // busy), most), length)


def _adjacent_dimensions(i: HloInstruction) -> tuple[int, int] | None:
    """Return the longest range of reduced dimensions that are adjacent, the first of equal ones.

    It is None if they have no elements.
    """
    dims = i.operand(0).shape.dimensions
    if 0 in dims:
        return None
    found, first = [], 0
    while first < len(dims):
        last = first
        while last in i.dimensions:
            last += 1
        if last > first:
            found.append((first, last))
        first = last + 1
    return max(found, key=lambda r: math.prod(dims[slice(*r)]))


def _rows_beside(i: HloInstruction, group: tuple[int, int]) -> int:
    """Return the number of rows of what is reduced, if reductions of the same rows come before it; else 0.

    A first stage that reduces each row may be computed with them, by one kernel that reads the rows once.
    """
    first, last = group
    dims = i.operand(0).shape.dimensions
    if first or last < len(dims):
        return 0
    seen, work = {i.operand(0)}, [i.operand(0)]
    while work and len(seen) <= MOST_OPERATIONS:
        x = work.pop()
        if x.opcode is Opcode.REDUCE:
            rank = len(dims) - len(x.dimensions)
            if x.operand(0).shape.dimensions == dims and sorted(x.dimensions) == list(range(rank, len(dims))) and rank:
                return math.prod(dims[:rank])
            continue
        for o in x.operands:
            if o not in seen:
                seen.add(o)
                work.append(o)
    return 0


def _adjacent_in_memory(x: HloInstruction) -> int | None:
    """Return the dimension of an array along which elements are adjacent where it is read, None if it has one element.

    An elementwise operation reads as its first operand of the same shape does that is not broadcast, and a transpose as
    its operand, because fusions compute these where they reduce them.
    """
    order = list(range(x.shape.rank))  # dimensions of the array, by those of the operand that is read
    for _ in range(MOST_OPERATIONS):
        if x.opcode is Opcode.TRANSPOSE:
            moved = x.dimensions
            order = [order[moved.index(d)] for d in range(x.shape.rank)]
            x = x.operand(0)
            continue
        read = (o for o in x.operands if o.shape.dimensions == x.shape.dimensions and o.opcode not in _SMALL)
        source = next(read, None) if x.opcode.has(Trait.ELEMENTWISE) else None
        if source is None:
            break
        x = source
    return next((order[d] for d in reversed(range(x.shape.rank)) if x.shape.dimensions[d] != 1), None)


def divisor_near(wanted: int, length: int) -> int:
    """Return a divisor of a length that is at least half of what is wanted and at most twice, else what is wanted."""
    near = (n for n in range(wanted, max(1, wanted // 2), -1) if length % n == 0)
    far = (n for n in range(wanted, 2 * wanted + 1) if length % n == 0)
    return next(near, next(far, wanted))


def _split(i: HloInstruction, group: tuple[int, int], chunks: int, neutral: HloInstruction) -> None:
    """Replace the reduction by two, of which the first reduces `chunks` parts of a range of dimensions."""
    computation = i.parent
    assert computation is not None  # noqa: S101 - the pass found it in a computation
    b = Builder(computation)
    source, init = i.operands
    dims, (first, last) = source.shape.dimensions, group
    length = math.prod(dims[first:last])
    inner = -(-length // chunks)
    if dims[first] % chunks == 0:  # no index has to be divided
        split = b.reshape(source, (*dims[:first], chunks, dims[first] // chunks, *dims[first + 1 :]))
    else:
        x = b.reshape(source, (*dims[:first], length, *dims[last:]))
        after = PadDim(0, chunks * inner - length)
        x = b.pad(x, neutral, [after if d == first else PadDim(0, 0) for d in range(x.shape.rank)])
        split = b.reshape(x, (*dims[:first], chunks, inner, *dims[last:]))
    # Dimensions from the chunks on have moved; those merged into them are gone.
    moved = split.shape.rank - source.shape.rank
    others = [d + (moved if d >= last else 0) for d in i.dimensions if not first <= d < last]
    reduced = [*range(first + 1, last + moved), *others]
    order = list(range(split.shape.rank))
    adjacent = _adjacent_in_memory(source)
    if adjacent is not None and adjacent == max((d for d in range(len(dims)) if d not in i.dimensions), default=None):
        # Adjacent threads compute adjacent results, so that results are adjacent which are read from adjacent elements.
        order.append(order.pop(adjacent + (moved if adjacent >= last else 0)))
        if order != sorted(order):
            split = b.transpose(split, order)
    function = i.attributes["to_apply"]
    partial = b.reduce(split, neutral, sorted(order.index(d) for d in reduced), function)
    chunk = [d for d in order if d not in reduced].index(first)
    computation.replace(i, b.reduce(partial, init, [chunk], function))
