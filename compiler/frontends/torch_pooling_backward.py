"""Lowerings of the backward pass of pooling, which PyTorch does not decompose.

Averages are linear, so their gradients are products with the transposed matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_along import along
from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.frontends.torch_pooling import held_by_windows, pool_window, weights_of_parts
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("avg_pool2d_backward", "avg_pool3d_backward")
def _average_backward(
    b: TorchBuilder, grad: H, x: H, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    divisor: int | None,
) -> H:  # fmt: skip
    """Distribute each gradient over its window."""
    t = x.shape.element_type
    window = pool_window(x.shape, grad.shape.dimensions, kernel, stride, padding, 1)
    counts = divisor or held_by_windows(x.shape, grad.shape.dimensions, window, padding, len(kernel), count_include_pad)
    share = b.binary(Opcode.DIVIDE, grad, counts if isinstance(counts, int) else b.constant(counts, t), t)
    back = []
    for w, n, m in zip(window.dims, x.shape.dimensions, grad.shape.dimensions, strict=True):
        low = w.size - 1 - w.pad_low
        back.append(WindowDim(w.size, 1, low, n + w.size - 1 - ((m - 1) * w.stride + 1) - low, w.stride))
    return b.add(
        Opcode.REDUCE_WINDOW, share, b.constant(0, t), window=Window(tuple(back)), to_apply=b.function(Opcode.ADD, t)
    )


@LOWERINGS.op("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_average_backward(b: TorchBuilder, grad: H, x: H) -> H:
    spatial = range(x.shape.rank - (3 if "3d" in b.what else 2), x.shape.rank)
    for d in spatial:
        grad = along(b, grad, d, weights_of_parts(x.shape.dimensions[d], grad.shape.dimensions[d]).T)
    return grad


@LOWERINGS.op("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_maximum_backward(b: TorchBuilder, grad: H, x: H, places: H) -> H:
    """Add each gradient to the position of its maximum."""
    n = 3 if "3d" in b.what else 2
    *batch, t = *x.shape.dimensions[: x.shape.rank - n], x.shape.element_type
    plane, many = math.prod(x.shape.dimensions[-n:]), math.prod(grad.shape.dimensions[-n:])
    lines = math.prod(batch)
    line = b.add(Opcode.IOTA, shape=Shape(T.S64, (lines, many, 1)), iota_dimension=0)
    vectors = b.add(Opcode.CONCATENATE, line, b.reshape(places, (lines, many, 1)), dimensions=(2,))
    total = b.add(
        Opcode.SCATTER, b.full(0, Shape(t, (lines, plane))), vectors, b.reshape(grad, (lines, many)),
        to_apply=b.function(Opcode.ADD, t), update_window_dims=(), inserted_window_dims=(0, 1),
        scatter_dims_to_operand_dims=(0, 1), index_vector_dim=2,
    )  # fmt: skip
    return b.reshape(total, x.shape.dimensions)


@LOWERINGS.op("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _replicated_backward(b: TorchBuilder, grad: H, x: H, padding: Sequence[int]) -> H:
    """Add the gradients of padding to the edge; paddings are listed last dimension first."""
    for k, low in enumerate(padding[::2]):
        d = x.shape.rank - 1 - k
        n, m = x.shape.dimensions[d], grad.shape.dimensions[d]
        matrix = np.zeros((m, n))
        matrix[np.arange(m), np.clip(np.arange(m) - low, 0, n - 1)] = 1
        grad = along(b, grad, d, matrix)
    return grad
