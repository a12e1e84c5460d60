"""Lowerings of the backward pass of pooling and resampling, which PyTorch does not decompose.

Averages and interpolations are linear, so their gradients are products with the transposed matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.frontends.torch_pooling import (
    along,
    held_by_windows,
    nearest_places,
    pool_window,
    scale_factors,
    weights_of_parts,
)
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction
Matrix = NDArray[Any]


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


# ---- interpolation: one matrix [given, wanted] per dimension


def _nearest(given: int, wanted: int, factor: float | None, _align: bool) -> Matrix:
    matrix = np.zeros((given, wanted))
    matrix[nearest_places(given, wanted, factor), np.arange(wanted)] = 1
    return matrix


def _positions(given: int, wanted: int, factor: float | None, align: bool) -> Matrix:
    """Return the position of each output pixel among the input pixels."""
    if align:
        return np.arange(wanted) * ((given - 1) / (wanted - 1) if wanted > 1 else 0.0)
    return (np.arange(wanted) + 0.5) * (1 / factor if factor else given / wanted) - 0.5


def _linear(given: int, wanted: int, factor: float | None, align: bool) -> Matrix:
    at = np.maximum(_positions(given, wanted, factor, align), 0)
    low = np.minimum(np.floor(at).astype(int), given - 1)
    matrix = np.zeros((given, wanted))
    columns = np.arange(wanted)
    matrix[low, columns] += 1 - (at - low)
    matrix[np.minimum(low + 1, given - 1), columns] += at - low
    return matrix


def _cubic(given: int, wanted: int, factor: float | None, align: bool) -> Matrix:
    """Return the weights of Keys' kernel with a = -3/4; pixels beyond the edge repeat it."""
    at = _positions(given, wanted, factor, align)
    low = np.floor(at).astype(int)
    matrix, a = np.zeros((given, wanted)), -0.75
    for k in range(-1, 3):
        d = np.abs(at - low - k)
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        np.add.at(matrix, (np.clip(low + k, 0, given - 1), np.arange(wanted)), np.where(d <= 1, near, far))
    return matrix


def _resampled_backward(weights: Callable[..., Matrix], has_align: bool) -> Any:
    def lowering(b: TorchBuilder, grad: H, size: Any, input_size: Sequence[int], *rest: Any) -> H:
        align, scales = (rest[0], rest[1:]) if has_align else (False, rest)
        for d, factor in enumerate(scale_factors(scales, grad.shape.rank - 2), start=2):
            grad = along(b, grad, d, weights(int(input_size[d]), grad.shape.dimensions[d], factor, align).T)
        return grad

    return lowering


LOWERINGS.update(
    {f"upsample_nearest{n}d_backward": _resampled_backward(_nearest, has_align=False) for n in (1, 2, 3)}
    | {
        f"upsample_{name}_backward": _resampled_backward(_linear, has_align=True)
        for name in ("linear1d", "bilinear2d", "trilinear3d")
    }
    | {"upsample_bicubic2d_backward": _resampled_backward(_cubic, has_align=True)}
)
