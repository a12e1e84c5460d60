"""Rewriting of argmax and argmin: a reduction of values with their positions becomes two simple reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

Array = npt.NDArray[Any]
_ORDER_OPS = frozenset(
    {
        Opcode.PARAMETER, Opcode.TUPLE, Opcode.COMPARE, Opcode.SELECT, Opcode.AND, Opcode.OR, Opcode.NOT, Opcode.XOR,
        Opcode.MINIMUM, Opcode.MAXIMUM,
    }
)  # fmt: skip
"""Ops whose results depend on the order of values alone."""


@register
@dataclass(frozen=True)
class ArgmaxRewriter(RewritePass):
    """Rewrite argmax and argmin along one dimension -> an extreme, and the first (or last) position that has it.

    The function may be written in any way: it must consist of comparisons, selections and logic, so that it depends on
    the order of its arguments alone, and is tried on every order. NaN counts as the extreme. Both reductions can use
    vectors, which a reduction of pairs cannot.

    Attributes:
        min_size: minimum number of elements of the dimension.
    """

    name: ClassVar[str] = "argmax-rewriter"
    rules: ClassVar[RuleSet] = RuleSet()
    min_size: int = number_option(2, 1, 1 << 31)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def split(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return _split(i, b, self.min_size)

        return lambda op: (split,) if op is Opcode.REDUCE else ()


def _split(i: HloInstruction, b: Builder, min_size: int) -> HloInstruction | None:
    if len(i.operands) != 4 or len(i.dimensions) != 1:
        return None
    x, numbers, *init = i.operands
    (axis,), t, index_type = i.dimensions, x.shape.element_type, numbers.shape.element_type
    n = x.shape.dimensions[axis]
    if not min_size <= n < 1 << 31 or x.shape.is_dynamic or not _counts(numbers, axis) or not index_type.is_integer:
        return None
    if not (t.is_integer and t.bits >= 8) and not (t.is_float and t.bits >= 16) and t is not PrimitiveType.PRED:
        return None
    found, module = _kind(i.attributes["to_apply"], t, index_type, init), b.computation.parent
    if found is None or module is None:
        return None
    largest, first = found
    if t is PrimitiveType.PRED:
        return _place_of_bool(i, b, largest, first)
    by_value, by_place = (Opcode.MAXIMUM if up else Opcode.MINIMUM for up in (largest, not first))
    extreme = b.reduce(x, init[0], (axis,), module.add(_function(by_value, t)))
    kept = [d for d in range(x.shape.rank) if d != axis]
    has_it = b.compare(x, b.broadcast(extreme, x.shape.dimensions, kept), "EQ")
    if t.is_float:
        has_it = b.add(Opcode.OR, has_it, b.compare(x, x, "NE"))
    number = _type_of_positions(t, n)
    none = b.scalar(n if first else -1, number)
    positions = b.add(Opcode.IOTA, shape=x.shape.with_type(number), iota_dimension=axis)
    candidates = b.add(Opcode.SELECT, has_it, positions, b.broadcast(none, x.shape.dimensions, ()))
    place = b.reduce(candidates, none, (axis,), module.add(_function(by_place, number)))
    return b.add(Opcode.TUPLE, extreme, b.convert(place, index_type))


def _type_of_positions(values: PrimitiveType, n: int) -> PrimitiveType:
    """Return the narrowest type of `n` positions, and of -1, that is not narrower than the values.

    A loop that compares bytes has as many positions in a vector. Floats of 16 bits are compared as f32.
    """
    if values.is_float:
        return PrimitiveType.S32
    narrow = (PrimitiveType.S8, PrimitiveType.S16)
    return next((t for t in narrow if n <= np.iinfo(t.dtype).max and t.bits >= values.bits), PrimitiveType.S32)


def _place_of_bool(i: HloInstruction, b: Builder, largest: bool, first: bool) -> HloInstruction:
    """Return the argmax or argmin of bools: a place of the extreme, which all have where none has it."""
    x, numbers = i.operands[:2]
    (axis,), module = i.dimensions, b.computation.parent
    assert module is not None  # noqa: S101 - `_split` checked it
    n = x.shape.dimensions[axis]
    number = _type_of_positions(PrimitiveType.PRED, n)
    none = b.scalar(n if first else -1, number)
    positions = b.add(Opcode.IOTA, shape=x.shape.with_type(number), iota_dimension=axis)
    has_it = x if largest else b.add(Opcode.NOT, x)
    candidates = b.add(Opcode.SELECT, has_it, positions, b.broadcast(none, x.shape.dimensions, ()))
    function = _function(Opcode.MINIMUM if first else Opcode.MAXIMUM, number)
    place = b.reduce(candidates, none, (axis,), module.add(function))
    dims = place.shape.dimensions
    is_none = b.compare(place, b.broadcast(none, dims, ()), "EQ")
    at = b.add(Opcode.SELECT, is_none, b.broadcast(b.scalar(0 if first else n - 1, number), dims, ()), place)
    extreme = b.add(Opcode.NOT, is_none) if largest else is_none
    return b.add(Opcode.TUPLE, extreme, b.convert(at, numbers.shape.element_type))


def _function(opcode: Opcode, t: PrimitiveType) -> HloComputation:
    made = HloComputation(f"{opcode.text}_{t.text}")
    made.root = made.add(opcode, [made.add_parameter(n, Shape(t)) for n in range(2)])
    return made


def _counts(i: HloInstruction, axis: int) -> bool:
    """Check whether an operand holds the positions along a dimension."""
    if i.opcode is Opcode.BROADCAST:
        return i.operand(0).opcode is Opcode.IOTA and i.operand(0).shape.rank == 1 and tuple(i.dimensions) == (axis,)
    return i.opcode is Opcode.IOTA and i.attributes["iota_dimension"] == axis


def _kind(
    function: HloComputation, t: PrimitiveType, index_type: PrimitiveType, init: Sequence[HloInstruction]
) -> tuple[bool, bool] | None:
    """Return whether a function takes the largest value and the first position; None for other functions."""
    if any(i.opcode not in _ORDER_OPS for i in function.instructions):
        return None
    if any(i.opcode is Opcode.COMPARE and i.attr("type") == "TOTALORDER" for i in function.instructions):
        return None
    if any(i.opcode is not Opcode.CONSTANT for i in init):
        return None
    if t.is_float:
        values = np.array([-math.inf, -1.0, 0.0, 1.0, math.inf, math.nan]).astype(t.dtype)
    elif t is PrimitiveType.PRED:
        values = np.array([False, True])
    else:
        limits = np.iinfo(t.dtype)
        values = np.array([limits.min, limits.min + 1, limits.max - 1, limits.max], t.dtype)
    a, c = (v.reshape(-1) for v in np.meshgrid(values, values, indexing="ij"))
    early, late = (np.full(a.shape, n, index_type.dtype) for n in (1, 2))
    got = _apply(function, (a, early, c, late))
    start = [np.broadcast_to(o.value.value, values.shape) for o in init]
    zeros = np.zeros(values.shape, index_type.dtype)
    begun = _apply(function, (*start, values, zeros))
    if not _same(begun, (values, zeros)):
        return None
    for largest in (True, False):
        for first in (True, False):
            wins = _wins(a, c, largest, first)
            if _same(got, (np.where(wins, a, c), np.where(wins, early, late))):
                return largest, first
    return None


def _wins(a: Array, c: Array, largest: bool, first: bool) -> Array:
    """Return where the earlier value `a` is taken and not the later value `c`."""
    wide = np.float64 if a.dtype.kind not in "iu" else a.dtype
    x, y = a.astype(wide), c.astype(wide)
    better = x > y if largest else x < y
    nan, other = x != x, y != y
    result: Array = (better & ~other) | (nan & ~other) | (((x == y) | (nan & other)) & first)
    return result


def _same(got: Sequence[Array], expected: Sequence[Array]) -> bool:
    def wide(x: Array) -> Array:
        return x if x.dtype.kind in "iu" else x.astype(np.float64)

    pairs = [(wide(g), wide(e)) for g, e in zip(got, expected, strict=True)]
    return all(np.array_equal(g, e, equal_nan=g.dtype.kind == "f") for g, e in pairs)


def _apply(function: HloComputation, args: Sequence[Array]) -> list[Array]:
    """Return the results of a function for each element of the arguments."""
    from compiler.interpreter import evaluate_computation

    rows = [evaluate_computation(function, [a[k] for a in args]) for k in range(len(args[0]))]
    return [np.array([row[n] for row in rows]) for n in range(2)]
