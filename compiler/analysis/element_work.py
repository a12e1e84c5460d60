"""The scalar operations that one element of a result takes inside a kernel."""

from __future__ import annotations

import math

from compiler.ir import HloComputation, HloInstruction, Opcode, Trait

LOOP_FROM = 17
"""Reductions over at least this many elements run as loops; smaller ones are unrolled."""
SPLIT_FROM = 32
"""Loops over rows of at least this many elements are split where the operands of a concatenation meet."""
WRITTEN_OUT = 4
"""Elements of a row up to which a loop over it is written out, so that nothing tests which part has an element."""
MOST_ROLLED = 0.1
"""Share of a rolled array that comes from the other end at most."""

MOST_JOINED = 4
"""Greatest number of operands of a concatenation that one loop nest computes."""

SPECIFIC = frozenset((Opcode.REDUCE, Opcode.MAP, Opcode.CONCATENATE, Opcode.GATHER))
"""Opcodes whose operations per element depend on more than the opcode."""

_INDEXING = {
    Opcode.GATHER: 3.0, Opcode.CONCATENATE: 2.0, Opcode.PAD: 2.0, Opcode.DYNAMIC_SLICE: 0.5,
    Opcode.DYNAMIC_UPDATE_SLICE: 2.0, Opcode.REVERSE: 0.5, Opcode.TRANSPOSE: 0.5, Opcode.IOTA: 0.5,
}  # fmt: skip
"""Index arithmetic and branches of data movement, in scalar operations per element; those of a gather are shared by the
adjacent elements that it reads."""
NESTED_PAD = 30.0
"""Scalar operations per element of a pad between elements of a value that holds another one: one alone is a loop over
the elements and one over what is between them."""
LONGEST_RUN = 16
"""Number of adjacent elements beyond which a loop over them does not become faster."""

FLOPS = {
    op: _INDEXING.get(op, 0.0) if op.has(Trait.MOVEMENT) or op is Opcode.IOTA else float(op.row.flops) for op in Opcode
}
"""Scalar operations per element of each opcode, as far as they depend on the opcode alone."""


def needs_loop(instruction: HloInstruction) -> bool:
    """Check whether an instruction is a reduction that runs as a loop."""
    if instruction.opcode is not Opcode.REDUCE:
        return False
    return instruction.shape.is_tuple or reduced_elements(instruction) >= LOOP_FROM


def reduced_elements(reduce: HloInstruction) -> int:
    """Return how many elements are combined into each result."""
    dims = reduce.operands[0].shape.dimensions
    return math.prod(dims[d] for d in reduce.dimensions)


def flops_per_element(i: HloInstruction) -> float:
    """Return the scalar operations per element of the result."""
    if i.opcode is Opcode.REDUCE:
        return reduced_elements(i) * _callee_flops(i)
    if i.opcode is Opcode.MAP:
        return _callee_flops(i)
    if i.opcode is Opcode.GATHER:
        return FLOPS[i.opcode] / min(LONGEST_RUN, max(1, _gathered_run(i)))
    if i.opcode is Opcode.CONCATENATE:
        return FLOPS[i.opcode] * _tested(i)
    return FLOPS[i.opcode]


def _tested(concatenate: HloInstruction) -> float:
    """Return the share of the elements of a concatenation that are computed with tests of where they come from.

    Loops over long rows are split where the operands meet. In an array that is rolled, nearly all elements are then in
    the loop over the longest part. Only an array that is given counts, because a computed one is computed in each loop.
    """
    if concatenate.dimensions[0] == concatenate.shape.rank - 1 and concatenate.shape.dimensions[-1] <= WRITTEN_OUT:
        return 0.0
    largest = max(concatenate.operands, key=lambda o: o.shape.num_elements)
    rest = 1.0 - largest.shape.num_elements / max(1, concatenate.shape.num_elements)
    if largest.opcode is not Opcode.SLICE or rest > MOST_ROLLED or largest.shape.dimensions[-1] < SPLIT_FROM:
        return 1.0
    rolled = largest.operands[0]
    if rolled.opcode is Opcode.GET_TUPLE_ELEMENT:  # of the state of a loop
        rolled = rolled.operands[0]
    return rest if rolled.opcode is Opcode.PARAMETER else 1.0


def _gathered_run(gather: HloInstruction) -> int:
    """Return how many adjacent elements of the result are adjacent in the operand, so that they share an index.

    These are the elements of a row where rows are gathered, and 1 where elements are.
    """
    dims, sizes = gather.shape.dimensions, gather.attributes["slice_sizes"]
    last = len(dims) - 1
    if last not in gather.attributes["offset_dims"] or sizes[-1] != dims[-1]:
        return 1
    whole = sizes[-1] == gather.operands[0].shape.dimensions[-1]
    more = whole and len(sizes) > 1 and last - 1 in gather.attributes["offset_dims"] and sizes[-2] == dims[-2]
    return dims[-1] * (dims[-2] if more else 1)


def _callee_flops(i: HloInstruction) -> float:
    callee: HloComputation = i.attributes["to_apply"]
    return max(1.0, float(sum(c.opcode.row.flops for c in callee.instructions)))
