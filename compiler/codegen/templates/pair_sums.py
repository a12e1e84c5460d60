"""Sums over functions of the elements of two arrays for all pairs of their rows, such as distances, as tiles on a GPU.

They are like products of matrices with another function in place of the multiplication: each element of a tile of both
arrays is in shared memory once for all pairs of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.codegen.lowering.reductions import combiner_of
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode, Trait
from compiler.ir.types import PrimitiveType as T
from compiler.passes.infrastructure.builder import Builder

LEAST_ROWS, LEAST_DEPTH, LEAST_WORK = 32, 16, 1 << 20
"""Least rows of each array, terms of a sum, and terms of all sums from which on tiles are worth it."""


@dataclass(frozen=True)
class PairSum:
    """A sum over a function of two arrays in a copy of a fused computation, in which a dot represents it.

    Attributes:
        fused: the copy.
        roots: its outputs.
        dot: the product of the same arrays.
        term: the function, whose sum over the last dimensions is wanted; its shape is that of all terms.
        left, right: the broadcasts of the operands of the dot that it reads.
        order: for each dimension of the terms, its position in the index of an element of the dot: batch, free
            dimensions of the left and of the right operand, contracted ones.
    """

    fused: HloComputation
    roots: tuple[HloInstruction, ...]
    dot: HloInstruction
    term: HloInstruction
    left: HloInstruction
    right: HloInstruction
    order: tuple[int, ...]


def pair_sum_of(fused: HloComputation) -> PairSum | None:
    """Return the sum of a fused computation if it is one over pairs, and the only reduction, else None."""
    reductions = [i for i in fused.post_order() if i.opcode is Opcode.REDUCE]
    if len(reductions) != 1 or _sides(reductions[0]) is None:
        return None
    copy = fused.clone()
    (reduction,) = (i for i in copy.post_order() if i.opcode is Opcode.REDUCE)
    sides = _sides(reduction)
    assert sides is not None  # noqa: S101 - a copy has the same
    return _with_dot(copy, reduction, *sides)


def _sides(reduction: HloInstruction) -> tuple[HloInstruction, HloInstruction] | None:
    """Return the two broadcasts that a sum over pairs reads, or None if it is none, or too small."""
    if len(reduction.operands) != 2 or reduction.shape.element_type not in (T.F32, T.F64):
        return None
    start = reduction.operands[1]
    if combiner_of(reduction.attributes["to_apply"]) is not Opcode.ADD or start.opcode is not Opcode.CONSTANT:
        return None
    if not start.value.is_all(0) or reduction.operands[0].opcode is Opcode.BROADCAST:
        return None
    sides = _broadcasts_in(reduction.operands[0])
    if sides is None or len(sides) != 2:
        return None
    sizes, depth = reduction.operands[0].shape.dimensions, set(reduction.dimensions)
    of = [{d for d in s.dimensions if sizes[d] > 1} for s in sides]
    long = {d for d in depth if sizes[d] > 1}
    free = [found - of[1 - n] for n, found in enumerate(of)]
    rows = [math.prod(sizes[d] for d in f) for f in free]
    terms = math.prod(sizes[d] for d in long)
    if not all(long <= found for found in of) or min(rows) < LEAST_ROWS or terms < LEAST_DEPTH:
        return None
    if of[0] | of[1] != {d for d, n in enumerate(sizes) if n > 1} or math.prod(sizes) < LEAST_WORK:
        return None
    if any(s.shape.element_type is not reduction.shape.element_type for s in sides):
        return None
    return sides[0], sides[1]


def _broadcasts_in(term: HloInstruction) -> list[HloInstruction] | None:
    """Return the broadcasts of arrays from which elementwise ops compute a value; None if anything else does."""
    found: list[HloInstruction] = []
    seen, work = {term}, [term]
    while work:
        i = work.pop()
        if i.opcode is Opcode.BROADCAST:
            if i.operands[0].shape.num_elements > 1:
                found.append(i)
            continue
        if not i.opcode.is_elementwise or i.opcode.has(Trait.EXPENSIVE) or not i.operands or i.opcode is Opcode.MAP:
            return None
        new = [o for o in i.operands if o not in seen]
        seen.update(new)
        work += new
    return found


def _with_dot(fused: HloComputation, reduction: HloInstruction, left: HloInstruction, right: HloInstruction) -> PairSum:
    """Return a computation in which a dot takes the place of the reduction."""
    b = Builder(fused)
    term = reduction.operands[0]
    sizes = term.shape.dimensions
    contracted = [d for d in reduction.dimensions if sizes[d] > 1]
    operands = [_long(s, b) for s in (left, right)]
    dims = [[d for d in s.dimensions if sizes[d] > 1] for s in (left, right)]
    batch = [d for d in dims[0] if d in dims[1] and d not in contracted]
    free = [[d for d in found if d not in batch and d not in contracted] for found in dims]
    attributes = {}
    for side, found in zip(("lhs", "rhs"), dims, strict=True):
        attributes[f"{side}_contracting_dims"] = tuple(found.index(d) for d in contracted)
        if batch:
            attributes[f"{side}_batch_dims"] = tuple(found.index(d) for d in batch)
    place = [*batch, *free[0], *free[1]]
    dot = b.add(Opcode.DOT, *operands, shape=term.shape.with_dimensions(tuple(sizes[d] for d in place)), **attributes)
    kept = [d for d in range(len(sizes)) if d in place]
    moved = b.transpose(dot, [place.index(d) for d in kept])
    fused.replace_uses(reduction, b.reshape(moved, reduction.shape.dimensions))
    roots = fused.root.operands if fused.root.opcode is Opcode.TUPLE else (fused.root,)
    positions = [*place, *contracted]
    order = tuple(positions.index(d) if d in positions else -1 for d in range(len(sizes)))
    return PairSum(fused, tuple(roots), dot, term, left, right, order)


def _long(side: HloInstruction, b: Builder) -> HloInstruction:
    """Return what a broadcast repeats, without dimensions of size 1, in the order of the result."""
    x = side.operands[0]
    kept = [d for d, n in enumerate(x.shape.dimensions) if n > 1]
    return b.reshape(x, tuple(x.shape.dimensions[d] for d in kept))
