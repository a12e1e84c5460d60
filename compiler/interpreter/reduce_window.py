"""Evaluators of reduce-window, select-and-scatter and scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.interpreter.gather_scatter import combine_at
from compiler.interpreter.machine import Machine
from compiler.interpreter.reduce import accumulator, ufunc_of
from compiler.interpreter.registry import Array, Value, arrays, evaluator, leaves
from compiler.interpreter.scalars import binary_opcode, lift
from compiler.interpreter.windows import taps
from compiler.ir.attributes import Window, WindowDim
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


@evaluator(Opcode.REDUCE_WINDOW)
def _reduce_window(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Reduce windows, each from the initial value; padding and holes are not combined."""
    n = len(values) // 2
    inputs, inits = arrays(values[:n]), arrays(values[n:])
    computation, window = instruction.attr("to_apply"), instruction.attr("window", Window())
    dims = next(instruction.shape.leaves()).dimensions
    t = instruction.operands[0].shape.element_type
    ufunc = None if instruction.shape.is_tuple else ufunc_of(binary_opcode(computation), t)
    if ufunc is not None:
        return _by_ufunc(ufunc, window, inputs[0], inits[0], dims, accumulator(t)).astype(t.dtype)
    f = lift(machine, computation)
    out = [np.full(dims, i, i.dtype) for i in inits]
    for tap in taps(window, inputs[0].shape, dims):
        results = f([*(o[tap.outputs] for o in out), *(x[tap.inputs] for x in inputs)])
        for o, r in zip(out, results, strict=True):
            o[tap.outputs] = r
    return tuple(out) if instruction.shape.is_tuple else out[0]


def _by_ufunc(ufunc: Any, window: Window, x: Array, init: Array, dims: Sequence[int], wide: np.dtype[Any]) -> Array:
    x = x.astype(wide, copy=False)
    moving = [d for d, w in enumerate(window.dims) if w != WindowDim(1)]
    if len(moving) == 1 and 0 not in x.shape:
        (axis,) = moving
        n = x.shape[axis]
        if window.dims[axis] == WindowDim(n, pad_low=n - 1):
            return _running(ufunc, x, init.astype(wide), axis)
        if window.dims[axis] == WindowDim(n, pad_high=n - 1):
            return np.flip(_running(ufunc, np.flip(x, axis), init.astype(wide), axis), axis)
    out = np.full(dims, init.astype(wide), wide)
    for tap in taps(window, x.shape, dims):
        target = out[tap.outputs] if out.ndim else out  # always a view
        ufunc(target, x[tap.inputs], out=target)
    return out


def _running(ufunc: Any, x: Array, init: Array, axis: int) -> Array:
    """Return the cumulative reduction along an axis from an initial value."""
    start = np.broadcast_to(init, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    whole: Array = ufunc.accumulate(np.concatenate([start, x], axis), axis, dtype=x.dtype)
    return whole[(*(slice(None),) * axis, slice(1, None))]


@evaluator(Opcode.SELECT_AND_SCATTER)
def _select_and_scatter(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Scatter each source element to the input element of its window that `select` prefers; ties go to the first."""
    x, source, init = arrays(values)
    select = lift(machine, instruction.attr("select"))
    numbers = np.arange(x.size).reshape(x.shape)
    best, chosen = np.zeros(source.shape, x.dtype), np.full(source.shape, -1)
    for tap in taps(instruction.attr("window", Window()), x.shape, source.shape):
        # Running tournament over the window: keep the held element while select(held, candidate) is true.
        held, where = best[tap.outputs], chosen[tap.outputs]
        candidate = x[tap.inputs]
        take = (where < 0) | ~select([held, candidate])[0]
        best[tap.outputs] = np.where(take, candidate, held)
        chosen[tap.outputs] = np.where(take, numbers[tap.inputs], where)
    flat = np.full(x.size, init, x.dtype)
    kept = chosen.reshape(-1) >= 0
    combine_at(machine, instruction.attr("scatter"), [flat], chosen.reshape(-1)[kept], [source.reshape(-1)[kept]])
    return flat.reshape(x.shape)


@evaluator(Opcode.SCAN)
def _scan(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Apply `to_apply`, which maps input slices and carries to output slices and carries, to each step."""
    computation, dim = instruction.attr("to_apply"), instruction.dimensions[0]
    carries_count = instruction.attr("num_carries")
    inputs_count = len(values) - carries_count
    inputs, carries = arrays(values[:inputs_count]), list(values[inputs_count:])
    shapes = list(instruction.shape.leaves())
    outputs = [np.zeros(s.dimensions, s.dtype) for s in shapes[: len(shapes) - carries_count]]
    count = inputs[0].shape[dim] if inputs else outputs[0].shape[dim]
    steps = range(count - 1, -1, -1) if instruction.attr("is_reverse", False) else range(count)
    for k in steps:
        results = leaves(machine.run(computation, [*(np.take(x, k, dim) for x in inputs), *carries]))
        carries = list(results[len(outputs) :])
        for target, result in zip(outputs, results, strict=False):
            target[(slice(None),) * dim + (k,)] = result
    found: tuple[Value, ...] = (*outputs, *carries)
    return found if instruction.shape.is_tuple else found[0]
