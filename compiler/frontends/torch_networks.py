"""Lowerings of ATen ops of neural networks: matrix products, convolutions, normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import ConvDimLabels, Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("mm", "bmm", "matmul", "dot", "mv", "_int_mm")
def _matmul(b: TorchBuilder, x: H, y: H) -> H:
    """Multiply vectors, matrices or batches of matrices; batches of different sizes or ranks are broadcast.

    The product has the type of the result: `_int_mm` multiplies int8 and sums in int32.
    """
    batch: tuple[int, ...] = ()
    if y.shape.rank > 2 and x.shape.rank > 1:
        batch = np.broadcast_shapes(x.shape.dimensions[:-2], y.shape.dimensions[:-2])
        x, y = (b.broadcast(v, (*batch, *v.shape.dimensions[-2:])) for v in (x, y))
    over = tuple(range(len(batch)))
    return b.add(
        Opcode.DOT, x, y, shape=b.out,
        lhs_contracting_dims=(x.shape.rank - 1,), rhs_contracting_dims=(max(y.shape.rank - 2, 0),),
        lhs_batch_dims=over, rhs_batch_dims=over,
    )  # fmt: skip


@LOWERINGS.op("addmm", "baddbmm", "addmv")
def _addmm(b: TorchBuilder, bias: H, x: H, y: H, beta: Any = 1, alpha: Any = 1) -> H:
    product = _matmul(b, x, y)
    if alpha != 1:
        product = b.binary(Opcode.MULTIPLY, product, alpha)
    if beta == 0:
        return product
    return b.binary(Opcode.ADD, product, bias if beta == 1 else b.binary(Opcode.MULTIPLY, bias, beta))


@LOWERINGS.op("addbmm")
def _addbmm(b: TorchBuilder, bias: H, x: H, y: H, *, beta: Any = 1, alpha: Any = 1) -> H:
    """Sum matrix products over the batch, as a single product that also contracts the batch."""
    product = b.add(Opcode.DOT, x, y, shape=b.out, lhs_contracting_dims=(0, 2), rhs_contracting_dims=(0, 1))
    product = product if alpha == 1 else b.binary(Opcode.MULTIPLY, product, alpha)
    if beta == 0:
        return product
    return b.binary(Opcode.ADD, product, bias if beta == 1 else b.binary(Opcode.MULTIPLY, bias, beta))


@LOWERINGS.op("linear")
def _linear(b: TorchBuilder, x: H, weight: H, bias: H | None = None) -> H:
    product = b.add(
        Opcode.DOT, x, weight, lhs_contracting_dims=(x.shape.rank - 1,), rhs_contracting_dims=(weight.shape.rank - 1,)
    )
    return product if bias is None else b.binary(Opcode.ADD, product, bias)


@LOWERINGS.op("_weight_int8pack_mm")
def _quantized_linear(b: TorchBuilder, x: H, weight: H, scales: H) -> H:
    """Multiply by the transposed int8 weight, with one scale per column of the result."""
    wide = b.convert(weight, b.type)
    product = b.add(Opcode.DOT, x, wide, shape=b.out, lhs_contracting_dims=(1,), rhs_contracting_dims=(1,))
    return b.binary(Opcode.MULTIPLY, product, scales)


def each(value: Any, n: int) -> list[int]:
    """Return one number per dimension, given one per dimension or one for all."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    return listed * n if len(listed) == 1 else listed


@LOWERINGS.op("convolution")
def _convolution(
    b: TorchBuilder, x: H, weight: H, bias: H | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> H:  # fmt: skip
    n = x.shape.rank - 2
    spatial = "".join(map(str, range(n)))
    sizes = weight.shape.dimensions[2:]
    strides, pads, dilations, extra = (each(v, n) for v in (stride, padding, dilation, output_padding))
    if transposed:
        dims = []
        for i in range(n):
            reach = dilations[i] * (sizes[i] - 1)
            low = reach - pads[i]
            dims.append(WindowDim(sizes[i], 1, low, low + extra[i], strides[i], dilations[i]))
        weight, kernel = flipped_kernel(b, weight, groups)
    else:
        dims = [WindowDim(sizes[i], strides[i], pads[i], pads[i], 1, dilations[i]) for i in range(n)]
        kernel = f"oi{spatial}"
    labels = ConvDimLabels(f"bf{spatial}", kernel, f"bf{spatial}")
    attributes = {"feature_group_count": groups} if groups != 1 else {}
    result = b.add(
        Opcode.CONVOLUTION, x, weight, shape=b.out, window=Window(tuple(dims)), dim_labels=labels, **attributes
    )
    return (
        result if bias is None else b.binary(Opcode.ADD, result, b.reshape(bias, (bias.shape.dimensions[0], *(1,) * n)))
    )


def flipped_kernel(b: TorchBuilder, weight: H, groups: int) -> tuple[H, str]:
    """Return the kernel of a transposed convolution: [in, out / groups, ...] reversed, with groups in the outputs."""
    n = weight.shape.rank - 2
    spatial = "".join(map(str, range(n)))
    weight = b.add(Opcode.REVERSE, weight, dimensions=tuple(range(2, 2 + n)))
    if groups == 1:
        return weight, f"io{spatial}"
    inputs, outputs, *rest = weight.shape.dimensions
    split = b.reshape(weight, (groups, inputs // groups, outputs, *rest))
    moved = b.transpose(split, (1, 0, 2, *range(3, 3 + n)))
    return b.reshape(moved, (inputs // groups, groups * outputs, *rest)), f"io{spatial}"


# ---- normalization


def _normalised(b: TorchBuilder, x: H, dims: Sequence[int], epsilon: float) -> tuple[H, H, H]:
    """Return `x` with mean 0 and variance 1 over these dimensions, the mean, and the reciprocal of the deviation."""
    t = x.shape.element_type
    n = math.prod(x.shape.dimensions[d] for d in dims)
    center = b.binary(Opcode.DIVIDE, b.reduce(Opcode.ADD, x, dims, 0), n, t)
    apart = b.binary(Opcode.SUBTRACT, x, b.keep_dims(center, x.shape, dims), t)
    spread = b.binary(Opcode.DIVIDE, b.reduce(Opcode.ADD, b.add(Opcode.MULTIPLY, apart, apart), dims, 0), n, t)
    inverse = b.add(Opcode.RSQRT, b.binary(Opcode.ADD, spread, epsilon, t))
    return b.binary(Opcode.MULTIPLY, apart, b.keep_dims(inverse, x.shape, dims), t), center, inverse


def _single(x: H) -> Any:
    return T.F32 if x.shape.element_type.is_half else x.shape.element_type


@LOWERINGS.op("native_layer_norm")
def _layer_norm(b: TorchBuilder, x: H, normalized: Sequence[int], weight: Any, bias: Any, epsilon: float) -> list[H]:
    dims = tuple(range(x.shape.rank - len(normalized), x.shape.rank))
    t = _single(x)
    result, center, inverse = _normalised(b, b.convert(x, t), dims, epsilon)
    result = _scaled(b, result, weight, bias, t)
    kept = [1 if d in dims else n for d, n in enumerate(x.shape.dimensions)]
    return [b.convert(result, b.out.element_type), b.reshape(center, kept), b.reshape(inverse, kept)]


def _scaled(b: TorchBuilder, x: H, weight: Any, bias: Any, t: Any) -> H:
    if weight is not None:
        x = b.binary(Opcode.MULTIPLY, x, weight, t)
    return x if bias is None else b.binary(Opcode.ADD, x, bias, t)


@LOWERINGS.op("native_group_norm")
def _group_norm(
    b: TorchBuilder, x: H, weight: Any, bias: Any, batch: int, channels: int, _area: int, groups: int, epsilon: float
) -> list[H]:
    t = _single(x)
    split = b.reshape(b.convert(x, t), (batch, groups, math.prod(x.shape.dimensions) // (batch * groups)))
    result, center, inverse = _normalised(b, split, (2,), epsilon)
    ones = (1,) * (x.shape.rank - 2)
    weight, bias = (None if v is None else b.reshape(v, (channels, *ones)) for v in (weight, bias))
    result = _scaled(b, b.reshape(result, x.shape.dimensions), weight, bias, t)
    return [b.convert(result, b.out.element_type), center, inverse]


@LOWERINGS.op("_native_batch_norm_legit_no_training")
def _batch_norm(
    b: TorchBuilder, x: H, weight: Any, bias: Any, average: H, variance: H, _momentum: float, epsilon: float
) -> list[H]:
    t = _single(x)
    ones = (1,) * (x.shape.rank - 2)

    def along(v: Any) -> Any:
        return None if v is None else b.reshape(b.convert(v, t), (v.shape.dimensions[0], *ones))

    inverse = b.add(Opcode.RSQRT, b.binary(Opcode.ADD, b.convert(variance, t), epsilon, t))
    result = b.binary(Opcode.SUBTRACT, b.convert(x, t), along(average), t)
    result = _scaled(b, b.binary(Opcode.MULTIPLY, result, along(inverse), t), along(weight), along(bias), t)
    empty = b.full(0, Shape(t, (0,)))
    return [b.convert(result, b.out.element_type), empty, empty]


@LOWERINGS.op("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")
def _batch_norm_training(b: TorchBuilder, x: H, weight: Any, bias: Any, *rest: Any) -> list[H]:
    """Normalize by the batch's own mean and variance, towards which the running statistics, if any, move."""
    with_stats = not isinstance(rest[0], bool)
    average, variance, training, momentum, epsilon = rest if with_stats else (None, None, *rest)
    if not training:
        unchanged = [average, variance] if len(b.result) > 3 else []
        return _batch_norm(b, x, weight, bias, average, variance, momentum, epsilon) + unchanged
    t, dims = _single(x), tuple(d for d in range(x.shape.rank) if d != 1)
    ones = (1,) * (x.shape.rank - 2)
    weight, bias = (None if v is None else b.reshape(v, (v.shape.dimensions[0], *ones)) for v in (weight, bias))
    result, center, inverse = _normalised(b, b.convert(x, t), dims, epsilon)
    results = [b.convert(_scaled(b, result, weight, bias, t), b.out.element_type), center, inverse]
    if average is None:
        return results
    n = math.prod(x.shape.dimensions[d] for d in dims)
    apart = b.binary(Opcode.SUBTRACT, b.convert(x, t), b.reshape(center, (center.shape.dimensions[0], *ones)), t)
    squares = b.reduce(Opcode.ADD, b.add(Opcode.MULTIPLY, apart, apart), dims, 0)
    spread = b.binary(Opcode.DIVIDE, squares, max(n - 1, 1), t)
    return [*results, _towards(b, average, center, momentum), _towards(b, variance, spread, momentum)]


def _towards(b: TorchBuilder, running: H, now: H, momentum: float) -> H:
    t = running.shape.element_type
    kept = b.binary(Opcode.MULTIPLY, running, 1 - momentum, t)
    return b.binary(Opcode.ADD, kept, b.binary(Opcode.MULTIPLY, b.convert(now, t), momentum, t), t)
