"""Prevents recomputation of values that are compared with a value selected from among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, Trait
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.patterns import splat_value

_CHOOSING = frozenset(
    {
        Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.SELECT, Opcode.COMPARE, Opcode.AND, Opcode.OR, Opcode.NOT,
        Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT,
    }
)  # fmt: skip
"""Opcodes of reducers that return one of their arguments."""
_ALL_OPERANDS = frozenset(
    {
        Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.CLAMP, Opcode.ABS, Opcode.NEGATE, Opcode.CONVERT, Opcode.COPY,
        Opcode.CONCATENATE, Opcode.REVERSE, Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST, Opcode.TRANSPOSE,
        Opcode.SLICE, Opcode.PAD,
    }
)  # fmt: skip
_RECOMPUTED = frozenset({Opcode.REDUCE})
"""Ops besides elementwise arithmetic that fusion may compute in several kernels."""


@dataclass(frozen=True)
class ComparedValues(ComputationPass):
    """Insert a barrier after a float that is compared with a maximum, a sorted copy or the like of itself.

    The gradient of a maximum tests which elements equal it. If the elements were computed once for the maximum and
    again for the comparison in another loop, they could differ in the last bit; no element would be equal, and the
    gradient would be 0 / 0. The barrier makes both read the same array.
    """

    name: ClassVar[str] = "compared-values"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        found: dict[HloInstruction, None] = {}
        for i in computation.post_order():
            if i.opcode is Opcode.COMPARE and i.operands[0].shape.element_type.is_float:
                a, b = _sides(i)
                if a is not b:
                    others = origins(b)
                    found.update((x, None) for x in origins(a) if x in others and _is_recomputed(x))
        for x in found:
            _put_barrier(computation, x)
        return bool(found)


def _sides(compare: HloInstruction) -> Sequence[HloInstruction]:
    """Return the operands of a comparison; for a difference compared with 0, the two terms of the difference."""
    a, b = compare.operands
    if a.opcode is Opcode.SUBTRACT and splat_value(b) == 0:
        return a.operands
    return a, b


def origins(value: HloInstruction) -> dict[HloInstruction, None]:
    """Return the instructions that the elements of a value are copied from, ignoring changes of sign and type."""
    found: dict[HloInstruction, None] = {}
    work, seen = [value], {value}
    while work:
        i = work.pop()
        sources = _chosen_from(i)
        if not sources:
            found[i] = None
        for o in sources:
            if o not in seen:
                seen.add(o)
                work.append(o)
    return found


def _chosen_from(i: HloInstruction) -> Sequence[HloInstruction]:
    """Return the operands that the elements of the result are copied from; none if the op computes new elements."""
    op = i.opcode
    if op in _ALL_OPERANDS:
        return i.operands
    if op in (Opcode.DYNAMIC_SLICE, Opcode.GATHER):
        return i.operands[:1]
    if op is Opcode.DYNAMIC_UPDATE_SLICE:
        return i.operands[:2]
    if op is Opcode.SELECT:
        return i.operands[1:]
    if op is Opcode.GET_TUPLE_ELEMENT:
        whole, index = i.operands[0], i.attributes["index"]
        one_each = whole.opcode in (Opcode.SORT, Opcode.TUPLE) or (whole.opcode is Opcode.REDUCE and _chooses(whole))
        return whole.operands[index : index + 1] if one_each or (whole.opcode is Opcode.TOPK and index == 0) else ()
    if op is Opcode.SORT or (op in (Opcode.REDUCE, Opcode.REDUCE_WINDOW) and i.shape.is_array and _chooses(i)):
        return i.operands[:1]
    return ()


def _chooses(reduce: HloInstruction) -> bool:
    reducer: HloComputation = reduce.attributes["to_apply"]
    return all(i.opcode in _CHOOSING for i in reducer.instructions)


def _is_recomputed(i: HloInstruction) -> bool:
    """Check whether fusion may compute it in two kernels, with results that differ in the last bit."""
    if not i.shape.is_array or not i.shape.element_type.is_float or i.opcode is Opcode.CONSTANT:
        return False
    return i.opcode.has(Trait.ELEMENTWISE) or i.opcode in _RECOMPUTED


def _put_barrier(computation: HloComputation, value: HloInstruction) -> None:
    users, is_root = list(value.users), value.is_root
    barrier = computation.add(Opcode.OPTIMIZATION_BARRIER, [value])
    for u in users:
        u.replace_operands(value, barrier)
    if is_root:
        computation.root = barrier
