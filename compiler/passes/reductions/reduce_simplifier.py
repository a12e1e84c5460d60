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
from compiler.passes.infrastructure.rewriting import ELEMENTWISE, RewritePass, RuleSet

RULES = RuleSet()
LEAST_PIECES, MOST_PIECES = 17, 64
"""Numbers of stacked arrays that are combined without the stack; reductions of fewer elements have no loop anyway."""
MOST_COPIES = 256
"""Most copies of ops between the stack and its reduction."""


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


@RULES.on(Opcode.REDUCE)
def _of_copies(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Reduce an array before its results are repeated, instead of each of its copies."""
    if not _single(i) or not is_op(i.operands[0], Opcode.BROADCAST):
        return None
    x = i.operands[0]
    own = [n for n, d in enumerate(x.dimensions) if d in i.dimensions]
    kept = [d for d in range(x.shape.rank) if d not in i.dimensions]
    if len(own) < len(i.dimensions) or set(kept) <= set(x.dimensions):
        return None
    inner = b.reduce(x.operands[0], i.operands[1], own, i.attributes["to_apply"])
    dims = [kept.index(d) for n, d in enumerate(x.dimensions) if n not in own]
    return b.broadcast(inner, i.shape.dimensions, dims)


@RULES.on(Opcode.REDUCE)
def _of_pieces(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Combine many arrays that are stacked to be reduced, without the stack.

    The loop over the stack would test for each element which array it comes from. Reductions of fewer have no loop.
    """
    function = scalar_function(i.attributes["to_apply"])
    if not _single(i) or len(i.dimensions) != 1 or function not in COMMUTATIVE or not starts_neutral(i):
        return None
    x, d = i.operands[0], i.dimensions[0]
    count, t = x.shape.dimensions[d], x.shape.element_type
    if not LEAST_PIECES <= count <= MOST_PIECES or t is not i.shape.element_type or (t.is_float and t.bits < 32):
        return None
    between = _between_pieces(i, d)
    if between is None or count * len(between) > MOST_COPIES:
        return None
    parts = [_piece(x, d, n, between, b, {}) for n in range(count)]
    while len(parts) > 1:  # neighbors, so that sums depend on each other as little as possible
        pairs = [b.add(function, p, q) for p, q in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def _between_pieces(i: HloInstruction, d: int) -> set[HloInstruction] | None:
    """Return the elementwise ops between stacks along a dimension and a reduction, or None if there are other ops.

    None but reductions along the dimension use what they compute.
    """
    between, stacks, work = set[HloInstruction](), 0, [i.operands[0]]
    while work:
        x = work.pop()
        if x.opcode is Opcode.CONCATENATE and x.dimensions == (d,) and len(x.operands) == x.shape.dimensions[d]:
            stacks += 1
        elif x.opcode in ELEMENTWISE and x.opcode is not Opcode.MAP:
            if len(between) > MOST_COPIES or not _is_only_reduced(x, d):
                return None
            if x not in between:
                between.add(x)
                work += x.operands
        elif x.opcode is not Opcode.BROADCAST or d in x.dimensions:
            return None
    return between if stacks else None


def _is_only_reduced(x: HloInstruction, d: int) -> bool:
    """Check whether a value is used, besides by elementwise ops on it, by reductions along one dimension alone."""
    seen, work = {x}, [x]
    while work and len(seen) <= MOST_COPIES:
        value = work.pop()
        if value.is_root:
            return False
        for u in value.users:
            if u.opcode is Opcode.REDUCE and _single(u) and u.dimensions == (d,) and u.operands[0] is value:
                continue
            if u.opcode not in ELEMENTWISE or u.shape.dimensions != x.shape.dimensions:
                return False
            if u not in seen:
                seen.add(u)
                work.append(u)
    return not work


def _piece(
    x: HloInstruction,
    d: int,
    n: int,
    between: set[HloInstruction],
    b: Builder,
    made: dict[HloInstruction, HloInstruction],
) -> HloInstruction:
    """Return element `n` along a dimension of a stack, of what is computed of stacks, or of a broadcast."""
    if x in made:
        return made[x]
    dims = tuple(s for k, s in enumerate(x.shape.dimensions) if k != d)
    if x.opcode is Opcode.CONCATENATE:
        made[x] = b.reshape(x.operands[n], dims)
    elif x.opcode is Opcode.BROADCAST:
        made[x] = b.broadcast(x.operands[0], dims, [k - (k > d) for k in x.dimensions]) if dims else x.operands[0]
    else:
        operands = [_piece(o, d, n, between, b, made) for o in x.operands]
        made[x] = b.with_operands(x, operands, x.shape.with_dimensions(dims))
    return made[x]


def _count(n: int, i: HloInstruction) -> object | None:
    """Return `n` in the element type, wrapped for integers; None if a float type cannot represent it."""
    t = i.shape.element_type
    if t.is_integer:
        return np.asarray(n % (1 << t.bits), np.uint64).astype(t.dtype)[()]
    value = np.asarray(n).astype(t.dtype)[()]
    return value if float(value) == n else None
