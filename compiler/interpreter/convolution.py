"""Evaluator of convolution: padding, strides, dilations, reversal, feature groups, batch groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.interpreter.conversion import convert
from compiler.interpreter.dot import product_type, sum_type, type_of
from compiler.interpreter.registry import Array, array_evaluator
from compiler.interpreter.windows import Tap, taps
from compiler.ir.attributes import ConvDimLabels, Window
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def _order(labels: str, first: str) -> list[int]:
    """Return the positions of the named dimensions, then of the spatial ones in ascending order."""
    return [labels.index(c) for c in first] + [labels.index(c) for c in sorted(c for c in labels if c.isdigit())]


@array_evaluator(Opcode.CONVOLUTION)
def _convolution(instruction: HloInstruction, x: Array, kernel: Array) -> Array:
    labels: ConvDimLabels = instruction.attr("dim_labels")
    window: Window = instruction.attr("window", Window())
    result = instruction.shape.element_type
    types = [o.shape.element_type for o in instruction.operands]
    sums = sum_type(types, result)
    wide = product_type(types, sums)
    # Both in the order (group, batch or input feature, feature, space).
    x = x.astype(wide).transpose(_order(labels.lhs, "bf"))
    kernel = kernel.astype(wide).transpose(_order(labels.rhs, "io"))
    features, batches = instruction.attr("feature_group_count", 1), instruction.attr("batch_group_count", 1)
    groups = max(features, batches)
    x = x.reshape(batches, x.shape[0] // batches, features, x.shape[1] // features, *x.shape[2:])
    x = x[0].swapaxes(0, 1) if batches == 1 else x[:, :, 0]
    kernel = kernel.reshape(kernel.shape[0], groups, kernel.shape[1] // groups, *kernel.shape[2:]).swapaxes(0, 1)
    out_dims = [instruction.shape.dimensions[d] for d in _order(labels.out, "")]
    out = np.zeros((groups, x.shape[1], math.prod(out_dims), kernel.shape[2]), wide)
    out = out.reshape(groups, x.shape[1], *out_dims, kernel.shape[2])
    channels_last = np.moveaxis(x, 2, -1)
    # One matrix product per position in the window, instead of a patch matrix: memory stays small.
    for tap in taps(window, x.shape[3:], out_dims):
        _accumulate(out, channels_last, kernel, window, tap)
    # (group, batch, space, feature) -> (batch, group * feature, space) -> the order of dim_labels
    merged = np.moveaxis(out, (0, -1), (1, 2)).reshape(out.shape[1], groups * out.shape[-1], *out_dims)
    placed = merged.transpose(np.argsort(_order(labels.out, "bf")))
    if sums is not result:
        return convert(placed.astype(sums.dtype), sums, result)
    if result.is_integer:
        return convert(placed, type_of(placed), result)
    return placed.astype(result.dtype)


def _accumulate(out: Array, x: Array, kernel: Array, window: Window, tap: Tap) -> None:
    """Add the products of one window position (tap)."""
    at: list[Any] = [slice(None)] * 3
    at += [w.size - 1 - k if w.reversal else k for w, k in zip(window.dims, tap.position, strict=True)]
    seen = x[(slice(None), slice(None), *tap.inputs)]
    flat = seen.reshape(seen.shape[0], math.prod(seen.shape[1:-1]), seen.shape[-1])
    product = np.matmul(flat, kernel[tuple(at)])
    target = out[(slice(None), slice(None), *tap.outputs)]
    target += product.reshape(target.shape)
