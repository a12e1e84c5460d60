"""Select-and-scatter expansion: computes the gradient of pooling with elementwise ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import PadDim, SliceDim, Window
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import highest, lowest, scalar_function
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()
_MOST_POSITIONS = 64
_MANY_POSITIONS = 16
"""Positions of overlapping windows from which on the place of the selected one is computed, not an array for each."""
_LARGER, _SMALLER = ("GE", "GT"), ("LE", "LT")


@register
@dataclass(frozen=True)
class SelectAndScatterExpander(RewritePass):
    """Find the selected position of each window by comparing its positions in turn, and scatter the source there.

    Windows may have no dilation, and must either
    - not overlap (stride equals size), have no padding and up to 64 positions, or
    - add the sources: then each position in the window yields one array, and these are added, or if there are many
      positions, the place of the selected one is computed for each window, where a scatter adds the source.
    """

    name: ClassVar[str] = "select-and-scatter-expander"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.SELECT_AND_SCATTER)
def _expand(i: HloInstruction, b: Builder) -> HloInstruction | None:
    operand, source, init = i.operands
    window: Window = i.attr("window", Window())
    counts, sizes = source.shape.dimensions, tuple(w.size for w in window.dims)
    plain = all(
        w.stride == w.size and not (w.pad_low or w.pad_high or w.reversal) and w.lhs_dilate == w.rhs_dilate == 1
        for w in window.dims
    )
    if not plain or len(sizes) != len(counts) or math.prod(sizes) > _MOST_POSITIONS or not source.shape.num_elements:
        return None
    used = [SliceDim(0, n * k) for n, k in zip(counts, sizes, strict=True)]
    tiled = tuple(itertools.chain.from_iterable(zip(counts, sizes, strict=True)))
    windows = b.reshape(b.slice(operand, used), tiled)
    chosen = _chosen_position(_tiles(windows, counts, sizes, b), [], i.attributes["select"], b)
    start = b.broadcast(init, counts, ())
    value = _applied(i.attributes["scatter"], [start, source], b)
    outer = tuple(range(0, 2 * len(counts), 2))
    here = b.compare(b.broadcast(chosen, tiled, outer), _positions(tiled, sizes, b), "EQ")
    spread = b.add(Opcode.SELECT, here, b.broadcast(value, tiled, outer), b.broadcast(init, tiled, ()))
    flat = b.reshape(spread, [d.limit for d in used])
    rest = [PadDim(0, n - d.limit) for n, d in zip(operand.shape.dimensions, used, strict=True)]
    return b.pad(flat, init, rest)


@RULES.on(Opcode.SELECT_AND_SCATTER)
def _by_places(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Add each source to the place of the largest or smallest element of its window."""
    operand, source, init = i.operands
    window: Window = i.attr("window", Window())
    adds = scalar_function(i.attributes["scatter"]) is Opcode.ADD
    plain = all(w.lhs_dilate == w.rhs_dilate == 1 and not w.reversal for w in window.dims)
    count, t = operand.shape.num_elements, operand.shape.element_type
    if not adds or not plain or not _has_order(i) or math.prod(w.size for w in window.dims) < _MANY_POSITIONS:
        return None
    if not source.shape.num_elements or len(window.dims) != operand.shape.rank or count > np.iinfo(np.int32).max:
        return None
    direction: str = i.attributes["select"].root.attributes["direction"]
    worst = lowest(t) if direction in _LARGER else highest(t)
    if worst is None:
        return None
    nowhere = np.iinfo(np.int32).max
    places = b.reshape(
        b.add(Opcode.IOTA, shape=Shape(PrimitiveType.S32, (count,)), iota_dimension=0), operand.shape.dimensions
    )
    chosen = b.add(
        Opcode.REDUCE_WINDOW, operand, places, b.scalar(worst, t), b.scalar(nowhere, PrimitiveType.S32),
        window=window, to_apply=_first_best(t, direction, nowhere, b),
    )  # fmt: skip
    at = b.add(Opcode.GET_TUPLE_ELEMENT, chosen, index=1)
    n = source.shape.num_elements
    total = b.add(
        Opcode.SCATTER, b.broadcast(init, (count,), ()), b.reshape(at, (n, 1)), b.reshape(source, (n,)),
        to_apply=i.attributes["scatter"], update_window_dims=(), inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip
    return b.reshape(total, operand.shape.dimensions)


@RULES.on(Opcode.SELECT_AND_SCATTER)
def _overlapping(i: HloInstruction, b: Builder) -> HloInstruction | None:
    operand, source, init = i.operands
    dims = i.attr("window", Window()).dims
    adds = scalar_function(i.attributes["scatter"]) is Opcode.ADD
    plain = all(w.lhs_dilate == w.rhs_dilate == 1 and not w.reversal and min(w.pad_low, w.pad_high) >= 0 for w in dims)
    if not adds or not plain or math.prod(w.size for w in dims) > _MOST_POSITIONS:
        return None
    if len(dims) != operand.shape.rank or not source.shape.num_elements:
        return None
    around = [PadDim(w.pad_low, w.pad_high) for w in dims]
    zero = b.scalar(0, source.shape.element_type)
    padded = b.pad(operand, b.scalar(0, operand.shape.element_type), around)
    counts, places = source.shape.dimensions, itertools.product(*(range(w.size) for w in dims))
    ends = [
        [SliceDim(p, p + (n - 1) * w.stride + 1, w.stride) for p, n, w in zip(place, counts, dims, strict=True)]
        for place in places
    ]
    inside: list[HloInstruction] = []
    if padded is not operand:
        yes = b.splat(True, operand.shape.with_type(PrimitiveType.PRED))
        elements = b.pad(yes, b.scalar(False, PrimitiveType.PRED), around)
        inside = [b.slice(elements, spec) for spec in ends]
    chosen = _chosen_position([b.slice(padded, spec) for spec in ends], inside, i.attributes["select"], b)
    nothing = b.broadcast(zero, counts, ())
    total = b.broadcast(init, padded.shape.dimensions, ())
    for number, spec in enumerate(ends):
        here = b.compare(chosen, b.splat(number, chosen.shape), "EQ")
        part = b.add(Opcode.SELECT, here, source, nothing)
        sizes = padded.shape.dimensions
        apart = [PadDim(d.start, m - d.limit, d.stride - 1) for d, m in zip(spec, sizes, strict=True)]
        total = b.add(Opcode.ADD, total, b.pad(part, zero, apart))
    inner = [SliceDim(w.pad_low, w.pad_low + n) for w, n in zip(dims, operand.shape.dimensions, strict=True)]
    return b.slice(total, inner)


def _has_order(i: HloInstruction) -> bool:
    """Check whether what is selected is the larger or the smaller of two elements."""
    select: HloComputation = i.attributes["select"]
    root = select.root
    if root.opcode is not Opcode.COMPARE or [o.parameter_number for o in root.operands] != [0, 1]:
        return False
    return root.attributes["direction"] in (*_LARGER, *_SMALLER)


def _first_best(t: PrimitiveType, direction: str, nowhere: int, b: Builder) -> HloComputation:
    """Return the function that selects one of two elements with their places; padding is nowhere.

    Of equal elements it selects the one that the comparison would, given those of lower places first.
    """
    module = b.computation.parent
    if module is None:
        raise ValueError("a computation outside of a module cannot have a reducer")
    function = HloComputation("first_best")
    f = Builder(function)
    types = (t, PrimitiveType.S32, t, PrimitiveType.S32)
    x, m, y, n = (function.add_parameter(k, Shape(element, ())) for k, element in enumerate(types))
    none = f.scalar(nowhere, PrimitiveType.S32)
    is_before = f.compare(m, n, "LT" if direction in ("GE", "LE") else "GT")
    is_better = f.compare(x, y, "GT" if direction in _LARGER else "LT")
    keeps = f.add(Opcode.OR, is_better, f.add(Opcode.AND, f.compare(x, y, "EQ"), is_before))
    keeps = f.add(Opcode.OR, keeps, f.compare(n, none, "EQ"))
    keeps = f.add(Opcode.AND, keeps, f.compare(m, none, "NE"))
    function.root = f.add(Opcode.TUPLE, f.add(Opcode.SELECT, keeps, x, y), f.add(Opcode.SELECT, keeps, m, n))
    return module.add(function)


def _tiles(windows: HloInstruction, counts: Sequence[int], sizes: Sequence[int], b: Builder) -> list[HloInstruction]:
    """Return the elements at each position of non-overlapping windows, positions in row-major order."""
    found = []
    for place in itertools.product(*(range(k) for k in sizes)):
        spec = itertools.chain.from_iterable(
            (SliceDim(0, n), SliceDim(p, p + 1)) for n, p in zip(counts, place, strict=True)
        )
        found.append(b.reshape(b.slice(windows, tuple(spec)), counts))
    return found


def _chosen_position(
    candidates: Sequence[HloInstruction], inside: Sequence[HloInstruction], select: HloComputation, b: Builder
) -> HloInstruction:
    """Return the row-major number of the position that `select` prefers in each window.

    `inside` tells which candidates are elements, not padding; empty means all.
    """
    best = candidates[0]
    chosen = b.splat(0, best.shape.with_type(PrimitiveType.S32))
    valid = inside[0] if inside else None
    for number, candidate in enumerate(candidates[1:], 1):
        keep = _applied(select, [best, candidate], b)
        if valid is not None:
            keep = b.add(Opcode.AND, keep, valid)
            keep = b.add(Opcode.OR, keep, b.add(Opcode.NOT, inside[number]))
            valid = b.add(Opcode.OR, valid, inside[number])
        best = b.add(Opcode.SELECT, keep, best, candidate)
        chosen = b.add(Opcode.SELECT, keep, chosen, b.splat(number, chosen.shape))
    return chosen


def _positions(tiled: Sequence[int], sizes: Sequence[int], b: Builder) -> HloInstruction:
    """Return the row-major position of each element within its window."""
    shape = Shape(PrimitiveType.S32, tuple(tiled))
    total = b.splat(0, shape)
    for axis in range(len(sizes)):
        inner = math.prod(sizes[axis + 1 :])
        along = b.add(Opcode.IOTA, shape=shape, iota_dimension=2 * axis + 1)
        total = b.add(Opcode.ADD, total, b.add(Opcode.MULTIPLY, along, b.splat(inner, shape)))
    return total


def _applied(function: HloComputation, operands: Sequence[HloInstruction], b: Builder) -> HloInstruction:
    """Apply a scalar function of two arguments elementwise."""
    known = scalar_function(function)
    if known is not None and known is not Opcode.COMPARE:
        return b.add(known, *operands)
    shape = operands[0].shape.with_type(function.root.shape.element_type)
    return b.add(Opcode.MAP, *operands, shape=shape, to_apply=function, dimensions=tuple(range(shape.rank)))
