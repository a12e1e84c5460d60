"""Evaluators of data movement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpreter.machine import Machine, describe
from compiler.interpreter.precision import compute_dtype, is_direct, narrow
from compiler.interpreter.registry import Array, Value, array_evaluator, arrays, evaluator, own, specialiser
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


@array_evaluator(Opcode.IOTA)
def _iota(instruction: HloInstruction) -> Array:
    shape, at = instruction.shape, instruction.attr("iota_dimension")
    t = shape.element_type
    if shape.num_elements == 0:
        return np.zeros(shape.dimensions, t.dtype)
    count = np.arange(shape.dimensions[at])
    line = narrow(count.astype(np.uint8), t) if compute_dtype(t).itemsize == 1 else count.astype(t.dtype)
    spread = [1] * shape.rank
    spread[at] = shape.dimensions[at]
    return np.broadcast_to(line.reshape(spread), shape.dimensions)


@array_evaluator(Opcode.BROADCAST)
def _broadcast(instruction: HloInstruction, x: Array) -> Array:
    dims = instruction.shape.dimensions
    if not dims:
        return x
    spread = [1] * len(dims)
    targets = instruction.dimensions
    for source, target in enumerate(targets):
        spread[target] = x.shape[source]
    ordered = x.transpose(np.argsort(targets)) if list(targets) != sorted(targets) else x
    return np.broadcast_to(ordered.reshape(spread), dims)


@specialiser(Opcode.BROADCAST)
def _broadcast_of(instruction: HloInstruction) -> Callable[[Array], Array] | None:
    """Return a function that copies a scalar to a small array: faster than numpy's broadcast views."""
    operand, shape = instruction.operands[0].shape, instruction.shape
    if operand.dimensions or not shape.dimensions or shape.num_elements > 64 or not is_direct(shape.element_type):
        return None
    return np.ones(shape.dimensions, shape.dtype).__mul__ if shape.element_type is not T.PRED else None


@array_evaluator(Opcode.RESHAPE)
def _reshape(instruction: HloInstruction, x: Array) -> Array:
    if not instruction.shape.dimensions and not instruction.operands[0].shape.dimensions:
        return x
    return x.reshape(instruction.shape.dimensions)


@specialiser(Opcode.RESHAPE)
def _reshape_of(instruction: HloInstruction) -> Callable[[Array], Array] | None:
    dims = instruction.shape.dimensions
    return methodcaller("reshape", dims) if dims or instruction.operands[0].shape.dimensions else None


@evaluator(Opcode.DYNAMIC_RESHAPE)
def _dynamic_reshape(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    x, *sizes = arrays(values)
    for dimension, (size, bound) in enumerate(zip(sizes, instruction.shape.dimensions, strict=True)):
        _need_whole(instruction, dimension, int(size), bound)
    return x.reshape(instruction.shape.dimensions)


@array_evaluator(Opcode.TRANSPOSE)
def _transpose(instruction: HloInstruction, x: Array) -> Array:
    return x.transpose(instruction.dimensions)


@array_evaluator(Opcode.REVERSE)
def _reverse(instruction: HloInstruction, x: Array) -> Array:
    return np.flip(x, instruction.dimensions)


def _ranges(instruction: HloInstruction) -> tuple[slice, ...]:
    return tuple(slice(d.start, d.limit, d.stride) for d in instruction.attr("slice"))


@array_evaluator(Opcode.SLICE)
def _slice(instruction: HloInstruction, x: Array) -> Array:
    return x[_ranges(instruction)]


@specialiser(Opcode.SLICE)
def _slice_of(instruction: HloInstruction) -> Callable[[Array], Array]:
    return itemgetter(_ranges(instruction))


@array_evaluator(Opcode.CONCATENATE)
def _concatenate(instruction: HloInstruction, *operands: Array) -> Array:
    return np.concatenate(operands, instruction.dimensions[0])


@array_evaluator(Opcode.PAD)
def _pad(instruction: HloInstruction, x: Array, value: Array) -> Array:
    config = instruction.attr("padding")
    spread = tuple((n - 1) * (p.interior + 1) + 1 if n else 0 for n, p in zip(x.shape, config, strict=True))
    wide = np.full([n + max(0, p.low) + max(0, p.high) for n, p in zip(spread, config, strict=True)], value, x.dtype)
    inner = tuple(slice(max(0, p.low), max(0, p.low) + n, p.interior + 1) for n, p in zip(spread, config, strict=True))
    wide[inner] = x
    cropped = tuple(slice(max(0, -p.low), n - max(0, -p.high)) for n, p in zip(wide.shape, config, strict=True))
    return wide[cropped]


def clamped_starts(indices: Sequence[Array], limits: Sequence[int]) -> list[int]:
    """Return the start indices (scalars, or one vector) clamped to 0..limit, so that the slice is in bounds."""
    if len(indices) == 1 and indices[0].ndim == 1:
        indices = list(indices[0])
    return [min(max(int(i), 0), limit) for i, limit in zip(indices, limits, strict=True)]


@array_evaluator(Opcode.DYNAMIC_SLICE)
def _dynamic_slice(instruction: HloInstruction, x: Array, *indices: Array) -> Array:
    sizes = instruction.attr("dynamic_slice_sizes")
    starts = clamped_starts(indices, [n - size for n, size in zip(x.shape, sizes, strict=True)])
    return x[tuple(slice(s, s + size) for s, size in zip(starts, sizes, strict=True))]


@evaluator(Opcode.DYNAMIC_UPDATE_SLICE)
def _dynamic_update_slice(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    out = own(values, 0)
    update, *indices = arrays(values[1:])
    starts = clamped_starts(indices, [n - size for n, size in zip(out.shape, update.shape, strict=True)])
    out[tuple(slice(s, s + size) for s, size in zip(starts, update.shape, strict=True))] = update
    return out


@evaluator(Opcode.COPY)
def _copy(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Copy a value, possibly to another float type: mixed-precision programs contain such copies."""
    x, shape = values[0], instruction.shape
    return x.astype(shape.dtype, copy=False) if isinstance(x, np.ndarray) and shape.is_array else x


@array_evaluator(Opcode.GET_DIMENSION_SIZE)
def _get_dimension_size(instruction: HloInstruction, x: Array) -> Array:
    return np.array(x.shape[instruction.dimensions[0]], np.int32)


@array_evaluator(Opcode.SET_DIMENSION_SIZE)
def _set_dimension_size(instruction: HloInstruction, x: Array, size: Array) -> Array:
    """Return the array, whose size must be the upper bound."""
    _need_whole(instruction, instruction.dimensions[0], int(size), x.shape[instruction.dimensions[0]])
    return x


def _need_whole(instruction: HloInstruction, dimension: int, size: int, bound: int) -> None:
    """Raise UnsupportedError for a size below the bound: consumers of the array use it whole."""
    if size != bound:
        raise UnsupportedError(
            f"{describe(instruction)}: dimension {dimension} has {size} of at most {bound} elements; sizes "
            "known only at run time are not supported: set each dimension to its bound"
        )
