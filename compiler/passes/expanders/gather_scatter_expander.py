"""Gather and scatter expansion: a loop over the indices that processes one window per iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType
from compiler.ir.attributes import SliceDim
from compiler.passes.expanders.map_inliner import lifted
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import COMMUTATIVE, inverse_permutation, scalar_function
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf
from compiler.passes.loops.counted_loop import counted_loop

GATHERS, SCATTERS = RuleSet(), RuleSet()


@register
@dataclass(frozen=True)
class GatherExpander(RewritePass):
    """Replace a gather by a loop of dynamic slices."""

    name: ClassVar[str] = "gather-expander"
    rules: ClassVar[RuleSet] = GATHERS


@register
@dataclass(frozen=True)
class ScatterExpander(RewritePass):
    """Replace a scatter by a loop that reads, combines and writes one window per iteration.

    Windows that are out of bounds leave the operands unchanged. Scatters of several operands are kept if their function
    has ops that are not elementwise.

    Attributes:
        simple: also expand scatters that replace elements of one operand, or combine them by a single op.
    """

    name: ClassVar[str] = "scatter-expander"
    rules: ClassVar[RuleSet] = SCATTERS
    simple: bool = True

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""
        if self.simple:
            return self.rules.of

        def expand(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return None if _is_simple(i) else _scatter(i, b)

        return lambda op: (expand,) if op is Opcode.SCATTER else ()


def _is_simple(scatter: HloInstruction) -> bool:
    function: HloComputation = scatter.attributes["to_apply"]
    replaces = function.root.opcode is Opcode.PARAMETER and function.root.parameter_number == 1
    return len(scatter.operands) == 3 and (replaces or scalar_function(function) in COMMUTATIVE)


def _index_rows(indices: HloInstruction, vector_dim: int, b: Builder) -> HloInstruction:
    """Return the indices as a matrix with one index vector per row, in order."""
    rank = indices.shape.rank
    if vector_dim == rank:
        return b.reshape(indices, (indices.shape.num_elements, 1))
    order = [d for d in range(rank) if d != vector_dim] + [vector_dim]
    turned = b.transpose(indices, order)
    length = indices.shape.dimensions[vector_dim]
    return b.reshape(turned, (math.prod(turned.shape.dimensions[:-1]), length))


@dataclass(frozen=True)
class _Windows:
    """The windows of a gather or scatter.

    Attributes:
        rows: start indices, one row per window.
        mapped: the operand dimension that each element of a row indexes.
        dropped: operand dimensions that the windows do not have.
    """

    rows: HloInstruction
    mapped: tuple[int, ...]
    dropped: tuple[int, ...]


def _windows(
    indices: HloInstruction,
    vector_dim: int,
    mapped: Sequence[int],
    dropped: Sequence[int],
    batching: Sequence[tuple[int, int]],
    b: Builder,
) -> _Windows:
    """Return the windows of a gather or scatter; batching dimensions become additional indices.

    Args:
        indices: all start indices.
        vector_dim: the dimension of the index vectors.
        mapped: the operand dimension for each element of an index vector.
        dropped: collapsed or inserted dimensions of the operand.
        batching: pairs of batching dimensions of operand and indices.
        b: adds the instructions.
    """
    if not batching:
        return _Windows(_index_rows(indices, vector_dim, b), tuple(mapped), tuple(dropped))
    kind = indices.shape.element_type
    wide = b.convert(indices, kind if kind.bits >= 32 else PrimitiveType.S32)
    sizes = wide.shape.dimensions
    if vector_dim == len(sizes):
        wide = b.reshape(wide, (*sizes, 1))
    one = wide.shape.with_dimensions((*wide.shape.dimensions[:vector_dim], 1, *wide.shape.dimensions[vector_dim + 1 :]))
    counts = [b.add(Opcode.IOTA, shape=one, iota_dimension=d) for _, d in batching]
    whole = b.concatenate([*counts, wide], vector_dim)
    own = tuple(d for d, _ in batching)
    return _Windows(_index_rows(whole, vector_dim, b), (*own, *mapped), tuple(sorted((*own, *dropped))))


def _starts(
    rows: HloInstruction, i: HloInstruction, mapped: Sequence[int], rank: int, b: Builder
) -> list[HloInstruction]:
    """Return the scalar start indices in row `i` for all dimensions of the operand."""
    zero = b.scalar(0, PrimitiveType.S32)
    row = b.add(Opcode.DYNAMIC_SLICE, rows, i, zero, dynamic_slice_sizes=(1, len(mapped)))
    nothing = b.scalar(0, rows.shape.element_type)
    found = [nothing] * rank
    for n, d in enumerate(mapped):
        found[d] = b.reshape(b.slice(row, [SliceDim(0, 1), SliceDim(n, n + 1)]), ())
    return found


def _cut(x: HloInstruction, starts: Sequence[HloInstruction], sizes: Sequence[int], b: Builder) -> HloInstruction:
    """Return the window at `starts`; that of a scalar is the scalar."""
    return b.add(Opcode.DYNAMIC_SLICE, x, *starts, dynamic_slice_sizes=tuple(sizes)) if starts else x


@GATHERS.on(Opcode.GATHER)
def _gather(i: HloInstruction, b: Builder) -> HloInstruction | None:
    source, indices = i.operands
    if i.shape.num_elements == 0 or source.shape.num_elements == 0:
        return None
    batching = zip(i.attr("operand_batching_dims", ()), i.attr("start_indices_batching_dims", ()), strict=True)
    windows = _windows(
        indices, i.attributes["index_vector_dim"], i.attributes["start_index_map"],
        i.attributes["collapsed_slice_dims"], list(batching), b,
    )  # fmt: skip
    count = windows.rows.shape.dimensions[0]
    sizes: tuple[int, ...] = i.attributes["slice_sizes"]
    window = tuple(n for d, n in enumerate(sizes) if d not in windows.dropped)
    empty = b.splat(0, source.shape.with_dimensions((count, *window)))

    def step(c: Builder, n: HloInstruction, carried: Sequence[HloInstruction]) -> Sequence[HloInstruction]:
        data, at, result = carried
        starts = _starts(at, n, windows.mapped, data.shape.rank, c)
        taken = _cut(data, starts, sizes, c)
        zero = c.scalar(0, PrimitiveType.S32)
        put = c.reshape(taken, (1, *window))
        return data, at, c.add(Opcode.DYNAMIC_UPDATE_SLICE, result, put, n, *[zero] * len(window))

    (flat,) = counted_loop(b, count, (source, windows.rows, empty), step, (2,), "gather")
    offsets: tuple[int, ...] = i.attributes["offset_dims"]
    batch = [d for d in range(i.shape.rank) if d not in offsets]
    shaped = b.reshape(flat, [i.shape.dimensions[d] for d in (*batch, *offsets)])
    return b.transpose(shaped, inverse_permutation((*batch, *offsets)))


@SCATTERS.on(Opcode.SCATTER)
def _scatter(i: HloInstruction, b: Builder) -> HloInstruction | None:
    count = len(i.operands) // 2
    sources, indices, updates = i.operands[:count], i.operands[count], i.operands[count + 1 :]
    first, whole = updates[0].shape, sources[0].shape
    if first.num_elements == 0 or whole.num_elements == 0:
        return b.add(Opcode.TUPLE, *sources) if i.shape.is_tuple else sources[0]
    batching = zip(i.attr("input_batching_dims", ()), i.attr("scatter_indices_batching_dims", ()), strict=True)
    windows = _windows(
        indices, i.attributes["index_vector_dim"], i.attributes["scatter_dims_to_operand_dims"],
        i.attributes["inserted_window_dims"], list(batching), b,
    )  # fmt: skip
    steps, mapped = windows.rows.shape.dimensions[0], windows.mapped
    window_dims: tuple[int, ...] = i.attributes["update_window_dims"]
    batch = [d for d in range(first.rank) if d not in window_dims]
    window = [first.dimensions[d] for d in window_dims]
    flat = [b.reshape(b.transpose(u, (*batch, *window_dims)), (steps, *window)) for u in updates]
    kept = iter(window)
    sizes = tuple(1 if d in windows.dropped else next(kept) for d in range(whole.rank))
    if count > 1 and lifted(i.attributes["to_apply"], [*sources, *sources], whole.dimensions, b) is None:
        return None

    def step(c: Builder, n: HloInstruction, carried: Sequence[HloInstruction]) -> Sequence[HloInstruction]:
        datas, at, news = carried[:count], carried[count], carried[count + 1 :]
        starts = _starts(at, n, mapped, whole.rank, c)
        zero = c.scalar(0, PrimitiveType.S32)
        rows = [
            c.add(Opcode.DYNAMIC_SLICE, u, n, *[zero] * len(window), dynamic_slice_sizes=(1, *window)) for u in news
        ]
        olds = [_cut(x, starts, sizes, c) for x in datas]
        made = _combined(i, olds, [c.reshape(r, sizes) for r in rows], c)
        inside = _inside([starts[d] for d in mapped], [whole.dimensions[d] - sizes[d] for d in mapped], c)
        put = [
            new if inside is None else c.add(Opcode.SELECT, inside, new, old)
            for new, old in zip(made, olds, strict=True)
        ]
        parts = zip(datas, put, strict=True)
        written = [c.add(Opcode.DYNAMIC_UPDATE_SLICE, x, p, *starts) if starts else p for x, p in parts]
        return *written, at, *news

    results = counted_loop(b, steps, (*sources, windows.rows, *flat), step, range(count), "scatter")
    return b.add(Opcode.TUPLE, *results) if i.shape.is_tuple else results[0]


def _combined(
    i: HloInstruction, olds: Sequence[HloInstruction], news: Sequence[HloInstruction], b: Builder
) -> Sequence[HloInstruction]:
    function, sizes = i.attributes["to_apply"], olds[0].shape.dimensions
    found = lifted(function, [*olds, *news], sizes, b)
    if found is not None:
        return found
    return [b.add(Opcode.MAP, *olds, *news, to_apply=function, dimensions=tuple(range(len(sizes))))]


def _inside(starts: Sequence[HloInstruction], most: Sequence[int], b: Builder) -> HloInstruction | None:
    """Return whether all starts are in [0, most]; None if their type cannot represent other values."""
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
