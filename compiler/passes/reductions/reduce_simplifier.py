"""Reduce simplification: trivial reductions, and reductions of reductions and of data movement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.analysis.reshapes import kept_dimensions, reshape_groups
from compiler.analysis.structure import StructuralIds
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    COMMUTATIVE,
    identity_value,
    is_numeric,
    is_op,
    scalar_function,
    single_use,
    splat_value,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ReduceSimplifier(RewritePass):
    """Simplify trivial reductions, and reductions of reduce, pad, transpose, reshape and broadcast."""

    name: ClassVar[str] = "reduce-simplifier"
    rules: ClassVar[RuleSet] = RULES


def starts_neutral(i: HloInstruction) -> bool:
    """Check whether a reduction of one operand starts from the identity of its function, which may be repeated."""
    function = scalar_function(i.attributes["to_apply"])
    value = splat_value(i.operands[1])
    if function is None or value is None:
        return False
    neutral = identity_value(function, i.shape.element_type)
    return neutral is not None and bool(value == neutral)


def _single(i: HloInstruction) -> bool:
    """Check for a single operand, and a result that is not a tuple."""
    return len(i.operands) == 2 and i.shape.is_array


@RULES.on(Opcode.REDUCE)
def _trivial(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Replace a reduction over no elements or over a single one."""
    if not _single(i):
        return None
    x, init = i.operands
    over = math.prod(x.shape.dimensions[d] for d in i.dimensions)
    if over == 0 or i.shape.num_elements == 0:
        return b.broadcast(init, i.shape.dimensions, ()) if i.shape.rank else init
    if over != 1 or x.shape.element_type is not i.shape.element_type:
        return None
    flat = b.reshape(x, i.shape.dimensions)
    if starts_neutral(i):
        return flat
    function = scalar_function(i.attributes["to_apply"])
    if function is None or init.shape.element_type is not x.shape.element_type:
        return None
    return b.add(function, b.broadcast(init, i.shape.dimensions, ()) if i.shape.rank else init, flat)


@RULES.on(Opcode.REDUCE)
def _of_nothing(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Replace a multi-operand reduction over no elements by its initial values."""
    half = len(i.operands) // 2
    if not i.shape.is_tuple or any(s.dynamic for s in i.shape.tuple_shapes):
        return None
    if math.prod(i.operands[0].shape.dimensions[d] for d in i.dimensions):
        return None
    parts = zip(i.operands[half:], i.shape.tuple_shapes, strict=True)
    return b.add(Opcode.TUPLE, *(b.broadcast(start, s.dimensions, ()) if s.rank else start for start, s in parts))


@RULES.on(Opcode.REDUCE)
def _of_reduce(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Merge two reductions by the same function into one over the dimensions of both."""
    if not _single(i) or not is_op(i.operands[0], Opcode.REDUCE) or not _single(i.operands[0]):
        return None
    x = i.operands[0]
    if not single_use(x) or not starts_neutral(x) or not _same_function(i, x):
        return None
    kept = [d for d in range(x.operands[0].shape.rank) if d not in x.dimensions]
    dims = sorted((*x.dimensions, *(kept[d] for d in i.dimensions)))
    return b.reduce(x.operands[0], i.operands[1], dims, i.attributes["to_apply"])


@RULES.on(Opcode.REDUCE)
def _of_pad(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Drop padding with the identity element along reduced dimensions."""
    if not _single(i) or not is_op(i.operands[0], Opcode.PAD) or i.shape.num_elements == 0:
        return None
    x = i.operands[0]
    function, fill = scalar_function(i.attributes["to_apply"]), splat_value(x.operands[1])
    neutral = None if function is None else identity_value(function, x.shape.element_type)
    if fill is None or neutral is None or fill != neutral:
        return None
    for d, p in enumerate(x.attributes["padding"]):
        if p.low < 0 or p.high < 0 or (d not in i.dimensions and (p.low, p.high, p.interior) != (0, 0, 0)):
            return None
    return b.reduce(x.operands[0], i.operands[1], i.dimensions, i.attributes["to_apply"])


def _same_function(i: HloInstruction, x: HloInstruction) -> bool:
    f: HloComputation = i.attributes["to_apply"]
    g: HloComputation = x.attributes["to_apply"]
    ids = StructuralIds()
    return f is g or ids.of(f) == ids.of(g)


@RULES.on(Opcode.REDUCE)
def _of_transpose(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not _single(i) or not is_op(i.operands[0], Opcode.TRANSPOSE) or not _reorders(i):
        return None
    x = i.operands[0]
    kept = [x.dimensions[d] for d in range(x.shape.rank) if d not in i.dimensions]
    dims = sorted(x.dimensions[d] for d in i.dimensions)
    inner = b.reduce(x.operands[0], i.operands[1], dims, i.attributes["to_apply"])
    order = sorted(kept)
    return b.transpose(inner, [order.index(d) for d in kept])


@RULES.on(Opcode.REDUCE)
def _of_reshape(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Reduce before a reshape that only splits, joins or adds reduced dimensions."""
    if not _single(i) or not is_op(i.operands[0], Opcode.RESHAPE) or not _reorders(i):
        return None
    x = i.operands[0]
    y = x.operands[0]
    if x.shape.num_elements == 0:
        return None
    dims: list[int] = []
    for group in reshape_groups(y.shape.dimensions, x.shape.dimensions):
        big = [d for d in group.target if x.shape.dimensions[d] != 1]
        reduced = [d for d in big if d in i.dimensions]
        if reduced and len(reduced) != len(big):
            return None
        if reduced:
            dims += list(group.source)
    if not dims and any(x.shape.dimensions[d] != 1 for d in i.dimensions):
        return None
    if not dims or (_drops_units(y, x) and y.shape.rank - len(dims) != i.shape.rank):
        return None
    return b.reshape(b.reduce(y, i.operands[1], dims, i.attributes["to_apply"]), i.shape.dimensions)


def _drops_units(y: HloInstruction, x: HloInstruction) -> bool:
    """Check whether the reshape only drops dimensions of size 1; unit-dimension-movement moves those to the leaves."""
    source, target = y.shape.dimensions, x.shape.dimensions
    return len(target) < len(source) and kept_dimensions(source, target) is not None


def _reorders(i: HloInstruction) -> bool:
    """Check whether the function is known to be commutative, so that elements may be reordered."""
    return scalar_function(i.attributes["to_apply"]) in COMMUTATIVE


@RULES.on(Opcode.REDUCE)
def _of_broadcast(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Replace a sum of n equal elements by a product, and extrema and bit operations of them by the element."""
    if not _single(i) or not is_op(i.operands[0], Opcode.BROADCAST) or not starts_neutral(i):
        return None
    x = i.operands[0]
    y = x.operands[0]
    function = scalar_function(i.attributes["to_apply"])
    repeated = [d for d in i.dimensions if d not in x.dimensions]
    if not repeated or not is_numeric(i.shape) or x.shape.num_elements == 0:
        return None
    if function not in (Opcode.ADD, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR):
        return None
    own = [n for n, d in enumerate(x.dimensions) if d in i.dimensions]
    inner = b.reduce(y, i.operands[1], own, i.attributes["to_apply"]) if own else y
    kept = [d for d in range(x.shape.rank) if d not in i.dimensions]
    dims = [kept.index(d) for n, d in enumerate(x.dimensions) if n not in own]
    whole = inner.shape.dimensions == i.shape.dimensions and dims == sorted(dims)
    result = inner if whole else b.broadcast(inner, i.shape.dimensions, dims)
    if function is not Opcode.ADD:
        return result
    count = _count(math.prod(x.shape.dimensions[d] for d in repeated), i)
    return None if count is None else b.add(Opcode.MULTIPLY, result, b.splat(count, i.shape))


def _count(n: int, i: HloInstruction) -> object | None:
    """Return `n` in the element type, wrapped for integers; None if a float type cannot represent it."""
    t = i.shape.element_type
    if t.is_integer:
        return np.asarray(n % (1 << t.bits), np.uint64).astype(t.dtype)[()]
    value = np.asarray(n).astype(t.dtype)[()]
    return value if float(value) == n else None
