"""Lowerings of ATen's fake quantization: values rounded to a grid of integers and scaled back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("fake_quantize_per_tensor_affine_cachemask")
def _per_tensor(b: TorchBuilder, x: H, scale: float, zero_point: int, quant_min: int, quant_max: int) -> list[H]:
    """Return the values of the grid next to those of x, and where the grid's integers are in range."""
    # PyTorch holds the scale in single precision and multiplies by its rounded reciprocal.
    step = np.float32(scale)
    inverse = np.float32(1) / step
    return _quantized(b, x, (float(step), float(inverse)), zero_point, (quant_min, quant_max))


@LOWERINGS.op("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _per_tensor_with_tensors(
    b: TorchBuilder, x: H, scale: H, zero_point: H, enabled: H, quant_min: int, quant_max: int
) -> list[H]:
    """Quantize with the scale and the zero point in tensors; where `enabled` is 0, return x and true."""
    step, zero = (b.reshape(v, ()) for v in (scale, zero_point))
    values, inside = _quantized(b, x, (step, _reciprocal(b, step)), zero, (quant_min, quant_max))
    on = b.broadcast(b.compare(b.reshape(enabled, ()), 0, "NE"), x.shape.dimensions)
    return [b.select(on, values, x, x.shape.element_type), b.select(on, inside, True, T.PRED)]


@LOWERINGS.op("fake_quantize_per_channel_affine_cachemask")
def _per_channel(b: TorchBuilder, x: H, scale: H, zero_point: H, axis: int, quant_min: int, quant_max: int) -> list[H]:
    """Quantize with a scale and a zero point per position along an axis."""
    dims = [n if i == axis % x.shape.rank else 1 for i, n in enumerate(x.shape.dimensions)]
    step, inverse, zero = (b.reshape(v, dims) for v in (scale, _reciprocal(b, scale), zero_point))
    if zero.shape.element_type.is_float:
        raise b.unsupported("a fractional zero point")
    return _quantized(b, x, (step, inverse), zero, (quant_min, quant_max), per_channel=True)


def _reciprocal(b: TorchBuilder, scale: H) -> H:
    t = scale.shape.element_type
    return b.binary(Opcode.DIVIDE, 1, scale, t)


def _quantized(
    b: TorchBuilder, x: H, scales: tuple[Any, Any], zero_point: Any, limits: tuple[int, int], per_channel: bool = False
) -> list[H]:
    """Return the quantized values, and where their integers are within the limits.

    Args:
        b: where the instructions are added.
        x: the values.
        scales: the distance of the grid's values, and its reciprocal.
        zero_point: the integer of the value 0.
        limits: the least and the greatest integer. NaN counts as less than the least.
        per_channel: whether to compute as PyTorch's kernel for channels does, where numbers that do not fit into 64
            bits count as less than the least, and float64 is scaled in its own precision instead of that of float32.
    """
    given = x.shape.element_type
    t = T.F64 if given is T.F64 else T.F32
    step, inverse = scales
    number = b.add(Opcode.ROUND_NEAREST_EVEN, b.binary(Opcode.MULTIPLY, b.convert(x, t), inverse, t))
    number = b.binary(Opcode.ADD, number, zero_point, t)
    known = b.compare(number, number, "EQ")
    if per_channel:
        known = b.compare(b.add(Opcode.ABS, number), 2.0**63, "LT")
    number = b.select(known, number, -math.inf, t)
    low, high = limits
    inside = b.binary(Opcode.AND, b.compare(number, low, "GE"), b.compare(number, high, "LE"), T.PRED)
    bounded = b.binary(Opcode.MINIMUM, b.binary(Opcode.MAXIMUM, number, low, t), high, t)
    t = t if per_channel else T.F32
    values = b.binary(Opcode.MULTIPLY, b.binary(Opcode.SUBTRACT, bounded, zero_point, t), step, t)
    return [b.convert(values, given), inside]
