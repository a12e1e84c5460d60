"""Lowerings of ATen ops of the backward pass that PyTorch does not decompose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compiler.frontends.torch_builder import Lowerings, TorchBuilder
from compiler.frontends.torch_embedding import bag_of_each_row
from compiler.frontends.torch_indexing import take
from compiler.frontends.torch_networks import each, flipped_kernel
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import ConvDimLabels, Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("convolution_backward")
def _convolution_backward(
    b: TorchBuilder, grad: H, x: H, weight: H, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> list[H | None]:  # fmt: skip
    """Return the gradients of the input, the kernel and the bias, each only if the mask requests it."""
    n = x.shape.rank - 2
    how = [each(v, n) for v in (stride, padding, dilation)]
    by_input = by_weight = by_bias = None
    if mask[0]:
        as_input = _as_forward if transposed else _by_input
        by_input = as_input(b, grad, x, weight, how, groups)
    if mask[1]:
        # A transposed convolution is the input gradient of a convolution, so the two operands swap roles.
        first, second = (x, grad) if transposed else (grad, x)
        by_weight = _by_weight(b, first, second, weight, how, groups)
    if mask[2]:
        by_bias = b.reduce(Opcode.ADD, grad, (0, *range(2, grad.shape.rank)), 0)
    return [by_input, by_weight, by_bias]


def _spatial(x: H) -> str:
    return "".join(map(str, range(x.shape.rank - 2)))


def _by_input(b: TorchBuilder, grad: H, x: H, weight: H, how: Sequence[Sequence[int]], groups: int) -> H:
    """Convolve the gradient, dilated by the stride, with the reversed kernel."""
    window = []
    for i, (step, pad, dilation) in enumerate(zip(*how, strict=True)):
        reach = dilation * (weight.shape.dimensions[i + 2] - 1)
        spread = (grad.shape.dimensions[i + 2] - 1) * step + 1
        low = reach - pad
        high = x.shape.dimensions[i + 2] + reach - spread - low
        window.append(WindowDim(weight.shape.dimensions[i + 2], 1, low, high, step, dilation))
    kernel, labels = flipped_kernel(b, weight, groups)
    return _convolve(b, grad, kernel, x.shape, window, f"bf{_spatial(x)}", labels, f"bf{_spatial(x)}", groups)


def _as_forward(b: TorchBuilder, grad: H, x: H, weight: H, how: Sequence[Sequence[int]], groups: int) -> H:
    """Convolve the gradient; what it has beyond the windows of the input, as output padding, is skipped."""
    window = []
    for i, (step, pad, dilation) in enumerate(zip(*how, strict=True)):
        reach = dilation * (weight.shape.dimensions[i + 2] - 1)
        needed = (x.shape.dimensions[i + 2] - 1) * step + reach + 1
        beyond = grad.shape.dimensions[i + 2] + 2 * pad - needed
        window.append(WindowDim(weight.shape.dimensions[i + 2], step, pad, pad - (beyond // step) * step, 1, dilation))
    spatial = _spatial(x)
    return _convolve(b, grad, weight, x.shape, window, f"bf{spatial}", f"oi{spatial}", f"bf{spatial}", groups)


def _by_weight(b: TorchBuilder, grad: H, x: H, weight: H, how: Sequence[Sequence[int]], groups: int) -> H:
    """Convolve the input with the gradient as kernel, with batch and features swapped."""
    window = []
    for i, (step, pad, dilation) in enumerate(zip(*how, strict=True)):
        size = grad.shape.dimensions[i + 2]
        reach = dilation * (weight.shape.dimensions[i + 2] - 1)
        high = reach + (size - 1) * step + 1 - x.shape.dimensions[i + 2] - pad
        window.append(WindowDim(size, dilation, pad, high, 1, step))
    spatial = _spatial(x)
    labels = ConvDimLabels(f"fb{spatial}", f"io{spatial}", f"fb{spatial}")
    attributes = {"batch_group_count": groups} if groups != 1 else {}
    return b.add(
        Opcode.CONVOLUTION, x, grad, shape=Shape(x.shape.element_type, weight.shape.dimensions),
        window=Window(tuple(window)), dim_labels=labels, **attributes,
    )  # fmt: skip


def _convolve(
    b: TorchBuilder, x: H, kernel: H, out: Shape, window: Sequence[WindowDim], lhs: str, rhs: str, result: str,
    groups: int,
) -> H:  # fmt: skip
    attributes = {"feature_group_count": groups} if groups != 1 else {}
    return b.add(
        Opcode.CONVOLUTION, x, kernel, shape=Shape(x.shape.element_type, out.dimensions), window=Window(tuple(window)),
        dim_labels=ConvDimLabels(lhs, rhs, result), **attributes,
    )  # fmt: skip


@LOWERINGS.op("_cdist_backward")
def _distances_backward(b: TorchBuilder, grad: H, x: H, y: H, p: float, distance: H) -> H:
    """Return the gradient of `x` of all distances between rows of `x` and `y`; zero where a distance is zero."""
    if p == 0:
        return b.full(0, x.shape.without_layout())  # the number of different coordinates
    *batch, n, width = x.shape.dimensions
    m, t = y.shape.dimensions[-2], x.shape.element_type
    dims = (*batch, n, m, width)
    rows = b.broadcast(b.reshape(x, (*batch, n, 1, width)), dims)
    columns = b.broadcast(b.reshape(y, (*y.shape.dimensions[:-2], 1, m, width)), dims)
    apart = b.binary(Opcode.SUBTRACT, rows, columns, t)
    distance, grad = (b.broadcast(b.reshape(v, (*v.shape.dimensions, 1)), dims) for v in (distance, grad))
    if p == 2:
        slope = b.binary(Opcode.DIVIDE, apart, distance, t)
    elif p == 1:
        slope = b.add(Opcode.SIGN, apart)
    elif math.isinf(p):
        is_largest = b.compare(b.add(Opcode.ABS, apart), distance, "EQ")
        slope = b.select(is_largest, b.add(Opcode.SIGN, apart), 0, t)
    else:
        size = b.binary(Opcode.POWER, b.binary(Opcode.DIVIDE, b.add(Opcode.ABS, apart), distance, t), p - 1, t)
        slope = b.binary(Opcode.MULTIPLY, b.add(Opcode.SIGN, apart), size, t)
    slope = b.select(b.compare(distance, 0, "EQ"), 0, slope, t)
    return b.reduce(Opcode.ADD, b.binary(Opcode.MULTIPLY, grad, slope, t), (len(batch) + 1,), 0)


@LOWERINGS.op("_embedding_bag_backward")
def _embedding_bag_backward(b: TorchBuilder, grad: H, index: H, offsets: H, bag: H, *rest: Any) -> H:
    if not bag.shape.num_elements:
        bag = bag_of_each_row(b, offsets, index.shape.num_elements)
    before, (_sparse, *after) = rest[:5], rest[5:]
    return _embedding_bag_dense_backward(b, grad, index, bag, *before, *after)


@LOWERINGS.op("_embedding_bag_per_sample_weights_backward")
def _bag_weights_backward(
    b: TorchBuilder, grad: H, weight: H, index: H, offsets: H, bag: H, _mode: int = 0, padding: int = -1
) -> H:
    """Return the gradient of each row's weight: the row times its bag's gradient, and 0 for the padding index."""
    t, rows = weight.shape.element_type, index.shape.dimensions[0]
    if bag.shape.dimensions[0] != rows:
        bag = bag_of_each_row(b, offsets, rows)
    products = b.binary(Opcode.MULTIPLY, take(b, grad, bag, 0), take(b, weight, index, 0), t)
    found = b.reduce(Opcode.ADD, products, (1,), 0)
    return b.select(b.compare(index, padding, "NE"), found, 0, t) if padding >= 0 else found


@LOWERINGS.op("_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    b: TorchBuilder, grad: H, index: H, bag: H, sizes: H, maxima: H, count: int, by_frequency: bool, mode: int,
    scales: H | None, padding: int = -1,
) -> H:  # fmt: skip
    """Add the gradient of each bag to all of its rows, divided by the number of rows for averages.

    The rows with the padding index have no gradient. Bags by maximum add each element to the row that it is from.
    """
    t, rows = grad.shape.element_type, index.shape.num_elements
    if mode == 2:
        grad = b.select(b.compare(b.reshape(sizes, (sizes.shape.dimensions[0], 1)), 0, "GT"), grad, 0, t)
        return _added_at(b, grad, maxima, count)
    if mode == 1:
        share = b.binary(Opcode.MAXIMUM, sizes, 1, sizes.shape.element_type)
        grad = b.binary(Opcode.DIVIDE, grad, b.reshape(b.convert(share, t), (sizes.shape.dimensions[0], 1)), t)
    each_row = take(b, grad, bag, 0)
    if scales is not None:
        each_row = b.binary(Opcode.MULTIPLY, each_row, b.reshape(scales, (rows, 1)), t)
    if padding >= 0:
        each_row = b.select(b.compare(b.reshape(index, (rows, 1)), padding, "NE"), each_row, 0, t)
    if by_frequency:
        often = _rows_added(b, b.full(1, Shape(t, (rows, 1))), index, count)
        each_row = b.binary(Opcode.DIVIDE, each_row, take(b, often, index, 0), t)
    return _rows_added(b, each_row, index, count)


def _rows_added(b: TorchBuilder, each_row: H, index: H, count: int) -> H:
    """Return a table of `count` rows, each the sum of the rows with its index."""
    t, (rows, width) = each_row.shape.element_type, each_row.shape.dimensions
    return b.add(
        Opcode.SCATTER, b.full(0, Shape(t, (count, width))), b.reshape(index, (rows, 1)), each_row,
        to_apply=b.function(Opcode.ADD, t), update_window_dims=(1,), inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip


def _added_at(b: TorchBuilder, values: H, rows: H, count: int) -> H:
    """Return a table of `count` rows to which each element is added in its column, at the row that `rows` names."""
    t, (n, width) = values.shape.element_type, values.shape.dimensions
    integer = rows.shape.element_type
    columns = b.add(Opcode.IOTA, shape=rows.shape, iota_dimension=1)
    places = [b.reshape(v, (n, width, 1)) for v in (rows, columns)]
    at = b.add(Opcode.CONCATENATE, *places, shape=Shape(integer, (n, width, 2)), dimensions=(2,))
    return b.add(
        Opcode.SCATTER, b.full(0, Shape(t, (count, width))), at, values,
        to_apply=b.function(Opcode.ADD, t), update_window_dims=(), inserted_window_dims=(0, 1),
        scatter_dims_to_operand_dims=(0, 1), index_vector_dim=2,
    )  # fmt: skip
