"""Ops without a kernel: the interpreter computes them in the middle of a compiled program."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.interpreter.machine import Machine
from compiler.ir.shape import Shape
from compiler.runtime.thunks import HostThunk

Array = NDArray[Any]


def evaluate_host(t: HostThunk, inputs: list[Array], outputs: list[Array], machine: Machine) -> None:
    """Run an op in the interpreter, on copies: it may keep or change what it is given.

    One machine serves a call of the program: random numbers go on from op to op, and what was sent waits in it.
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
