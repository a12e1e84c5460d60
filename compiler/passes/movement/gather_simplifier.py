"""Gather and scatter simplification: those that are slices, because of a single index or known positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet
from compiler.passes.movement.known_rows import CompleteRows, sum_of_gathers

RULES = RuleSet()
MAX_RUNS = 4
"""Number of runs of rows up to which a gather of known rows is a concatenation."""
MAX_SHORT = 16
"""Number of known elements of each row up to which a gather of them is a concatenation."""


@register
@dataclass(frozen=True)
class GatherSimplifier(RewritePass):
    """Rewrite gathers by one index -> dynamic-slice and by evenly spaced known rows -> slices; drop empty gathers.

    Scatters of one window, or of consecutive known rows, become updates. Sums into most rows of an array at known
    places become gathers.
    """

    name: ClassVar[str] = "gather-simplifier"
    rules: ClassVar[RuleSet] = RULES


def _index_count(indices: HloInstruction, vector_dim: int) -> int:
    """Return the number of index vectors."""
    dims = indices.shape.dimensions
    total = indices.shape.num_elements
    return total if vector_dim >= len(dims) else total // max(1, dims[vector_dim])


def _starts(
    indices: HloInstruction, vector_dim: int, mapped: tuple[int, ...], rank: int, b: Builder
) -> list[HloInstruction]:
    """Return the scalar start indices of the only index vector; 0 for dimensions that it does not index."""
    element = indices.shape.element_type
    found = [b.scalar(0, element) if d not in mapped else None for d in range(rank)]
    flat = b.reshape(indices, (len(mapped),))
    for n, d in enumerate(mapped):
        found[d] = b.reshape(b.slice(flat, [SliceDim(n, n + 1)]), ())
    return [f for f in found if f is not None]


@RULES.on(Opcode.GATHER)
def _gather_one(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a gather by one index vector -> dynamic-slice, which clamps in the same way."""
    x, indices = i.operands
    vector_dim: int = i.attributes["index_vector_dim"]
    if i.attr("operand_batching_dims", ()) or i.shape.num_elements == 0 or x.shape.num_elements == 0:
        return None
    if _index_count(indices, vector_dim) != 1:
        return None
    starts = _starts(indices, vector_dim, i.attributes["start_index_map"], x.shape.rank, b)
    sizes: tuple[int, ...] = i.attributes["slice_sizes"]
    window = b.add(Opcode.DYNAMIC_SLICE, x, *starts, dynamic_slice_sizes=sizes)
    # All batch dimensions are 1 and window dimensions keep their order, so a reshape suffices.
    return b.reshape(window, i.shape.dimensions)


@RULES.on(Opcode.GATHER)
def _gather_nothing(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return b.splat(0, i.shape) if i.shape.num_elements == 0 else None


@RULES.on(Opcode.GATHER)
def _gather_in_order(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a gather of rows k, k+s, k+2s... (an iota, or constants) -> slice, reversed if s is negative.

    A few such runs, one of which has most of the rows, are concatenated: the rows of an array with a border that
    mirrors, repeats or continues it.
    """
    x, indices = i.operands
    mapped: tuple[int, ...] = i.attributes["start_index_map"]
    if len(mapped) != 1 or i.attr("operand_batching_dims", ()):
        return None
    (d,) = mapped
    sizes: tuple[int, ...] = i.attributes["slice_sizes"]
    if sizes[d] != 1 or i.attributes["collapsed_slice_dims"] != (d,):
        return None
    if any(n != m for k, (n, m) in enumerate(zip(sizes, x.shape.dimensions, strict=True)) if k != d):
        return None
    batch = [k for k in range(i.shape.rank) if k not in i.attributes["offset_dims"]]
    if len(batch) != 1:
        return None
    is_short = math.prod(x.shape.dimensions[d + 1 :]) == 1 and batch == [i.shape.rank - 1]
    # gcc 12 makes no vectors of loops that load each of 16 bytes.
    most = MAX_SHORT - (x.shape.element_type.byte_size == 1)
    runs = _runs_of(indices, most if is_short else 0)
    if sum(r.count for r in runs) != i.shape.dimensions[batch[0]]:
        return None
    if any(min(r.first, r.last) < 0 or max(r.first, r.last) >= x.shape.dimensions[d] for r in runs):
        return None
    parts = [_rows(x, d, r, b) for r in runs]
    rows = parts[0] if len(parts) == 1 else b.concatenate(parts, d)
    others = iter(k for k in range(x.shape.rank) if k != d)
    return b.transpose(rows, [d if k == batch[0] else next(others) for k in range(i.shape.rank)])


def _rows(x: HloInstruction, d: int, run: _Run, b: Builder) -> HloInstruction:
    """Return the rows of an array along a dimension."""
    low, high = min(run.first, run.last), max(run.first, run.last)
    taken = SliceDim(low, high + 1, max(1, abs(run.step)))
    rows = b.slice(x, [taken if k == d else SliceDim(0, n) for k, n in enumerate(x.shape.dimensions)])
    if run.step < 0:
        return b.add(Opcode.REVERSE, rows, dimensions=(d,))
    if run.step or run.count == 1:
        return rows
    sizes = [run.count if k == d else n for k, n in enumerate(x.shape.dimensions)]
    kept = [k for k in range(x.shape.rank) if k != d]
    return b.broadcast(b.reshape(rows, [sizes[k] for k in kept]), sizes, kept)


@dataclass(frozen=True)
class _Run:
    """Evenly spaced numbers; all are equal if the step is 0."""

    first: int
    step: int
    count: int

    @property
    def last(self) -> int:
        return self.first + (self.count - 1) * self.step


def _run_of(indices: HloInstruction) -> _Run | None:
    """Return the indices if they are known and evenly spaced with a step other than 0, else None."""
    runs = _runs_of(indices)
    return runs[0] if len(runs) == 1 and (runs[0].step or runs[0].count == 1) else None


def _runs_of(indices: HloInstruction, short: int = 0) -> tuple[_Run, ...]:
    """Return the indices as runs if they are known and a few runs, of which one has most of them; else nothing.

    Up to `short` indices may be any runs.
    """
    while is_op(indices, Opcode.RESHAPE) and indices.operands[0].shape.num_elements == indices.shape.num_elements:
        indices = indices.operands[0]
    if is_op(indices, Opcode.IOTA):
        n = indices.shape.dimensions[indices.attributes["iota_dimension"]]
        # In a narrow type, so many numbers would wrap around.
        fits = n == indices.shape.num_elements and n <= 1 << (indices.shape.element_type.bits - 1)
        return (_Run(0, 1, n),) if fits else ()
    if indices.literal is None or indices.literal.array is None or indices.shape.num_elements == 0:
        return ()
    values = indices.literal.array.reshape(-1).astype(np.int64)
    found: list[_Run] = []
    at = 0
    is_short = values.size <= short
    while at < values.size and len(found) < (short if is_short else MAX_RUNS):
        steps = np.diff(values[at:])
        uneven = np.flatnonzero(steps != steps[0]) if steps.size else steps
        count = (int(uneven[0]) if uneven.size else steps.size) + 1
        found.append(_Run(int(values[at]), int(steps[0]) if steps.size else 1, count))
        at += count
    is_one = len(found) == 1
    longest = max((r.count for r in found if r.step), default=0)
    if at < values.size or not (is_one or is_short or 2 * longest >= values.size):
        return ()
    return tuple(found)


@RULES.on(Opcode.SCATTER)
def _scatter_one(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a scatter of one window at a known position in bounds -> update, combined with the old values."""
    if len(i.operands) != 3 or i.attr("input_batching_dims", ()):
        return None
    x, indices, updates = i.operands
    vector_dim: int = i.attributes["index_vector_dim"]
    if _index_count(indices, vector_dim) != 1 or indices.literal is None or indices.literal.array is None:
        return None
    mapped: tuple[int, ...] = i.attributes["scatter_dims_to_operand_dims"]
    inserted: tuple[int, ...] = i.attributes["inserted_window_dims"]
    window = iter(updates.shape.dimensions[d] for d in i.attributes["update_window_dims"])
    sizes = [1 if d in inserted else next(window) for d in range(x.shape.rank)]
    values = dict(zip(mapped, (int(v) for v in indices.literal.array.reshape(-1)), strict=True))
    at = [values.get(d, 0) for d in range(x.shape.rank)]
    if any(s < 0 or s + n > m for s, n, m in zip(at, sizes, x.shape.dimensions, strict=True)):
        return None
    return _updated(i, b.reshape(updates, sizes), at, b)


@RULES.on(Opcode.SCATTER)
def _scatter_in_order(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a scatter of complete rows k, k+1, k+2... in bounds -> update."""
    rows = CompleteRows.of(i)
    if rows is None:
        return None
    x, indices, updates = i.operands
    d, run = rows.dim, _run_of(indices)
    if (
        run is None
        or run.step != 1
        or run.count != updates.shape.dimensions[rows.batch]
        or run.first < 0
        or run.last >= x.shape.dimensions[d]
    ):
        return None
    at = [run.first if k == d else 0 for k in range(x.shape.rank)]
    return _updated(i, b.transpose(updates, rows.order), at, b)


RULES.on(Opcode.SCATTER)(sum_of_gathers)


def _updated(i: HloInstruction, place: HloInstruction, at: list[int], b: Builder) -> HloInstruction | None:
    """Return the operand with `place` at known starts, combined with the old values by the scatter's function."""
    x, root = i.operands[0], i.attributes["to_apply"].root
    if root.parameter_number != 1:
        numbers = [o.parameter_number for o in root.operands]
        if len(numbers) != 2 or sorted(n for n in numbers if n is not None) != [0, 1] or root.opcode is Opcode.COMPARE:
            return None
        cut = [SliceDim(s, s + n) for s, n in zip(at, place.shape.dimensions, strict=True)]
        old = b.slice(x, cut)
        place = b.add(root.opcode, *((old, place) if numbers == [0, 1] else (place, old)))
    starts = [b.scalar(s, PrimitiveType.S32) for s in at]
    return b.add(Opcode.DYNAMIC_UPDATE_SLICE, x, place, *starts) if x.shape.rank else place


@RULES.on(Opcode.SCATTER)
def _scatter_nothing(i: HloInstruction, b: Builder) -> HloInstruction | None:
    nothing = len(i.operands) == 3 and i.operands[2].shape.num_elements == 0
    return i.operands[0] if nothing else None
