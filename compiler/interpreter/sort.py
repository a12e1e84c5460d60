"""Evaluators of sort, with any comparator, and topk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from compiler.interpreter.machine import Machine, find_evaluator
from compiler.interpreter.precision import total_order_key, widen
from compiler.interpreter.registry import Array, Value, arrays, as_array, evaluator
from compiler.interpreter.scalars import ArrayFunction, is_liftable, lift
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

Pair: TypeAlias = tuple[HloInstruction, HloInstruction]


@evaluator(Opcode.SORT)
def _sort(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Sort, always stably."""
    dim = instruction.dimensions[0] if instruction.dimensions else 0
    operands = arrays(values)
    if operands[0].ndim == 0 or operands[0].size == 0:
        return operands[0] if len(operands) == 1 else tuple(operands)
    lines = [np.moveaxis(x, dim, -1) for x in operands]
    computation = instruction.attr("to_apply")
    key = _single_key(machine, computation, lines)
    if key is not None:
        order = np.argsort(key, axis=-1, kind="stable")
    else:
        order = merge_sort_order(lift(machine, computation), lines)
    results = [np.moveaxis(np.take_along_axis(x, order, -1), -1, dim) for x in lines]
    return results[0] if len(results) == 1 else tuple(results)


def _single_key(machine: Machine, computation: HloComputation, lines: Sequence[Array]) -> Array | None:
    """Return keys in the order of the comparator if it compares the same function of both sides, else None."""
    root = computation.root
    if root.opcode is not Opcode.COMPARE or root.attr("direction") not in ("LT", "GT") or not is_liftable(computation):
        return None
    left, right = root.operands
    t = left.shape.element_type
    if t.is_complex or not _mirrored(left, right, {}):
        return None
    # The left-hand side of the comparison, evaluated on whole arrays, is the key.
    keyed = _evaluate_key(machine, computation, left, lines)
    if t.is_float and root.attr("type") == "TOTALORDER":
        key = total_order_key(widen(keyed, t))
    elif t.is_float:
        wide = keyed.astype(np.float32) if t.bits < 32 else keyed
        if np.isnan(wide).any():
            return None
        key = wide + wide.dtype.type(0)  # -0 and 0 are equal keys
    else:
        key = keyed.astype(np.int8) if t.bits < 8 else keyed
    if root.attr("direction") == "LT":
        return key
    return -key if key.dtype.kind == "f" else ~key


def _mirrored(left: HloInstruction, right: HloInstruction, seen: dict[Pair, bool]) -> bool:
    """Check whether `right` is `left` with each even parameter 2k replaced by 2k+1; `seen` caches results."""
    if (left, right) not in seen:
        seen[left, right] = _mirrored_here(left, right) and all(
            _mirrored(a, b, seen) for a, b in zip(left.operands, right.operands, strict=True)
        )
    return seen[left, right]


def _mirrored_here(left: HloInstruction, right: HloInstruction) -> bool:
    """Check the instructions by themselves, without their operands."""
    if left.opcode is Opcode.PARAMETER and right.opcode is Opcode.PARAMETER:
        a, b = left.parameter_number or 0, right.parameter_number or 0
        return a % 2 == 0 and b == a + 1
    if left.opcode is Opcode.CONSTANT and right.opcode is Opcode.CONSTANT:
        return left is right or left.value.same_value(right.value)
    if left.opcode is not right.opcode or left.opcode in (Opcode.CALL, Opcode.FUSION, Opcode.TUPLE):
        return False
    if len(left.operands) != len(right.operands) or not left.shape.compatible(right.shape):
        return False
    return all(left.attr(k) == right.attr(k) for k in ("direction", "type", "exponent_bits", "mantissa_bits"))


def _evaluate_key(machine: Machine, computation: HloComputation, root: HloInstruction, lines: Sequence[Array]) -> Array:
    """Evaluate `root` with whole arrays for the even parameters, the left-hand sides."""
    found: dict[HloInstruction, Value] = {}
    for i in computation.post_order():
        if i.opcode is Opcode.PARAMETER:
            number = i.parameter_number or 0
            if number % 2 == 0:
                found[i] = lines[number // 2]
        elif i.opcode is Opcode.CONSTANT:
            found[i] = i.value.value
        elif all(o in found for o in i.operands):
            found[i] = find_evaluator(i)(machine, i, [found[o] for o in i.operands])
        if i is root:
            break
    return np.broadcast_to(as_array(found[root]), lines[0].shape)


def merge_sort_order(less: ArrayFunction, lines: Sequence[Array]) -> Array:
    """Return the stable order along the last dimension, given a comparator on whole arrays.

    A bottom-up merge sort that does all merges of a level at once. The position of an element in a merged run is its
    position in its own run plus the number of elements of the other run that precede it, found by binary search. The
    comparator is called O(log(n)^2) times. If it is no strict weak order, the result is some permutation.
    """
    n = lines[0].shape[-1]
    shape = lines[0].shape
    order = np.broadcast_to(np.arange(n), shape).copy()
    place = np.arange(n)
    width = 1
    while width < n:
        run = place // width
        in_left = run % 2 == 0
        other = np.minimum((run ^ 1) * width, n)
        other_end = np.minimum(other + width, n)
        mine = [np.take_along_axis(x, order, -1) for x in lines]
        low = np.broadcast_to(other, shape).copy()
        high = np.broadcast_to(other_end, shape).copy()
        for _ in range(int(width).bit_length()):
            middle = (low + high) // 2
            open_ = low < high
            probe = [np.take_along_axis(m, np.minimum(middle, n - 1), -1) for m in mine]
            first = [np.where(in_left, p, m) for p, m in zip(probe, mine, strict=True)]
            second = [np.where(in_left, m, p) for p, m in zip(probe, mine, strict=True)]
            is_less = less([v for pair in zip(first, second, strict=True) for v in pair])[0]
            # Left elements count right ones that are less; right elements count left ones that are not greater.
            before = is_less == in_left
            low = np.where(open_ & before, middle + 1, low)
            high = np.where(open_ & ~before, middle, high)
        start = run // 2 * 2 * width
        target = start + (place - run * width) + (low - other)
        # The positions are distinct, unless the comparator contradicts itself, as one of floats does where NaN occurs.
        order = np.take_along_axis(order, np.argsort(target, axis=-1, kind="stable"), -1)
        width *= 2
    return order


def descending_key(x: Array, t: T) -> Array:
    """Return integers whose ascending order is the descending order of `x`; NaN is the largest."""
    if t.is_float:
        return ~total_order_key(widen(x, t))
    return ~(x.astype(np.int8) if t.bits < 8 else x)


def top_k(x: Array, t: T, k: int, largest: bool) -> tuple[Array, Array]:
    """Return the `k` largest (or smallest) elements along the last dimension and their indices; ties by index."""
    key = descending_key(x, t)
    order = np.argsort(key if largest else ~key, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


@evaluator(Opcode.TOPK)
def _topk(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    largest = instruction.attr("largest", True)
    return top_k(arrays(values)[0], instruction.operands[0].shape.element_type, instruction.attr("k"), largest)
