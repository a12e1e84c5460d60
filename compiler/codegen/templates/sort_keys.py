"""Keys of comparators: a value of each element whose order is that of the comparator.

A comparator has a key if it compares the same function of both elements, as in `key(a) < key(b)`, in a total order.
One that compares several such functions, the next where the one before is equal, has a key that holds the bits of all
of them, if they are at most 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.codegen.nest.scalar_ops import is_supported_type
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode, Trait
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

_SIGNED = {8: T.S8, 16: T.S16, 32: T.S32, 64: T.S64}
_UNSIGNED = {8: T.U8, 16: T.U16, 32: T.U32, 64: T.U64}
_FLOATS = frozenset({T.F16, T.BF16, T.F32, T.F64})


@dataclass(frozen=True)
class SortKey:
    """The key of a comparator.

    Attributes:
        value: computes it from the parameters 2k of the comparator, those of the first element.
        descending: whether the largest key comes first.
        computation: keeps `value`, if it is not part of the comparator.
    """

    value: HloInstruction
    descending: bool
    computation: HloComputation | None = None


def sort_key_of(comparator: HloComputation) -> SortKey | None:
    """Return the key of a comparator, or None if it has none of a supported type."""
    parts = sort_parts_of(comparator)
    if parts is None:
        return None
    if len(parts) == 1:
        return parts[0]
    widths = [_width(p.value.shape.element_type) for p in parts]
    total = sum(w or 65 for w in widths)
    if total > 64:
        return None
    c = HloComputation("key")
    parameters = [c.add_parameter(n, p.shape) for n, p in enumerate(comparator.parameters)]
    t = next(_UNSIGNED[bits] for bits in _UNSIGNED if bits >= total)
    copied: dict[HloInstruction, HloInstruction] = {}
    key: HloInstruction | None = None
    for part in parts:
        bits = _ordered_bits(c, _copy(c, part.value, parameters, copied), part.descending)
        wide = bits if bits.shape.element_type is t else c.add(Opcode.CONVERT, [bits], Shape(t))
        key = wide if key is None else c.add(Opcode.OR, [_shifted(c, key, bits.shape.element_type.bits), wide])
    assert key is not None  # noqa: S101 - there are two parts at least
    c.root = key
    return SortKey(key, False, c)


def sort_parts_of(comparator: HloComputation) -> list[SortKey] | None:
    """Return the keys that a comparator compares one after another, or None if it compares anything else."""
    return _parts(comparator.root)


def is_mirrored(left: HloInstruction, right: HloInstruction) -> bool:
    """Check whether `right` is `left` with each parameter 2k replaced by 2k + 1, and `left` has only such ones."""
    if left.opcode is not right.opcode or left.shape != right.shape:
        return False
    if left.opcode is Opcode.PARAMETER:
        first, second = left.parameter_number or 0, right.parameter_number or 0
        return first % 2 == 0 and second == first + 1
    if left.opcode is Opcode.CONSTANT:
        return left.value.same_value(right.value)
    if not left.opcode.has(Trait.ELEMENTWISE) or left.attributes != right.attributes:
        return False
    return all(is_mirrored(a, b) for a, b in zip(left.operands, right.operands, strict=True))


# ---- what a comparator compares


def _parts(root: HloInstruction) -> list[SortKey] | None:
    """Return the keys that are compared one after another, or None for other comparators."""
    if root.opcode is Opcode.COMPARE:
        first = _compared(root)
        return None if first is None else [first]
    for first_test, equal, rest in _lexicographic(root):
        first = _compared(first_test)
        if first is not None and _is_equality(equal, first_test):
            others = _parts(rest)
            return None if others is None else [first, *others]
    return None


def _lexicographic(root: HloInstruction) -> list[tuple[HloInstruction, HloInstruction, HloInstruction]]:
    """Return what may be the comparison of the first keys, the test of their equality, and the comparison of the rest.

    The forms are `first or (equal and rest)` and `equal ? rest : first`.
    """
    if root.opcode is Opcode.SELECT:
        equal, rest, first = root.operands
        return [(first, equal, rest)]
    if root.opcode is not Opcode.OR:
        return []
    found = []
    for first, both in (root.operands, root.operands[::-1]):
        if both.opcode is Opcode.AND:
            found += [(first, equal, rest) for equal, rest in (both.operands, both.operands[::-1])]
    return found


def _compared(compare: HloInstruction) -> SortKey | None:
    """Return the key that a single comparison compares, or None if it compares anything else."""
    if compare.opcode is not Opcode.COMPARE or compare.attributes["direction"] not in ("LT", "GT"):
        return None
    left, right = compare.operands
    descending = compare.attributes["direction"] == "GT"
    if is_mirrored(right, left):
        left, descending = right, not descending
    elif not is_mirrored(left, right):
        return None
    t = left.shape.element_type
    # NaN is unordered in other comparisons of floats, so that they have no key.
    if not is_supported_type(t) or (t.is_float and compare.attr("type") != "TOTALORDER"):
        return None
    return SortKey(left, descending)


def _is_equality(test: HloInstruction, compare: HloInstruction) -> bool:
    """Check for a test of equality of what a comparison compares, in the same order of floats."""
    if test.opcode is not Opcode.COMPARE or test.attributes["direction"] != "EQ":
        return False
    same = {*test.operands} == {*compare.operands}
    return same and test.attr("type") == compare.attr("type")


# ---- keys of several values


def _width(t: T) -> int | None:
    """Return the number of bits of a value in a key, or None if it cannot be part of one."""
    if t is T.PRED:
        return 8
    return t.bits if t in _FLOATS or (t.is_integer and t.bits in _SIGNED) else None


def _copy(
    c: HloComputation,
    i: HloInstruction,
    parameters: Sequence[HloInstruction],
    copied: dict[HloInstruction, HloInstruction],
) -> HloInstruction:
    if i not in copied:
        if i.opcode is Opcode.PARAMETER:
            copied[i] = parameters[i.parameter_number or 0]
        elif i.opcode is Opcode.CONSTANT:
            copied[i] = c.add_constant(i.value)
        else:
            operands = [_copy(c, o, parameters, copied) for o in i.operands]
            copied[i] = c.add(i.opcode, operands, i.shape, attributes=i.attributes)
    return copied[i]


def _ordered_bits(c: HloComputation, x: HloInstruction, descending: bool) -> HloInstruction:
    """Return an unsigned integer whose ascending order is that of a value, ascending or descending."""
    t = x.shape.element_type
    unsigned, signed = _UNSIGNED[_width(t) or 0], _SIGNED[_width(t) or 0]
    if t is T.PRED:
        bits = c.add(Opcode.CONVERT, [x], Shape(unsigned))
    elif t.is_float or t.is_signed:
        number = c.add(Opcode.BITCAST_CONVERT, [x], Shape(signed)) if t.is_float else x
        flipped = _scalar(c, signed, -(1 << signed.bits - 1))
        if t.is_float:  # the other bits of negative floats are in descending order
            sign = c.add(Opcode.SHIFT_RIGHT_ARITHMETIC, [number, _scalar(c, signed, signed.bits - 1)])
            flipped = c.add(Opcode.OR, [sign, flipped])
        bits = c.add(Opcode.BITCAST_CONVERT, [c.add(Opcode.XOR, [number, flipped])], Shape(unsigned))
    else:
        bits = x
    return c.add(Opcode.NOT, [bits]) if descending else bits


def _shifted(c: HloComputation, key: HloInstruction, bits: int) -> HloInstruction:
    return c.add(Opcode.SHIFT_LEFT, [key, _scalar(c, key.shape.element_type, bits)])


def _scalar(c: HloComputation, t: T, value: int) -> HloInstruction:
    return c.add_constant(Literal.from_array(np.array(value, t.dtype)))
