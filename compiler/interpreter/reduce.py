"""Evaluators of reduce and map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.interpreter.machine import Machine
from compiler.interpreter.precision import F64, compute_dtype
from compiler.interpreter.registry import Array, Value, arrays, evaluator
from compiler.interpreter.scalars import ArrayFunction, binary_opcode, lift
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_UFUNCS: dict[Opcode, Any] = {
    Opcode.ADD: np.add,
    Opcode.MULTIPLY: np.multiply,
    Opcode.MAXIMUM: np.maximum,
    Opcode.MINIMUM: np.minimum,
    Opcode.AND: np.bitwise_and,
    Opcode.OR: np.bitwise_or,
    Opcode.XOR: np.bitwise_xor,
}
_PRED_UFUNCS: dict[Opcode, Any] = _UFUNCS | {
    Opcode.ADD: np.logical_or,
    Opcode.MULTIPLY: np.logical_and,
    Opcode.MAXIMUM: np.logical_or,
    Opcode.MINIMUM: np.logical_and,
}
SEQUENTIAL_LIMIT = 256
"""Up to this many elements, a general reducer is applied in order; beyond, neighbours are combined in a tree."""


def ufunc_of(opcode: Opcode | None, t: T) -> Any | None:
    """Return the numpy ufunc for reductions of type `t` by an opcode, or None if there is none."""
    if opcode is None or (t.is_integer and t.bits < 8):
        return None
    return (_PRED_UFUNCS if t is T.PRED else _UFUNCS).get(opcode)


def accumulator(t: T) -> np.dtype[Any]:
    """Return the dtype in which sums and products of `t` accumulate: wide, so that their order matters little."""
    if t.is_float:
        return F64
    return np.dtype(np.complex128) if t.is_complex else t.dtype


@evaluator(Opcode.REDUCE)
def _reduce(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    n = len(values) // 2
    inputs, inits = arrays(values[:n]), arrays(values[n:])
    dims, computation = instruction.dimensions, instruction.attr("to_apply")
    t = instruction.operands[0].shape.element_type
    ufunc = None if instruction.shape.is_tuple else ufunc_of(binary_opcode(computation), t)
    if ufunc is not None:
        x = inputs[0]
        wide = accumulator(t) if ufunc in (np.add, np.multiply) else compute_dtype(t)
        result = ufunc.reduce(x.astype(wide, copy=False), axis=dims, initial=inits[0].astype(wide)[()])
        return np.asarray(result).astype(t.dtype)
    results = reduce_generally(lift(machine, computation), inputs, inits, dims)
    return tuple(results) if instruction.shape.is_tuple else results[0]


def reduce_generally(
    f: ArrayFunction, inputs: Sequence[Array], inits: Sequence[Array], dims: Sequence[int]
) -> list[Array]:
    """Reduce by any function, `f(accumulators + elements)`, applied to whole slices in row-major order."""
    lines = [_reduced_first(x, dims) for x in inputs]
    kept = lines[0].shape[1:]
    start = [np.broadcast_to(i, kept) for i in inits]
    count = lines[0].shape[0]
    if count > SEQUENTIAL_LIMIT:
        lines = _tree(f, lines)
        count = lines[0].shape[0]
    for k in range(count):
        start = f([*start, *(line[k] for line in lines)])
    return [np.asarray(s) for s in start]


def _reduced_first(x: Array, dims: Sequence[int]) -> Array:
    """Merge the reduced dimensions into one, and move it to the front."""
    kept = [d for d in range(x.ndim) if d not in dims]
    order = [*sorted(dims), *kept]
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64))
    return x.transpose(order).reshape(count, *(x.shape[d] for d in kept))


def _tree(f: ArrayFunction, lines: Sequence[Array]) -> list[Array]:
    """Combine neighbours until one element remains along the first dimension."""
    current = list(lines)
    while (count := current[0].shape[0]) > 1:
        even = count - count % 2
        paired = f([*(x[0:even:2] for x in current), *(x[1:even:2] for x in current)])
        current = [np.concatenate([p, x[even:]]) for p, x in zip(paired, current, strict=True)]
    return current


@evaluator(Opcode.MAP)
def _map(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return lift(machine, instruction.attr("to_apply"))(arrays(values))[0]
