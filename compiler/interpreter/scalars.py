"""Runs scalar computations (of reduce, map, sort, scatter...) on whole arrays.

Elementwise evaluators broadcast, so a scalar computation that consists of them runs on arrays unchanged. Any other
(with loops, branches, arrays) runs once per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Array, leaves
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

ArrayFunction: TypeAlias = Callable[[Sequence[Array]], list[Array]]
"""Maps broadcastable arrays to one array per result, of the broadcast shape."""

_ALSO = frozenset(
    {
        Opcode.PARAMETER,
        Opcode.CONSTANT,
        Opcode.TUPLE,
        Opcode.GET_TUPLE_ELEMENT,
        Opcode.OPTIMIZATION_BARRIER,
        Opcode.BITCAST_CONVERT,
        Opcode.BITCAST,
        Opcode.RESHAPE,
        Opcode.BROADCAST,
        Opcode.CALL,
        Opcode.FUSION,
    }
)


def is_liftable(computation: HloComputation) -> bool:
    """Check whether a computation consists of elementwise ops on scalars, and of calls of such computations."""
    seen, work = {computation}, [computation]
    while work:
        for i in work.pop().instructions:
            if not _liftable(i):
                return False
            more = [c for c in i.called_computations() if c not in seen]
            seen.update(more)
            work.extend(more)
    return True


def _liftable(instruction: HloInstruction) -> bool:
    """Check whether an instruction is an elementwise op on scalars, or a call."""
    if any(s.dimensions for s in instruction.shape.leaves()) or instruction.opcode is Opcode.MAP:
        return False
    return instruction.opcode.is_elementwise or instruction.opcode in _ALSO


def lift(machine: Machine, computation: HloComputation) -> ArrayFunction:
    """Return the computation as a function of arrays."""
    liftable = machine.liftable.get(computation)
    if liftable is None:
        liftable = machine.liftable[computation] = is_liftable(computation)
    if liftable:
        return lambda args: _at_once(machine, computation, args)
    return lambda args: _one_by_one(machine, computation, args)


def _at_once(machine: Machine, computation: HloComputation, args: Sequence[Array]) -> list[Array]:
    shape = np.broadcast_shapes(*(a.shape for a in args))
    return [np.broadcast_to(r, shape) for r in leaves(machine.run(computation, args))]


def _one_by_one(machine: Machine, computation: HloComputation, args: Sequence[Array]) -> list[Array]:
    spread = np.broadcast_arrays(*args)
    shapes = list(computation.result_shape.leaves())
    out = [np.empty(spread[0].shape, s.dtype) for s in shapes]
    for at in np.ndindex(spread[0].shape):
        results = leaves(machine.run(computation, [np.asarray(a[at]) for a in spread]))
        for target, result in zip(out, results, strict=True):
            target[at] = result
    return out


def binary_opcode(computation: HloComputation) -> Opcode | None:
    """Return the opcode if the computation is one elementwise op of its two parameters, else None."""
    root = computation.root
    if len(root.operands) != 2 or not root.opcode.is_elementwise:
        return None
    numbers = [o.parameter_number for o in root.operands if o.opcode is Opcode.PARAMETER]
    return root.opcode if sorted(n for n in numbers if n is not None) == [0, 1] else None


def returns_parameter(computation: HloComputation) -> int | None:
    """Return the number of the parameter that the computation returns unchanged, else None."""
    root = computation.root
    return root.parameter_number if root.opcode is Opcode.PARAMETER else None
