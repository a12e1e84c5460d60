"""Lowerings of ATen ops that pool over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.torch_along import along
from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, lowest
from compiler.frontends.torch_indexing import take_at
from compiler.frontends.torch_networks import each
from compiler.frontends.torch_reductions import better, mean
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction
_NOWHERE = np.iinfo(np.int64).max
"""Index of the maximum of a window that holds nothing but padding."""


def pool_window(
    shape: Shape, out_sizes: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Window:
    """Return the window over the spatial dimensions; `ceil_mode` adds padding at the end."""
    n = len(kernel)
    sizes, pads, dilations = each(kernel, n), each(padding, n), each(dilation, n)
    strides = each(stride, n) if stride else sizes
    dims = [WindowDim(1)] * (shape.rank - n)
    for i in range(n):
        size, out = shape.dimensions[shape.rank - n + i], out_sizes[shape.rank - n + i]
        reach = (out - 1) * strides[i] + dilations[i] * (sizes[i] - 1) + 1
        high = max(pads[i], reach - size - pads[i])
        # Padding beyond what the windows cover would add a window.
        high = min(high, reach - size - pads[i] + strides[i] - 1)
        dims.append(WindowDim(sizes[i], strides[i], pads[i], high, 1, dilations[i]))
    return Window(tuple(dims))


@LOWERINGS.op("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    b: TorchBuilder, x: H, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    window = pool_window(x.shape, b.out.dimensions, kernel, stride, padding, dilation)
    found = _maxima(b, x, window, len(kernel))
    return found if "with_indices" in b.what else found[0]


def _maxima(b: TorchBuilder, x: H, window: Window, spatial: int) -> list[H | None]:
    """Return the maxima of windows, and their positions in the plane if these are used; padding always loses."""
    t = x.shape.element_type
    start = b.constant(lowest(t), t)
    if 1 not in b.used:
        return [b.add(Opcode.REDUCE_WINDOW, x, start, window=window, to_apply=b.function(Opcode.MAXIMUM, t)), None]
    pair = b.add(
        Opcode.REDUCE_WINDOW, x, _places(b, x.shape, spatial), start, b.constant(_NOWHERE, T.S64),
        window=window, to_apply=better(b, t, "GT"),
    )  # fmt: skip
    return [b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2)]


def _places(b: TorchBuilder, shape: Shape, spatial: int) -> H:
    """Return the positions of elements in their plane."""
    plane = shape.dimensions[-spatial:]
    flat = b.add(Opcode.IOTA, shape=Shape(T.S64, (math.prod(plane),)), iota_dimension=0)
    return b.broadcast(b.reshape(flat, plane), shape.dimensions)


@LOWERINGS.op("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    b: TorchBuilder, x: H, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> H:  # fmt: skip
    t = x.shape.element_type
    window = pool_window(x.shape, b.out.dimensions, kernel, stride, padding, 1)
    total = b.add(Opcode.REDUCE_WINDOW, x, b.constant(0, t), window=window, to_apply=b.function(Opcode.ADD, t))
    if divisor_override:
        return b.binary(Opcode.DIVIDE, total, divisor_override)
    counts = held_by_windows(x.shape, b.out.dimensions, window, padding, len(kernel), count_include_pad)
    return b.binary(Opcode.DIVIDE, total, counts if isinstance(counts, int) else b.constant(counts, t))


def held_by_windows(
    shape: Shape, out: Sequence[int], window: Window, padding: Any, spatial: int, count_include_pad: bool
) -> Any:
    """Return the number of elements per average: an array, or one number if all windows have as many."""
    first, rank = shape.rank - spatial, shape.rank
    pads = each(padding, spatial)
    counts = np.ones((1,) * rank, np.int64)
    for d in range(first, rank):
        w, n, pad = window.dims[d], shape.dimensions[d], pads[d - first]
        begin = np.arange(out[d]) * w.stride - pad
        end = np.minimum(begin + w.size, n + pad)
        held = end - begin if count_include_pad else np.minimum(end, n) - np.maximum(begin, 0)
        counts = counts * held.reshape([-1 if k == d else 1 for k in range(rank)])
    same = counts.size > 0 and bool((counts == counts.reshape(-1)[0]).all())
    return int(counts.reshape(-1)[0]) if same else counts


@LOWERINGS.op("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d")
def _adaptive(b: TorchBuilder, x: H, size: Sequence[int]) -> H:
    n = len(size)
    given = x.shape.dimensions[-n:]
    if all(s == 1 for s in size):
        return mean(b, x, list(range(x.shape.rank - n, x.shape.rank)))
    if all(s and g % s == 0 for g, s in zip(given, size, strict=True)):
        return _avg_pool(b, x, [g // s for g, s in zip(given, size, strict=True)])
    for d, (g, s) in enumerate(zip(given, size, strict=True), x.shape.rank - n):
        x = _averaged(b, x, d, g, s)
    return x


def _averaged(b: TorchBuilder, x: H, dim: int, given: int, wanted: int) -> H:
    """Average one dimension over its `wanted` overlapping parts."""
    return along(b, x, dim, weights_of_parts(given, wanted))


def weights_of_parts(given: int, wanted: int) -> NDArray[np.float64]:
    """Return the matrix [given, wanted] that averages over the overlapping parts of adaptive pooling."""
    parts = np.zeros((given, wanted))
    for k, part in enumerate(_parts(given, wanted)):
        parts[list(part), k] = 1 / len(part)
    return parts


@LOWERINGS.op("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(b: TorchBuilder, x: H, size: Sequence[int]) -> Any:
    """Return the maxima over overlapping parts of the plane, and their positions in it."""
    n, t = len(size), x.shape.element_type
    first, plane = x.shape.rank - n, x.shape.dimensions[-n:]
    if all(wanted and given and given % wanted == 0 for given, wanted in zip(plane, size, strict=True)):
        kernel = [given // wanted for given, wanted in zip(plane, size, strict=True)]
        window = pool_window(x.shape, [*x.shape.dimensions[:first], *size], kernel, None, 0, 1)
        return _maxima(b, x, window, n)
    places = _places(b, x.shape, n) if 1 in b.used else None
    for k, (given, wanted) in enumerate(zip(plane, size, strict=True)):
        parts = _parts(given, wanted)
        longest = max(len(p) for p in parts)
        # Shorter parts repeat their last element, which does not change the maximum.
        table = [[*p, *[p[-1]] * (longest - len(p))] for p in parts]
        x = take_at(b, x, table, first + 2 * k)
        places = None if places is None else take_at(b, places, table, first + 2 * k)
    over = tuple(first + 2 * k + 1 for k in range(n))
    if places is None:
        return [b.reduce(Opcode.MAXIMUM, x, over, lowest(t)), None]
    pair = b.add(
        Opcode.REDUCE, x, places, b.constant(lowest(t), t), b.constant(_NOWHERE, T.S64),
        dimensions=over, to_apply=better(b, t, "GT"),
    )  # fmt: skip
    return [b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2)]


def _parts(given: int, wanted: int) -> list[range]:
    """Return the overlapping parts of adaptive pooling along one dimension."""
    return [range(k * given // wanted, -(-(k + 1) * given // wanted)) for k in range(wanted)]
