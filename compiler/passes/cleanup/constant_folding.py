"""Constant folding: evaluates instructions on constants with the interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.errors import HlogymError
from compiler.ir import HloComputation, HloInstruction, Literal, Opcode, Trait
from compiler.ir.shape import default_layout
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import substitute

_NEVER = Trait.SIDE_EFFECT | Trait.RANDOM | Trait.CONTROL | Trait.COLLECTIVE | Trait.ASYNC | Trait.HOST | Trait.TUPLE
_NEVER_OPS = frozenset(
    {
        Opcode.CONSTANT, Opcode.PARAMETER, Opcode.BROADCAST, Opcode.IOTA, Opcode.CUSTOM_CALL, Opcode.FUSION,
        Opcode.COPY, Opcode.CHOLESKY, Opcode.TRIANGULAR_SOLVE, Opcode.FFT, Opcode.STOCHASTIC_CONVERT,
        *(op for op in Opcode if op.row.traits & _NEVER),
    }
)  # fmt: skip
_SMALL_LEAF = 1024
_TINY_BYTES = 4096


@register
@dataclass(frozen=True)
class ConstantFolding(ComputationPass):
    """Replace instructions on constants by their value.

    Broadcasts and iotas are kept, because they are free to compute and costly to store, but small ones count as
    constants for their users. Random ops, side effects, control flow and library calls are not folded.

    Attributes:
        max_bytes: no larger constant is created, nor one larger than its constant operands unless it is tiny.
        iotas: whether small iotas count as constants.
    """

    name: ClassVar[str] = "constant-folding"
    max_bytes: int = number_option(1 << 20, 0, 1 << 28)
    iotas: bool = True

    def run_on(self, computation: HloComputation) -> bool:
        """Fold constants in one computation, operands first; return whether it changed."""
        changed = False
        for i in computation.post_order():
            if i.parent is computation and not i.is_dead:
                changed |= self._fold(computation, i)
        return changed

    def _fold(self, computation: HloComputation, i: HloInstruction) -> bool:
        if not self._may_fold(i):
            return False
        from compiler.interpreter import evaluate_op

        try:
            with np.errstate(all="ignore"):
                value = evaluate_op(i, [_leaf_value(o) for o in i.operands])
        except HlogymError:
            return False  # an op that the interpreter cannot evaluate
        if not isinstance(value, np.ndarray):
            return False
        if _counts_up(value):
            # An iota is computed in the kernel, while a constant array is loaded from memory.
            return substitute(i, computation.add(Opcode.IOTA, [], i.shape, iota_dimension=0), fresh=True)
        constant = computation.add_constant(Literal.from_array(value, i.shape))
        return substitute(i, constant, fresh=True)

    def _may_fold(self, i: HloInstruction) -> bool:
        if not i.operands or i.opcode in _NEVER_OPS or not i.shape.is_array or i.shape.is_dynamic:
            return False
        for o in i.operands:
            if not _is_leaf(o) or (o.opcode is Opcode.IOTA and not self.iotas):
                return False
        if i.control_predecessors:
            return False
        if i.opcode is Opcode.BITCAST and not _plain_bitcast(i):
            return False
        size = i.shape.byte_size
        read = sum(o.shape.byte_size for o in i.operands if o.opcode is Opcode.CONSTANT)
        return size <= self.max_bytes and (size <= _TINY_BYTES or size <= read)


def _counts_up(a: np.ndarray[Any, Any]) -> bool:
    """Check whether an array is 0, 1, 2... in integers."""
    return a.ndim == 1 and a.size > 2 and a.dtype.kind in "iu" and bool(np.array_equal(a, np.arange(a.size)))


def _plain_bitcast(i: HloInstruction) -> bool:
    """Check whether a bitcast is a reshape: same element type, and both layouts row-major."""
    shapes = (i.shape, i.operands[0].shape)
    if i.shape.element_type is not i.operands[0].shape.element_type:
        return False
    return all(s.layout is None or s.layout == default_layout(s.rank) for s in shapes)


def _is_leaf(i: HloInstruction) -> bool:
    if i.opcode is Opcode.CONSTANT:
        return i.shape.is_array
    if not i.shape.is_array or i.shape.num_elements > _SMALL_LEAF:
        return False
    if i.opcode is Opcode.IOTA:
        return True
    return i.opcode is Opcode.BROADCAST and i.operands[0].opcode is Opcode.CONSTANT


def _leaf_value(i: HloInstruction) -> np.ndarray[Any, Any]:
    if i.literal is not None:
        return i.literal.value
    from compiler.interpreter import evaluate_op

    value = evaluate_op(i, [_leaf_value(o) for o in i.operands])
    assert isinstance(value, np.ndarray)  # noqa: S101 - _is_leaf accepts only arrays
    return value
