"""Host ops: ops without a kernel, which the interpreter evaluates between the kernels of a program."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.interpreter.machine import Machine
from compiler.ir.shape import Shape
from compiler.runtime.thunks import HostThunk

Array = NDArray[Any]


def evaluate_host(t: HostThunk, inputs: list[Array], outputs: list[Array], machine: Machine) -> None:
    """Evaluate an op in the interpreter and write its results to `outputs`.

    The interpreter gets copies, because it may keep or change its arguments. All ops of one call of the program share a
    machine, which holds the state of the random number generator and the values that are sent but not yet received.
    """
    values: list[Any] = []
    at = 0
    for o in t.instruction.operands:
        count = sum(1 for s in o.shape.leaves() if s.is_array)
        part = [np.array(a) for a in inputs[at : at + count]]
        values.append(_tree(o.shape, iter(part)))
        at += count
    with np.errstate(all="ignore"):
        result = machine.evaluate(t.instruction, values)
    for target, value in zip(outputs, _flat(result), strict=True):
        np.copyto(target, value)


def _tree(shape: Shape, arrays: Any) -> Any:
    if shape.is_tuple:
        return tuple(_tree(s, arrays) for s in shape.tuple_shapes)
    return next(arrays) if shape.is_array else ()


def _flat(value: Any) -> list[Array]:
    if isinstance(value, tuple):
        return [leaf for v in value for leaf in _flat(v)]
    return [np.asarray(value)]
