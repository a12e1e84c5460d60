"""Lowerings of ATen ops that read or write by index tensors and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, count, highest, lowest
from compiler.frontends.torch_pointwise import divide_rounding_down
from compiler.ir import HloComputation, HloInstruction, Opcode, Shape
from compiler.ir.attributes import SliceDim, Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction


def wrap_negative(b: TorchBuilder, index: H, n: int) -> H:
    """Map negative indices, which count from the end, to non-negative ones."""
    if not index.shape.element_type.is_signed:
        return index
    below = b.compare(index, 0, "LT")
    return b.select(below, b.binary(Opcode.ADD, index, n, index.shape.element_type), index, index.shape.element_type)


def take(b: TorchBuilder, x: H, index: H, dim: int) -> H:
    """Return slices of `x` along `dim` in the order of `index`, whose dimensions replace `dim`."""
    sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape.dimensions))
    k = index.shape.rank
    if 0 in index.shape.dimensions:  # `x` may be empty
        return b.full(0, Shape(x.shape.element_type, (*sizes[:dim], *index.shape.dimensions, *sizes[dim + 1 :])))
    return b.add(
        Opcode.GATHER, x, wrap_negative(b, index, x.shape.dimensions[dim]),
        offset_dims=tuple(d if d < dim else d + k - 1 for d in range(x.shape.rank) if d != dim),
        collapsed_slice_dims=(dim,), start_index_map=(dim,), index_vector_dim=k, slice_sizes=sizes,
    )  # fmt: skip


def take_at(b: TorchBuilder, x: H, places: Any, dim: int) -> H:
    """Return `take` for constant positions (an array of integers)."""
    return take(b, x, b.constant(np.asarray(places, np.int64), T.S64), dim)


@LOWERINGS.op("index_select")
def _index_select(b: TorchBuilder, x: H, dim: int, index: H) -> H:
    return take(b, x, index, dim % x.shape.rank)


@LOWERINGS.op("take")
def _take_flat(b: TorchBuilder, x: H, index: H) -> H:
    return take(b, b.reshape(x, (count(x.shape, range(x.shape.rank)),)), index, 0)


# ---- several index tensors


def _prepare_indexing(b: TorchBuilder, x: H, indices: Sequence[H | None]) -> tuple[list[int], H, H, int]:
    """Prepare advanced indexing.

    Returns:
        The indexed dimensions; `x` with those first; the index vectors [common..., k]; and the position of the common
        dimensions in the result: that of the indexed dimensions if those are adjacent, else 0.
    """
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    dims = [d for d, _ in given]
    if any(i.shape.element_type is T.PRED for _, i in given):
        raise b.unsupported("indexing by a mask, whose result has as many elements as the mask has true values,")
    common = np.broadcast_shapes(*(i.shape.dimensions for _, i in given))
    columns = []
    for d, i in given:
        wide = b.broadcast(b.convert(wrap_negative(b, i, x.shape.dimensions[d]), T.S64), common)
        columns.append(b.reshape(wide, (*common, 1)))
    vectors = columns[0] if len(columns) == 1 else b.add(Opcode.CONCATENATE, *columns, dimensions=(len(common),))
    order = [*dims, *(d for d in range(x.shape.rank) if d not in dims)]
    neighbours = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, b.transpose(x, order), vectors, dims[0] if neighbours else 0


@LOWERINGS.op("index", "_unsafe_index")
def _index(b: TorchBuilder, x: H, indices: Sequence[H | None]) -> H:
    """Lower advanced indexing by integer tensors."""
    given = [d for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and indices[given[0]].shape.element_type is not T.PRED:  # type: ignore[union-attr]
        return take(b, x, indices[given[0]], given[0])  # type: ignore[arg-type]
    dims, front, vectors, place = _prepare_indexing(b, x, indices)
    k, common = len(dims), vectors.shape.rank - 1
    rest = front.shape.dimensions[k:]
    if 0 in vectors.shape.dimensions:
        return b.full(0, b.out)
    found = b.add(
        Opcode.GATHER, front, vectors, offset_dims=tuple(range(common, common + len(rest))),
        collapsed_slice_dims=tuple(range(k)), start_index_map=tuple(range(k)), index_vector_dim=common,
        slice_sizes=(*(1,) * k, *rest),
    )  # fmt: skip
    return b.transpose(found, _moved(common, found.shape.rank, place))


def _moved(common: int, rank: int, place: int) -> list[int]:
    """Return the permutation that moves the first `common` dimensions to `place`."""
    rest = list(range(common, rank))
    return [*rest[:place], *range(common), *rest[place:]]


@LOWERINGS.op("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(b: TorchBuilder, x: H, indices: Sequence[H | None], values: H, accumulate: bool = False, *_: Any) -> H:
    masks = [i for i in indices if i is not None and i.shape.element_type is T.PRED]
    if masks:
        return _masked_put(b, x, indices, values, accumulate)
    t = x.shape.element_type
    dims, front, vectors, place = _prepare_indexing(b, x, indices)
    k, common = len(dims), vectors.shape.rank - 1
    rank = common + front.shape.rank - k
    order = _moved(common, rank, place)
    sizes = (*vectors.shape.dimensions[:-1], *front.shape.dimensions[k:])
    updates = b.broadcast(b.convert(values, t), [sizes[d] for d in order])
    updates = b.transpose(updates, [order.index(d) for d in range(rank)])
    written = b.add(
        Opcode.SCATTER, front, vectors, updates,
        to_apply=b.function(Opcode.ADD, t) if accumulate else replacing(b, t),
        update_window_dims=tuple(range(common, rank)), inserted_window_dims=tuple(range(k)),
        scatter_dims_to_operand_dims=tuple(range(k)), index_vector_dim=common,
    )  # fmt: skip
    there = [*dims, *(d for d in range(x.shape.rank) if d not in dims)]
    return b.transpose(written, [there.index(d) for d in range(x.shape.rank)])


def _masked_put(b: TorchBuilder, x: H, indices: Sequence[H | None], values: H, accumulate: bool) -> H:
    """Write where a mask is true, if the values do not depend on the number of true values."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) > 1:
        raise b.unsupported("a mask in combination with other indices")
    at, mask = given[0]
    after = x.shape.rank - at - mask.shape.rank
    extra = values.shape.rank - after
    if extra > 1 or (extra == 1 and values.shape.dimensions[0] != 1):
        raise b.unsupported("writing a tensor with one value per true value of a mask (use masked_scatter)")
    if extra == 1:
        values = b.reshape(values, values.shape.dimensions[1:])
    t = x.shape.element_type
    wide = b.broadcast(b.reshape(mask, (*mask.shape.dimensions, *(1,) * after)), x.shape.dimensions)
    return b.select(wide, b.binary(Opcode.ADD, x, values, t) if accumulate else values, x, t)


@LOWERINGS.op("masked_scatter")
def _masked_scatter(b: TorchBuilder, x: H, mask: H, source: H) -> H:
    """Write the n-th element of the source where the mask is true for the n-th time."""
    n = count(b.out, range(b.out.rank))
    flat = b.reshape(b.broadcast(mask, b.out.dimensions), (n,))
    before = cumulative(b, b.convert(flat, T.S64), 0, Opcode.ADD, 0)
    index = b.binary(Opcode.SUBTRACT, before, 1, T.S64)
    found = _take_flat(b, source, b.binary(Opcode.MAXIMUM, index, 0, T.S64))
    return b.select(b.reshape(flat, b.out.dimensions), b.reshape(found, b.out.dimensions), x)


def cumulative(b: TorchBuilder, x: H, dim: int, opcode: Opcode, start: Any) -> H:
    """Combine cumulatively along one dimension, with a window that reaches back to the beginning."""
    t = x.shape.element_type
    return b.add(
        Opcode.REDUCE_WINDOW, x, b.constant(start, t), window=reaching_back(x.shape, dim),
        to_apply=b.function(opcode, t),
    )  # fmt: skip


def reaching_back(shape: Shape, dim: int) -> Window:
    """Return the window of all elements up to the current one along a dimension."""
    return Window(
        tuple(
            WindowDim(max(n, 1), 1, max(n - 1, 0), 0) if d == dim else WindowDim(1)
            for d, n in enumerate(shape.dimensions)
        )
    )


@LOWERINGS.op("nonzero", "masked_select", "nonzero_numpy", "unique", "_unique2", "unique_consecutive", "bincount")
def _data_dependent(b: TorchBuilder, *_: Any, **__: Any) -> H:
    raise b.unsupported("a result whose size depends on the data")


@LOWERINGS.op("_local_scalar_dense", "item")
def _python_number(b: TorchBuilder, *_: Any, **__: Any) -> H:
    raise b.unsupported("a Python number made of a tensor's value (.item(), float(), int()), instead of the tensor,")


# ---- gather and scatter along one dimension


def _positions(b: TorchBuilder, index: H, dim: int, n: int) -> H:
    """Return the full position of each element of `index`, with the index itself along `dim`: [..., rank]."""
    shape = Shape(T.S64, index.shape.dimensions)
    columns = []
    for d in range(shape.rank):
        own = (
            b.convert(wrap_negative(b, index, n), T.S64)
            if d == dim
            else b.add(Opcode.IOTA, shape=shape, iota_dimension=d)
        )
        columns.append(b.reshape(own, (*shape.dimensions, 1)))
    return columns[0] if len(columns) == 1 else b.add(Opcode.CONCATENATE, *columns, dimensions=(shape.rank,))


@LOWERINGS.op("gather")
def gather(b: TorchBuilder, x: H, dim: int, index: H, sparse_grad: bool = False) -> H:
    """Return for each element of `index` the element of `x` at its position, with the index along `dim`."""
    rank = x.shape.rank
    if 0 in index.shape.dimensions:
        return b.full(0, Shape(x.shape.element_type, index.shape.dimensions))
    every = tuple(range(rank))
    at = dim % rank
    return b.add(
        Opcode.GATHER, x, _positions(b, index, at, x.shape.dimensions[at]),
        offset_dims=(), collapsed_slice_dims=every, start_index_map=every, index_vector_dim=rank,
        slice_sizes=(1,) * rank,
    )  # fmt: skip


@LOWERINGS.op("index_reduce")
def _index_reduce(b: TorchBuilder, x: H, dim: int, index: H, source: H, reduce: str, *, include_self: bool = True) -> H:
    at = dim % max(x.shape.rank, 1)
    line = [index.shape.num_elements if d == at else 1 for d in range(source.shape.rank)]
    wide = b.broadcast(b.reshape(index, line), source.shape.dimensions)
    return _scatter(b, x, dim, wide, source, reduce, include_self=include_self)


_REDUCE = {"sum": Opcode.ADD, "add": Opcode.ADD, "prod": Opcode.MULTIPLY, "multiply": Opcode.MULTIPLY,
           "amax": Opcode.MAXIMUM, "amin": Opcode.MINIMUM, "mean": Opcode.ADD}  # fmt: skip


@LOWERINGS.op("scatter", "scatter_add", "scatter_reduce")
def _scatter(
    b: TorchBuilder, x: H, dim: int, index: H, source: Any = None, reduce: str | None = None, **more: Any
) -> H:
    t, at = x.shape.element_type, dim % max(x.shape.rank, 1)
    name = b.what.removeprefix("aten.").partition(".")[0]
    opcode = Opcode.ADD if name == "scatter_add" else _REDUCE.get(reduce or "")
    source = more.get("value", more.get("src", source))
    updates = b.operand(source, t, index.shape.dimensions) if not isinstance(source, H) else _top_left(b, source, index)
    if not more.get("include_self", True):
        neutral = b.full(_neutral(opcode, t), Shape(t, index.shape.dimensions))
        x = _scattered(b, x, at, index, neutral, None)
    result = _scattered(b, x, at, index, updates, opcode)
    if reduce != "mean":
        return result
    first = 1 if more.get("include_self", True) else 0
    hits = _scattered(b, b.full(first, x.shape), at, index, b.full(1, updates.shape), Opcode.ADD)
    hits = b.binary(Opcode.MAXIMUM, hits, 1, t)
    return divide_rounding_down(b, result, hits) if t.is_integer else b.binary(Opcode.DIVIDE, result, hits, t)


def _neutral(opcode: Opcode | None, t: Any) -> Any:
    starts = {Opcode.MULTIPLY: 1, Opcode.MAXIMUM: lowest(t), Opcode.MINIMUM: highest(t)}
    return starts.get(opcode, 0) if opcode is not None else 0


def _scattered(b: TorchBuilder, x: H, at: int, index: H, updates: H, opcode: Opcode | None) -> H:
    rank, t = x.shape.rank, x.shape.element_type
    return b.add(
        Opcode.SCATTER, x, _positions(b, index, at, x.shape.dimensions[at]), updates,
        to_apply=replacing(b, t) if opcode is None else b.function(opcode, t),
        update_window_dims=(), inserted_window_dims=tuple(range(rank)), scatter_dims_to_operand_dims=tuple(range(rank)),
        index_vector_dim=rank,
    )  # fmt: skip


def _top_left(b: TorchBuilder, source: H, index: H) -> H:
    """Slice `source` to the sizes of `index`."""
    if source.shape.dimensions == index.shape.dimensions:
        return source
    return b.add(Opcode.SLICE, source, slice=tuple(SliceDim(0, n) for n in index.shape.dimensions))


def replacing(b: TorchBuilder, t: Any) -> HloComputation:
    """Return the scalar computation that returns its second parameter."""

    def make() -> HloComputation:
        f = HloComputation(f"second_{t.text}")
        f.add_parameter(0, Shape(t))
        f.root = f.add_parameter(1, Shape(t))
        return f

    return b.once(("second", t), make)


# ---- diagonals, windows, search


@LOWERINGS.op("diagonal")
def _diagonal(b: TorchBuilder, x: H, offset: int = 0, dim1: int = 0, dim2: int = 1) -> H:
    """Extract a diagonal, which becomes the last dimension."""
    first, second = dim1 % x.shape.rank, dim2 % x.shape.rank
    n = b.out.dimensions[-1]
    rest = [d for d in range(x.shape.rank) if d not in (first, second)]
    front = b.transpose(x, [first, second, *rest])
    numbers = np.arange(n)
    places = [b.constant(numbers + max(0, -offset), T.S64), b.constant(numbers + max(0, offset), T.S64)]
    found = _index(b, front, places)
    return b.transpose(found, [*range(1, found.shape.rank), 0])


@LOWERINGS.op("diagonal_scatter")
def _diagonal_scatter(b: TorchBuilder, x: H, source: H, offset: int = 0, dim1: int = 0, dim2: int = 1) -> H:
    """Overwrite a diagonal of `x`; the last dimension of the source runs along it."""
    rank = x.shape.rank
    order = [*(d for d in range(rank) if d not in (dim1 % rank, dim2 % rank)), dim1 % rank, dim2 % rank]
    front = b.transpose(x, order)
    n, m = front.shape.dimensions[-2:]
    row = np.clip(np.arange(n) - max(0, -offset), 0, max(source.shape.dimensions[-1] - 1, 0))
    spread = take_at(b, source, row, rank - 2)
    wide = b.broadcast(b.reshape(spread, (*spread.shape.dimensions, 1)), (*spread.shape.dimensions, m))
    hit = b.constant(np.eye(n, m, offset, dtype=np.bool_), T.PRED)
    written = b.select(hit, b.convert(wide, x.shape.element_type), front, x.shape.element_type)
    return b.transpose(written, [order.index(d) for d in range(rank)])


@LOWERINGS.op("unfold")
def _unfold(b: TorchBuilder, x: H, dim: int, size: int, step: int) -> H:
    """Return windows along a dimension, whose elements become the last dimension."""
    if x.shape.rank == 0:
        return b.reshape(x, b.out.dimensions)
    at = dim % x.shape.rank
    windows = (x.shape.dimensions[at] - size) // step + 1
    found = take_at(b, x, np.arange(windows)[:, None] * step + np.arange(size), at)
    return b.transpose(found, [d for d in range(found.shape.rank) if d != at + 1] + [at + 1])


@LOWERINGS.op("as_strided")
def _as_strided(b: TorchBuilder, x: H, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> H:
    """Return elements by strides from a contiguous tensor."""
    places = _strided_places(b, size, stride, offset)
    return take_at(b, b.reshape(x, (count(x.shape, range(x.shape.rank)),)), places, 0)


@LOWERINGS.op("as_strided_scatter")
def _as_strided_scatter(
    b: TorchBuilder, x: H, source: H, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> H:
    """Overwrite elements of `x` given by strides."""
    places, n = _strided_places(b, size, stride, offset).reshape(-1), x.shape.num_elements
    origin = np.full(n, -1)
    origin[places] = np.arange(places.size)
    found = take_at(b, b.reshape(source, (places.size,)), np.maximum(origin, 0), 0)
    written = b.select(b.constant(origin >= 0, T.PRED), found, b.reshape(x, (n,)), x.shape.element_type)
    return b.reshape(written, x.shape.dimensions)


def _strided_places(
    b: TorchBuilder, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> NDArray[np.int64]:
    if not b.node.args[0].meta["val"].is_contiguous():
        raise b.unsupported("a strided view of a tensor that is not contiguous")
    places = np.asarray(offset or 0)
    for n, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n) * step
    return places


@LOWERINGS.op("searchsorted", "bucketize")
def _search(b: TorchBuilder, first: Any, second: Any, out_int32: bool = False, right: bool = False, **more: Any) -> H:
    """Return how many of the sorted numbers are less than each value (or equal, with `right`)."""
    sorted_, values = (first, second) if b.what.startswith("aten.searchsorted") else (second, first)
    right = right or more.get("side") == "right"
    if more.get("sorter") is not None:
        sorted_ = gather(b, sorted_, -1, more["sorter"])
    if not isinstance(values, H):
        values = b.constant(values, sorted_.shape.element_type)
    n = sorted_.shape.dimensions[-1]
    batch = sorted_.shape.dimensions[:-1]
    wide = (*values.shape.dimensions, n)
    lines = b.reshape(sorted_, (*batch, *(1,) * (len(wide) - 1 - len(batch)), n))
    below = b.compare(b.broadcast(lines, wide), b.broadcast(b.reshape(values, (*values.shape.dimensions, 1)), wide),
                      "LE" if right else "LT")  # fmt: skip
    return b.reduce(Opcode.ADD, b.convert(below, b.out.element_type), (len(wide) - 1,), 0)
