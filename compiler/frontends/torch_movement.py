"""ATen ops that make, move, pick or join elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
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
    return parts[0] if len(parts) == 1 else b.add(Opcode.CONCATENATE, *parts, dimensions=(dim % b.out.rank,))


@LOWERINGS.op("stack")
def _stack(b: TorchBuilder, tensors: Sequence[H], dim: int = 0) -> H:
    at = dim % b.out.rank
    parts = [b.reshape(t, (*t.shape.dimensions[:at], 1, *t.shape.dimensions[at:])) for t in tensors]
    return parts[0] if len(parts) == 1 else b.add(Opcode.CONCATENATE, *parts, dimensions=(at,))


def piece(b: TorchBuilder, x: H, dim: int, start: int, stop: int, step: int = 1) -> H:
    """A slice along one dimension."""
    spec = [SliceDim(0, n) for n in x.shape.dimensions]
    spec[dim] = SliceDim(start, max(start, stop), step)
    return b.add(Opcode.SLICE, x, slice=tuple(spec))


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
        raise b.unsupported("roll over the flattened tensor")
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
    """Torch lists the last dimension first; negative edges crop."""
    config = [PadDim(0, 0)] * x.shape.rank
    for k in range(len(pads) // 2):
        config[x.shape.rank - 1 - k] = PadDim(pads[2 * k], pads[2 * k + 1])
    return b.add(Opcode.PAD, x, b.constant(value, x.shape.element_type), padding=tuple(config))


# ---- made from nothing


@LOWERINGS.op("full", "full_like", "new_full")
def _full(b: TorchBuilder, _like: Any, *rest: Any, **kwargs: Any) -> H:
    return b.full(kwargs.get("fill_value", rest[-1] if rest else 0), b.out)


@LOWERINGS.op("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided")
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
    """Row + shift compared with the column, over the last two dimensions."""
    s = Shape(T.S32, tuple(dims))
    rows = b.add(Opcode.IOTA, shape=s, iota_dimension=s.rank - 2)
    columns = b.add(Opcode.IOTA, shape=s, iota_dimension=s.rank - 1)
    return b.add(Opcode.COMPARE, b.add(Opcode.ADD, rows, b.full(shift, s)), columns, direction=direction)


@LOWERINGS.op("tril")
def _tril(b: TorchBuilder, x: H, diagonal: int = 0) -> H:
    return b.select(_diagonal(b, x.shape.dimensions, diagonal, "GE"), x, 0)


@LOWERINGS.op("triu")
def _triu(b: TorchBuilder, x: H, diagonal: int = 0) -> H:
    return b.select(_diagonal(b, x.shape.dimensions, diagonal, "LE"), x, 0)


# ---- by index


def _wrapped(b: TorchBuilder, index: H, n: int) -> H:
    """Negative indices count from the end."""
    if not index.shape.element_type.is_signed:
        return index
    below = b.compare(index, 0, "LT")
    return b.select(below, b.binary(Opcode.ADD, index, n, index.shape.element_type), index, index.shape.element_type)


def take(b: TorchBuilder, x: H, index: H, dim: int) -> H:
    """Slices of `x` along one dimension, in the order of `index`, whose dimensions take that one's place."""
    sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape.dimensions))
    k = index.shape.rank
    return b.add(
        Opcode.GATHER, x, _wrapped(b, index, x.shape.dimensions[dim]),
        offset_dims=tuple(d if d < dim else d + k - 1 for d in range(x.shape.rank) if d != dim),
        collapsed_slice_dims=(dim,), start_index_map=(dim,), index_vector_dim=k, slice_sizes=sizes,
    )  # fmt: skip


@LOWERINGS.op("embedding")
def _embedding(b: TorchBuilder, weight: H, index: H, *_: Any, **__: Any) -> H:
    return take(b, weight, index, 0)


@LOWERINGS.op("index_select")
def _index_select(b: TorchBuilder, x: H, dim: int, index: H) -> H:
    return take(b, x, index, dim % x.shape.rank)


@LOWERINGS.op("index", "_unsafe_index")
def _index(b: TorchBuilder, x: H, indices: Sequence[H | None]) -> H:
    """Advanced indexing by integer tensors that stand next to each other."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    dims = [d for d, _ in given]
    if any(i.shape.element_type is T.PRED for _, i in given):
        raise b.unsupported("indexing by a mask, whose result has no fixed size,")
    if dims != list(range(dims[0], dims[0] + len(dims))):
        raise b.unsupported("indexing by tensors that are not next to each other")
    if len(given) == 1:
        return take(b, x, given[0][1], dims[0])
    common = np.broadcast_shapes(*(i.shape.dimensions for _, i in given))
    columns = []
    for d, i in given:
        wide = b.broadcast(b.convert(_wrapped(b, i, x.shape.dimensions[d]), T.S64), common)
        columns.append(b.reshape(wide, (*common, 1)))
    vectors = b.add(Opcode.CONCATENATE, *columns, dimensions=(len(common),))
    sizes = tuple(1 if d in dims else n for d, n in enumerate(x.shape.dimensions))
    shift = len(common) - len(dims)
    return b.add(
        Opcode.GATHER, x, vectors,
        offset_dims=tuple(d if d < dims[0] else d + shift for d in range(x.shape.rank) if d not in dims),
        collapsed_slice_dims=tuple(dims), start_index_map=tuple(dims), index_vector_dim=len(common), slice_sizes=sizes,
    )  # fmt: skip


def _positions(b: TorchBuilder, index: H, dim: int, n: int) -> H:
    """For each element of `index` its whole position, the index itself along `dim`: [..., rank]."""
    shape = Shape(T.S64, index.shape.dimensions)
    columns = []
    for d in range(shape.rank):
        own = b.convert(_wrapped(b, index, n), T.S64) if d == dim else b.add(Opcode.IOTA, shape=shape, iota_dimension=d)
        columns.append(b.reshape(own, (*shape.dimensions, 1)))
    return columns[0] if len(columns) == 1 else b.add(Opcode.CONCATENATE, *columns, dimensions=(shape.rank,))


@LOWERINGS.op("gather")
def _gather(b: TorchBuilder, x: H, dim: int, index: H, sparse_grad: bool = False) -> H:
    rank = x.shape.rank
    every = tuple(range(rank))
    at = dim % rank
    return b.add(
        Opcode.GATHER, x, _positions(b, index, at, x.shape.dimensions[at]),
        offset_dims=(), collapsed_slice_dims=every, start_index_map=every, index_vector_dim=rank,
        slice_sizes=(1,) * rank,
    )  # fmt: skip


_COMBINE = {"scatter": None, "scatter_add": Opcode.ADD}
_REDUCE = {"sum": Opcode.ADD, "add": Opcode.ADD, "prod": Opcode.MULTIPLY, "multiply": Opcode.MULTIPLY,
           "amax": Opcode.MAXIMUM, "amin": Opcode.MINIMUM}  # fmt: skip


@LOWERINGS.op("scatter", "scatter_add", "scatter_reduce")
def _scatter(
    b: TorchBuilder, x: H, dim: int, index: H, source: Any = None, reduce: str | None = None, **more: Any
) -> H:
    if not more.get("include_self", True):
        raise b.unsupported("scatter_reduce without the tensor's own values")
    rank, t = x.shape.rank, x.shape.element_type
    at = dim % rank
    name = b.what.removeprefix("aten.").partition(".")[0]
    opcode = _REDUCE.get(reduce or "") or _COMBINE.get(name)
    source = more.get("value", more.get("src", source))
    updates = b.operand(source, t, index.shape.dimensions) if not isinstance(source, H) else _top_left(b, source, index)
    return b.add(
        Opcode.SCATTER, x, _positions(b, index, at, x.shape.dimensions[at]), updates,
        to_apply=_replacing(b, t) if opcode is None else b.function(opcode, t),
        update_window_dims=(), inserted_window_dims=tuple(range(rank)), scatter_dims_to_operand_dims=tuple(range(rank)),
        index_vector_dim=rank,
    )  # fmt: skip


def _top_left(b: TorchBuilder, source: H, index: H) -> H:
    """Of a larger source only as much as there are indices."""
    if source.shape.dimensions == index.shape.dimensions:
        return source
    return b.add(Opcode.SLICE, source, slice=tuple(SliceDim(0, n) for n in index.shape.dimensions))


def _replacing(b: TorchBuilder, t: Any) -> Any:
    from compiler.ir import HloComputation

    f = HloComputation(f"second_{t.text}")
    f.add_parameter(0, Shape(t))
    f.root = f.add_parameter(1, Shape(t))
    return b.module.add(f)


@LOWERINGS.op("slice_scatter")
def _slice_scatter(
    b: TorchBuilder, x: H, source: H, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> H:
    if step != 1:
        raise b.unsupported(f"a step of {step}")
    at = dim % x.shape.rank
    low, _ = _bounds(x.shape.dimensions[at], start, end)
    starts = [b.constant(low if d == at else 0, T.S32) for d in range(x.shape.rank)]
    return b.add(Opcode.DYNAMIC_UPDATE_SLICE, x, b.convert(source, x.shape.element_type), *starts)


@LOWERINGS.op("select_scatter")
def _select_scatter(b: TorchBuilder, x: H, source: H, dim: int, index: int) -> H:
    at = dim % x.shape.rank
    wide = b.reshape(source, [1 if d == at else n for d, n in enumerate(x.shape.dimensions)])
    return _slice_scatter(b, x, wide, at, index % x.shape.dimensions[at], None)


@LOWERINGS.op("copy")
def _copy(b: TorchBuilder, x: H, source: H, *_: Any) -> H:
    return b.operand(source, x.shape.element_type, x.shape.dimensions)


@LOWERINGS.op("upsample_nearest2d")
def _nearest(b: TorchBuilder, x: H, *_: Any, **__: Any) -> H:
    """Each output pixel takes the input pixel it falls into."""
    for dim in (2, 3):
        n, m = x.shape.dimensions[dim], b.out.dimensions[dim]
        x = take(b, x, b.constant(np.floor(np.arange(m) * (n / m)).astype(np.int64), T.S64), dim)
    return x
