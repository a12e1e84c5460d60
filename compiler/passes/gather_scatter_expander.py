"""Gather and scatter expansion: a loop over the indices that moves one window at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.ir.attributes import SliceDim
from compiler.passes.builder import Builder
from compiler.passes.counted_loop import counted_loop
from compiler.passes.patterns import inverse_permutation, scalar_function
from compiler.passes.registry import register
from compiler.passes.rewriting import RewritePass, RuleSet

GATHERS, SCATTERS = RuleSet(), RuleSet()


@register
@dataclass(frozen=True)
class GatherExpander(RewritePass):
    """A gather as a loop of dynamic slices; those with batching dimensions stay."""

    name: ClassVar[str] = "gather-expander"
    rules: ClassVar[RuleSet] = GATHERS


@register
@dataclass(frozen=True)
class ScatterExpander(RewritePass):
    """A scatter of one operand as a loop that reads, combines and writes back one window after the other.

    Windows that do not lie inside leave the operand as it is. Scatters with batching dimensions stay.
    """

    name: ClassVar[str] = "scatter-expander"
    rules: ClassVar[RuleSet] = SCATTERS


def _index_rows(indices: HloInstruction, vector_dim: int, b: Builder) -> HloInstruction:
    """Indices as a matrix, one row an index vector, in order."""
    rank = indices.shape.rank
    if vector_dim == rank:
        return b.reshape(indices, (indices.shape.num_elements, 1))
    order = [d for d in range(rank) if d != vector_dim] + [vector_dim]
    turned = b.transpose(indices, order)
    length = indices.shape.dimensions[vector_dim]
    return b.reshape(turned, (math.prod(turned.shape.dimensions[:-1]), length))


def _starts(
    rows: HloInstruction, i: HloInstruction, mapped: Sequence[int], rank: int, b: Builder
) -> list[HloInstruction]:
    """Scalar start indices of row `i` for each dimension of the operand."""
    zero = b.scalar(0, PrimitiveType.S32)
    row = b.add(Opcode.DYNAMIC_SLICE, rows, i, zero, dynamic_slice_sizes=(1, len(mapped)))
    nothing = b.scalar(0, rows.shape.element_type)
    found = [nothing] * rank
    for n, d in enumerate(mapped):
        found[d] = b.reshape(b.slice(row, [SliceDim(0, 1), SliceDim(n, n + 1)]), ())
    return found


@GATHERS.on(Opcode.GATHER)
def _gather(i: HloInstruction, b: Builder) -> HloInstruction | None:
    source, indices = i.operands
    if i.attr("operand_batching_dims") or i.shape.num_elements == 0 or source.shape.num_elements == 0:
        return None
    rows = _index_rows(indices, i.attributes["index_vector_dim"], b)
    count, mapped = rows.shape.dimensions[0], i.attributes["start_index_map"]
    sizes: tuple[int, ...] = i.attributes["slice_sizes"]
    window = tuple(n for d, n in enumerate(sizes) if d not in i.attributes["collapsed_slice_dims"])
    empty = b.splat(0, source.shape.with_dimensions((count, *window)))

    def step(c: Builder, n: HloInstruction, carried: Sequence[HloInstruction]) -> Sequence[HloInstruction]:
        data, at, result = carried
        starts = _starts(at, n, mapped, data.shape.rank, c)
        taken = c.add(Opcode.DYNAMIC_SLICE, data, *starts, dynamic_slice_sizes=sizes)
        zero = c.scalar(0, PrimitiveType.S32)
        put = c.reshape(taken, (1, *window))
        return data, at, c.add(Opcode.DYNAMIC_UPDATE_SLICE, result, put, n, *[zero] * len(window))

    (flat,) = counted_loop(b, count, (source, rows, empty), step, (2,), "gather")
    offsets: tuple[int, ...] = i.attributes["offset_dims"]
    batch = [d for d in range(i.shape.rank) if d not in offsets]
    shaped = b.reshape(flat, [i.shape.dimensions[d] for d in (*batch, *offsets)])
    return b.transpose(shaped, inverse_permutation((*batch, *offsets)))


@SCATTERS.on(Opcode.SCATTER)
def _scatter(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if len(i.operands) != 3 or i.attr("input_batching_dims"):
        return None
    source, indices, updates = i.operands
    if updates.shape.num_elements == 0 or source.shape.num_elements == 0:
        return source
    rows = _index_rows(indices, i.attributes["index_vector_dim"], b)
    count, mapped = rows.shape.dimensions[0], i.attributes["scatter_dims_to_operand_dims"]
    window_dims: tuple[int, ...] = i.attributes["update_window_dims"]
    batch = [d for d in range(updates.shape.rank) if d not in window_dims]
    window = [updates.shape.dimensions[d] for d in window_dims]
    flat = b.reshape(b.transpose(updates, (*batch, *window_dims)), (count, *window))
    inserted, kept = i.attributes["inserted_window_dims"], iter(window)
    sizes = tuple(1 if d in inserted else next(kept) for d in range(source.shape.rank))

    def step(c: Builder, n: HloInstruction, carried: Sequence[HloInstruction]) -> Sequence[HloInstruction]:
        data, at, news = carried
        starts = _starts(at, n, mapped, data.shape.rank, c)
        zero = c.scalar(0, PrimitiveType.S32)
        row = c.add(Opcode.DYNAMIC_SLICE, news, n, *[zero] * len(window), dynamic_slice_sizes=(1, *window))
        old = c.add(Opcode.DYNAMIC_SLICE, data, *starts, dynamic_slice_sizes=sizes)
        new = _combined(i, old, c.reshape(row, sizes), c)
        inside = _inside([starts[d] for d in mapped], [data.shape.dimensions[d] - sizes[d] for d in mapped], c)
        kept_or_new = new if inside is None else c.add(Opcode.SELECT, inside, new, old)
        return c.add(Opcode.DYNAMIC_UPDATE_SLICE, data, kept_or_new, *starts), at, news

    return counted_loop(b, count, (source, rows, flat), step, (0,), "scatter")[0]


def _combined(i: HloInstruction, old: HloInstruction, new: HloInstruction, b: Builder) -> HloInstruction:
    computation = i.attributes["to_apply"]
    if computation.root.opcode is Opcode.PARAMETER:
        return new if computation.root.parameter_number == 1 else old
    function = scalar_function(computation)
    if function is not None and function is not Opcode.COMPARE:
        return b.add(function, old, new)
    dims = tuple(range(old.shape.rank))
    return b.add(Opcode.MAP, old, new, to_apply=computation, dimensions=dims)


def _inside(starts: Sequence[HloInstruction], most: Sequence[int], b: Builder) -> HloInstruction | None:
    """Whether all starts lie in [0, most]; None where their type cannot leave it."""
    tests: list[HloInstruction] = []
    for start, limit in zip(starts, most, strict=True):
        kind = start.shape.element_type
        greatest = (1 << (kind.bits - kind.is_signed)) - 1
        if kind.is_signed:
            tests.append(b.compare(start, b.scalar(0, kind), "GE"))
        if limit < greatest:
            tests.append(b.compare(start, b.scalar(limit, kind), "LE"))
    if not tests:
        return None
    found = tests[0]
    for t in tests[1:]:
        found = b.add(Opcode.AND, found, t)
    return found
