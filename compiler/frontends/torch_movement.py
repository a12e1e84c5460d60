"""Lowerings of ATen ops that create, move, select or join elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, count
from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import PadDim, SliceDim

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "unflatten")
def _view(b: TorchBuilder, x: H, *_: Any, **__: Any) -> H:
    return b.reshape(x, b.out.dimensions)


@LOWERINGS.op("unsqueeze", "squeeze", "squeeze_")
def _resized(b: TorchBuilder, x: H, *_: Any) -> H:
    return b.reshape(x, b.out.dimensions)


@LOWERINGS.op("permute")
def _permute(b: TorchBuilder, x: H, dims: Sequence[int]) -> H:
    return b.transpose(x, [d % x.shape.rank for d in dims])


@LOWERINGS.op("transpose")
def _transpose(b: TorchBuilder, x: H, first: int, second: int) -> H:
    order = list(range(x.shape.rank))
    i, j = first % x.shape.rank, second % x.shape.rank
    order[i], order[j] = order[j], order[i]
    return b.transpose(x, order)


@LOWERINGS.op("t")
def _t(b: TorchBuilder, x: H) -> H:
    return b.transpose(x, list(range(x.shape.rank))[::-1])


@LOWERINGS.op("expand", "expand_as", "broadcast_to")
def _expand(b: TorchBuilder, x: H, *_: Any, **__: Any) -> H:
    return b.broadcast(x, b.out.dimensions)


@LOWERINGS.op("repeat")
def _repeat(b: TorchBuilder, x: H, times: Sequence[int]) -> H:
    sizes = (1,) * (len(times) - x.shape.rank) + x.shape.dimensions
    wide = [n for pair in zip(times, sizes, strict=True) for n in pair]
    spread = [n for size in sizes for n in (1, size)]
    return b.reshape(b.broadcast(b.reshape(x, spread), wide), b.out.dimensions)


@LOWERINGS.op("cat", "concatenate")
def _cat(b: TorchBuilder, tensors: Sequence[H], dim: int = 0) -> H:
    parts = [b.convert(t, b.out.element_type) for t in tensors if t.shape.dimensions != (0,)]
    if not parts:
        return b.full(0, b.out.without_layout())
    return parts[0] if len(parts) == 1 else b.add(Opcode.CONCATENATE, *parts, dimensions=(dim % b.out.rank,))


@LOWERINGS.op("stack")
def _stack(b: TorchBuilder, tensors: Sequence[H], dim: int = 0) -> H:
    at = dim % b.out.rank
    parts = [b.reshape(t, (*t.shape.dimensions[:at], 1, *t.shape.dimensions[at:])) for t in tensors]
    return parts[0] if len(parts) == 1 else b.add(Opcode.CONCATENATE, *parts, dimensions=(at,))


def piece(b: TorchBuilder, x: H, dim: int, start: int, stop: int, step: int = 1) -> H:
    """Return a slice along one dimension."""
    spec = [SliceDim(0, n) for n in x.shape.dimensions]
    spec[dim] = SliceDim(start, max(start, stop), step)
    return b.add(Opcode.SLICE, x, slice=tuple(spec))


def zeros_around(b: TorchBuilder, x: H, dim: int, low: int, high: int) -> H:
    """Return an array with zeros before and after it along one dimension."""
    config = [PadDim(0, 0)] * x.shape.rank
    config[dim] = PadDim(low, high)
    return b.add(Opcode.PAD, x, b.constant(0, x.shape.element_type), padding=tuple(config))


def _bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    low, high, _ = slice(start, None if end is None else min(end, n)).indices(n)
    return low, max(low, high)


@LOWERINGS.op("slice")
def _slice(b: TorchBuilder, x: H, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> H:
    at = dim % x.shape.rank
    low, high = _bounds(x.shape.dimensions[at], start, end)
    return piece(b, x, at, low, high, step)


@LOWERINGS.op("select")
def _select(b: TorchBuilder, x: H, dim: int, index: int) -> H:
    at = dim % x.shape.rank
    i = index % x.shape.dimensions[at]
    return b.reshape(piece(b, x, at, i, i + 1), b.out.dimensions)


@LOWERINGS.op("split", "split_with_sizes", "chunk")
def _split(b: TorchBuilder, x: H, _sizes: Any, dim: int = 0) -> list[H]:
    at, start, parts = dim % x.shape.rank, 0, []
    for result in b.result:
        n = int(result.shape[at])
        parts.append(piece(b, x, at, start, start + n))
        start += n
    return parts


@LOWERINGS.op("unbind")
def _unbind(b: TorchBuilder, x: H, dim: int = 0) -> list[H]:
    at = dim % x.shape.rank
    rest = x.shape.dimensions[:at] + x.shape.dimensions[at + 1 :]
    return [b.reshape(piece(b, x, at, i, i + 1), rest) for i in range(x.shape.dimensions[at])]


@LOWERINGS.op("flip")
def _flip(b: TorchBuilder, x: H, dims: Sequence[int]) -> H:
    return b.add(Opcode.REVERSE, x, dimensions=tuple(d % x.shape.rank for d in dims))


@LOWERINGS.op("roll")
def _roll(b: TorchBuilder, x: H, shifts: Sequence[int], dims: Sequence[int] = ()) -> H:
    if not dims:
        flat = b.reshape(x, (count(x.shape, range(x.shape.rank)),))
        return b.reshape(_roll(b, flat, shifts, (0,)), x.shape.dimensions)
    for shift, dim in zip(shifts, dims, strict=True):
        at = dim % x.shape.rank
        n = x.shape.dimensions[at]
        if n and shift % n:
            cut = n - shift % n
            parts = piece(b, x, at, cut, n), piece(b, x, at, 0, cut)
            x = b.add(Opcode.CONCATENATE, *parts, dimensions=(at,))
    return x


@LOWERINGS.op("constant_pad_nd", "pad")
def _pad(b: TorchBuilder, x: H, pads: Sequence[int], value: Any = 0) -> H:
    """Pad; torch lists the last dimension first, and negative padding crops."""
    config = [PadDim(0, 0)] * x.shape.rank
    for k in range(len(pads) // 2):
        config[x.shape.rank - 1 - k] = PadDim(pads[2 * k], pads[2 * k + 1])
    return b.add(Opcode.PAD, x, b.constant(value, x.shape.element_type), padding=tuple(config))


# ---- creation


@LOWERINGS.op("full", "full_like", "new_full")
def _full(b: TorchBuilder, _like: Any, *rest: Any, **kwargs: Any) -> H:
    return b.full(kwargs.get("fill_value", rest[-1] if rest else 0), b.out)


@LOWERINGS.op(
    "zeros", "zeros_like", "new_zeros", "_new_zeros_with_same_feature_meta", "empty", "empty_like", "new_empty",
    "empty_strided", "empty_permuted", "new_empty_strided", "_efficientzerotensor",
)  # fmt: skip
def _zeros(b: TorchBuilder, *_: Any, **__: Any) -> H:
    return b.full(0, b.out)


@LOWERINGS.op("ones", "ones_like", "new_ones")
def _ones(b: TorchBuilder, *_: Any, **__: Any) -> H:
    return b.full(1, b.out)


@LOWERINGS.op("scalar_tensor")
def _scalar(b: TorchBuilder, value: Any, **_: Any) -> H:
    return b.full(value, b.out)


@LOWERINGS.op("fill")
def _fill(b: TorchBuilder, _x: H, value: Any) -> H:
    return b.operand(value, b.out.element_type, b.out.dimensions)


@LOWERINGS.op("arange")
def _arange(b: TorchBuilder, *args: Any, **_: Any) -> H:
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    t = b.out.element_type
    counted = b.add(Opcode.IOTA, shape=b.out, iota_dimension=0)
    scaled = counted if step == 1 else b.binary(Opcode.MULTIPLY, counted, step, t)
    return scaled if start == 0 else b.binary(Opcode.ADD, scaled, start, t)


@LOWERINGS.op("eye")
def _eye(b: TorchBuilder, *_: Any, **__: Any) -> H:
    return b.convert(_diagonal(b, b.out.dimensions, 0, "EQ"), b.out.element_type)


def _diagonal(b: TorchBuilder, dims: Sequence[int], shift: int, direction: str) -> H:
    """Compare row + shift with the column over the last two dimensions."""
    s = Shape(T.S32, tuple(dims))
    rows = b.add(Opcode.IOTA, shape=s, iota_dimension=s.rank - 2)
    columns = b.add(Opcode.IOTA, shape=s, iota_dimension=s.rank - 1)
    return b.add(Opcode.COMPARE, b.add(Opcode.ADD, rows, b.full(shift, s)), columns, direction=direction)


@LOWERINGS.op("tril")
def _tril(b: TorchBuilder, x: H, diagonal: int = 0) -> H:
    return triangle(b, x, diagonal, lower=True)


@LOWERINGS.op("triu")
def _triu(b: TorchBuilder, x: H, diagonal: int = 0) -> H:
    return triangle(b, x, diagonal, lower=False)


def triangle(b: TorchBuilder, x: H, diagonal: int, lower: bool) -> H:
    """Return the part of matrices below (or above) a diagonal, with zeros elsewhere."""
    return b.select(_diagonal(b, x.shape.dimensions, diagonal, "GE" if lower else "LE"), x, 0, x.shape.element_type)


@LOWERINGS.op("slice_scatter")
def _slice_scatter(
    b: TorchBuilder, x: H, source: H, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> H:
    at = dim % x.shape.rank
    low, high = _bounds(x.shape.dimensions[at], start, end)
    source = b.broadcast(
        source, [len(range(low, high, step)) if d == at else n for d, n in enumerate(x.shape.dimensions)]
    )
    if step != 1:
        return _strided_scatter(b, x, source, at, range(low, high, step))
    starts = [b.constant(low if d == at else 0, T.S32) for d in range(x.shape.rank)]
    return b.add(Opcode.DYNAMIC_UPDATE_SLICE, x, b.convert(source, x.shape.element_type), *starts)


def _strided_scatter(b: TorchBuilder, x: H, source: H, dim: int, places: range) -> H:
    """Write the source to `places` of one dimension of `x`."""
    n, t = x.shape.dimensions[dim], x.shape.element_type
    if not places:
        return x
    config = [PadDim(0, 0)] * x.shape.rank
    config[dim] = PadDim(places[0], n - 1 - places[-1], places.step - 1)
    spread = b.add(Opcode.PAD, b.convert(source, t), b.constant(0, t), padding=tuple(config))
    hit = np.zeros([n if d == dim else 1 for d in range(x.shape.rank)], np.bool_)
    hit.reshape(-1)[list(places)] = True
    return b.select(b.constant(hit, T.PRED), spread, x)


@LOWERINGS.op("select_scatter")
def _select_scatter(b: TorchBuilder, x: H, source: H, dim: int, index: int) -> H:
    at = dim % x.shape.rank
    wide = b.reshape(source, [1 if d == at else n for d, n in enumerate(x.shape.dimensions)])
    place = index % x.shape.dimensions[at]
    return _slice_scatter(b, x, wide, at, place, place + 1)


@LOWERINGS.op("copy")
def _copy(b: TorchBuilder, x: H, source: H, *_: Any) -> H:
    return b.operand(source, x.shape.element_type, x.shape.dimensions)
