"""Shape rules: from operand shapes and attributes to the result shape, one small function a kind of op.

A rule returns the inferred shape or raises ShapeError saying what was expected. Ops whose result does not follow
from their operands (reshape, iota, custom-call...) check the declared shape and return it.
Source of the rules: XLA's `xla/service/shape_inference.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compiler.errors import ShapeError
from compiler.ir.attributes import ConvDimLabels, PadDim, SliceDim, Window
from compiler.ir.shape import TOKEN_SHAPE, Shape, array_shape, tuple_shape
from compiler.ir.types import PrimitiveType as T


class Signature(Protocol):
    """What a rule may ask of a called computation."""

    @property
    def name(self) -> str: ...
    @property
    def parameter_shapes(self) -> tuple[Shape, ...]: ...
    @property
    def result_shape(self) -> Shape: ...


@dataclass(frozen=True, slots=True)
class ShapeQuery:
    """Everything a shape rule may look at."""

    operands: Sequence[Shape]
    attributes: Mapping[str, Any]
    declared: Shape | None

    def attr(self, name: str) -> Any:
        if name not in self.attributes:
            raise ShapeError(f"attribute {name} is missing")
        return self.attributes[name]

    def ints(self, name: str) -> tuple[int, ...]:
        """A list-of-int attribute; absent means empty."""
        value: tuple[int, ...] = self.attributes.get(name, ())
        return value


ShapeRule = Callable[[ShapeQuery], Shape]


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ShapeError(message)


def _array(q: ShapeQuery, i: int) -> Shape:
    s = q.operands[i]
    _need(s.is_array, f"operand {i} must be an array, is {s}")
    return s


def _distinct_dims(dims: Sequence[int], rank: int, what: str) -> None:
    _need(len(set(dims)) == len(dims), f"{what} has repeated dimensions: {list(dims)}")
    _need(all(0 <= d < rank for d in dims), f"{what} {list(dims)} out of range for rank {rank}")


def declared(q: ShapeQuery) -> Shape:
    if q.declared is None:
        raise ShapeError("the result shape must be written out: it does not follow from the operands")
    return q.declared


def same(q: ShapeQuery) -> Shape:
    return q.operands[0]


def first_operand(q: ShapeQuery) -> Shape:
    return q.operands[0]


def token(q: ShapeQuery) -> Shape:
    return TOKEN_SHAPE


def unary(q: ShapeQuery) -> Shape:
    return _array(q, 0)


def real_part(q: ShapeQuery) -> Shape:
    s = _array(q, 0)
    to = {T.C64: T.F32, T.C128: T.F64}.get(s.element_type, s.element_type)
    return s.with_type(to)


def predicate(q: ShapeQuery) -> Shape:
    return _array(q, 0).with_type(T.PRED)


def convert(q: ShapeQuery) -> Shape:
    s, d = _array(q, 0), declared(q)
    _need(s.same_dimensions(d), f"result {d} must have the operand's dimensions ({s})")
    return d


def bitcast_convert(q: ShapeQuery) -> Shape:
    s, d = _array(q, 0), declared(q)
    a, b = s.element_type.bits, d.element_type.bits
    if a == b:
        ok = s.dimensions == d.dimensions
    elif a > b:
        ok = d.dimensions[:-1] == s.dimensions and d.rank > 0 and d.dimensions[-1] * b == a
    else:
        ok = s.dimensions[:-1] == d.dimensions and s.rank > 0 and s.dimensions[-1] * a == b
    _need(ok, f"cannot bitcast-convert {s} to {d}")
    return d


def _same_shapes(q: ShapeQuery, indices: Sequence[int]) -> Shape:
    first = _array(q, indices[0])
    for i in indices[1:]:
        other = _array(q, i)
        _need(
            first.same_dimensions(other) and first.element_type is other.element_type,
            f"operands must have one shape, got {first} and {other}",
        )
    dynamic = tuple(any(q.operands[i].dynamic[d : d + 1] == (True,) for i in indices) for d in range(first.rank))
    return Shape(first.element_type, first.dimensions, first.layout, dynamic if any(dynamic) else ())


def binary(q: ShapeQuery) -> Shape:
    return _same_shapes(q, (0, 1))


def compare(q: ShapeQuery) -> Shape:
    return _same_shapes(q, (0, 1)).with_type(T.PRED)


def complex_(q: ShapeQuery) -> Shape:
    s = _same_shapes(q, (0, 1))
    to = {T.F32: T.C64, T.F64: T.C128}.get(s.element_type)
    if to is None:
        raise ShapeError(f"complex takes f32 or f64, got {s}")
    return s.with_type(to)


def clamp(q: ShapeQuery) -> Shape:
    low, x, high = _array(q, 0), _array(q, 1), _array(q, 2)
    for bound in (low, high):
        _need(
            bound.element_type is x.element_type and (bound.is_scalar or bound.same_dimensions(x)),
            f"clamp bound {bound} must be a scalar of the operand's type or have its shape {x}",
        )
    return x


def select(q: ShapeQuery) -> Shape:
    p = _array(q, 0)
    x = _same_shapes(q, (1, 2))
    _need(p.element_type is T.PRED, f"select needs a pred operand first, got {p}")
    _need(p.is_scalar or p.same_dimensions(x), f"select predicate {p} must be a scalar or have the shape of {x}")
    return x


def iota(q: ShapeQuery) -> Shape:
    d = declared(q)
    dim = q.attr("iota_dimension")
    _need(d.is_array and 0 <= dim < d.rank, f"iota_dimension {dim} out of range for {d}")
    return d


def bitcast(q: ShapeQuery) -> Shape:
    s, d = q.operands[0], declared(q)
    _need(s.byte_size == d.byte_size, f"bitcast between different sizes: {s} and {d}")
    return d


def reshape(q: ShapeQuery) -> Shape:
    s, d = _array(q, 0), declared(q)
    _need(
        s.element_type is d.element_type and s.num_elements == d.num_elements,
        f"cannot reshape {s} to {d}",
    )
    return d


def broadcast(q: ShapeQuery) -> Shape:
    s, d, dims = _array(q, 0), declared(q), q.ints("dimensions")
    _need(len(dims) == s.rank, f"dimensions {list(dims)} must name one result dimension for each of {s}")
    _distinct_dims(dims, d.rank, "dimensions")
    _need(s.element_type is d.element_type, f"broadcast cannot change the type: {s} to {d}")
    for i, to in enumerate(dims):
        _need(
            s.dimensions[i] == d.dimensions[to],
            f"operand dimension {i} of size {s.dimensions[i]} does not fit result dimension {to} of {d}",
        )
    return d


def concatenate(q: ShapeQuery) -> Shape:
    first = _array(q, 0)
    dims = q.ints("dimensions")
    _need(len(dims) == 1 and 0 <= dims[0] < first.rank, f"concatenate needs one dimension of {first}, got {list(dims)}")
    at = dims[0]
    total = 0
    for i in range(len(q.operands)):
        s = _array(q, i)
        fits = s.rank == first.rank and all(
            a == b for k, (a, b) in enumerate(zip(s.dimensions, first.dimensions, strict=True)) if k != at
        )
        _need(fits and s.element_type is first.element_type, f"cannot concatenate {s} with {first} along {at}")
        total += s.dimensions[at]
    return first.with_dimensions((*first.dimensions[:at], total, *first.dimensions[at + 1 :]))


def _start_indices(q: ShapeQuery, first: int, rank: int) -> None:
    starts = q.operands[first:]
    if len(starts) == 1 and starts[0].rank == 1 and starts[0].dimensions == (rank,):
        return  # the old form: one vector of indices
    _need(len(starts) == rank, f"needs {rank} start indices, got {len(starts)}")
    for s in starts:
        _need(s.is_scalar and s.element_type.is_integer, f"start indices must be integer scalars, got {s}")


def dynamic_slice(q: ShapeQuery) -> Shape:
    s, sizes = _array(q, 0), q.ints("dynamic_slice_sizes")
    _start_indices(q, 1, s.rank)
    fits = len(sizes) == s.rank and all(0 <= n <= d for n, d in zip(sizes, s.dimensions, strict=True))
    _need(fits, f"dynamic_slice_sizes {list(sizes)} do not fit {s}")
    return s.with_dimensions(sizes)


def dynamic_update_slice(q: ShapeQuery) -> Shape:
    s, u = _array(q, 0), _array(q, 1)
    _start_indices(q, 2, s.rank)
    fits = u.rank == s.rank and all(a <= b for a, b in zip(u.dimensions, s.dimensions, strict=True))
    _need(fits and u.element_type is s.element_type, f"update {u} does not fit into {s}")
    return s


def gather(q: ShapeQuery) -> Shape:
    s, idx = _array(q, 0), _array(q, 1)
    offset_dims, collapsed = q.ints("offset_dims"), q.ints("collapsed_slice_dims")
    batching, sizes = q.ints("operand_batching_dims"), q.ints("slice_sizes")
    ivd, start_map = q.attr("index_vector_dim"), q.ints("start_index_map")
    _need(idx.element_type.is_integer, f"gather indices must be integers, got {idx}")
    _need(0 <= ivd <= idx.rank, f"index_vector_dim {ivd} out of range for {idx}")
    _need(len(sizes) == s.rank, f"slice_sizes {list(sizes)} must have one entry for each dimension of {s}")
    _need(all(0 <= n <= d for n, d in zip(sizes, s.dimensions, strict=True)), f"slice_sizes {list(sizes)} exceed {s}")
    _distinct_dims((*collapsed, *batching), s.rank, "collapsed_slice_dims and operand_batching_dims")
    _distinct_dims(start_map, s.rank, "start_index_map")
    vector = idx.dimensions[ivd] if ivd < idx.rank else 1
    _need(len(start_map) == vector, f"start_index_map {list(start_map)} must have {vector} entries")
    for d in (*collapsed, *batching):
        _need(sizes[d] <= 1, f"slice size of collapsed or batching dimension {d} must be 1, is {sizes[d]}")
    batch = [n for k, n in enumerate(idx.dimensions) if k != ivd]
    window = [n for k, n in enumerate(sizes) if k not in collapsed and k not in batching]
    _need(len(offset_dims) == len(window), f"offset_dims {list(offset_dims)} must have {len(window)} entries")
    rank = len(batch) + len(window)
    _distinct_dims(offset_dims, rank, "offset_dims")
    batch_it, window_it = iter(batch), iter(window)
    return s.with_dimensions(tuple(next(window_it) if k in offset_dims else next(batch_it) for k in range(rank)))


def pad(q: ShapeQuery) -> Shape:
    s, v = _array(q, 0), _array(q, 1)
    config: tuple[PadDim, ...] = q.attr("padding")
    _need(
        v.is_scalar and v.element_type is s.element_type, f"pad value must be a {s.element_type.text} scalar, got {v}"
    )
    _need(len(config) == s.rank, f"padding has {len(config)} dimensions, {s} has {s.rank}")
    out = []
    for d, p in zip(s.dimensions, config, strict=True):
        _need(p.interior >= 0, f"interior padding must not be negative, got {p.interior}")
        n = d + p.low + p.high + max(0, d - 1) * p.interior
        _need(n >= 0, f"padding {p.low}_{p.high}_{p.interior} makes a dimension of size {d} negative")
        out.append(n)
    return s.with_dimensions(tuple(out))


def reverse(q: ShapeQuery) -> Shape:
    s = _array(q, 0)
    _distinct_dims(q.ints("dimensions"), s.rank, "dimensions")
    return s


def scatter(q: ShapeQuery) -> Shape:
    n = (len(q.operands) - 1) // 2
    _need(len(q.operands) == 2 * n + 1, "scatter needs n operands, the indices, and n updates")
    idx = _array(q, n)
    _need(idx.element_type.is_integer, f"scatter indices must be integers, got {idx}")
    window, inserted = q.ints("update_window_dims"), q.ints("inserted_window_dims")
    batching, ivd = q.ints("input_batching_dims"), q.attr("index_vector_dim")
    _need(0 <= ivd <= idx.rank, f"index_vector_dim {ivd} out of range for {idx}")
    batch = [d for k, d in enumerate(idx.dimensions) if k != ivd]
    for i in range(n):
        s, u = _array(q, i), _array(q, n + 1 + i)
        _need(u.rank == len(batch) + len(window), f"update {u} must have rank {len(batch) + len(window)}")
        _need(s.rank == len(window) + len(inserted) + len(batching), f"operand {s} does not fit the window dimensions")
        kept = [d for k, d in enumerate(s.dimensions) if k not in inserted and k not in batching]
        for at, d in zip(window, kept, strict=True):
            _need(u.dimensions[at] <= d, f"update window dimension {at} of {u} exceeds the operand {s}")
        given = [d for k, d in enumerate(u.dimensions) if k not in window]
        _need(given == batch, f"update {u} does not have the batch dimensions {batch} of the indices {idx}")
    shapes = tuple(q.operands[:n])
    return shapes[0] if n == 1 else tuple_shape(*shapes)


def slice_(q: ShapeQuery) -> Shape:
    s = _array(q, 0)
    spec: tuple[SliceDim, ...] = q.attr("slice")
    _need(len(spec) == s.rank, f"slice has {len(spec)} dimensions, {s} has {s.rank}")
    for d, n in zip(spec, s.dimensions, strict=True):
        _need(
            0 <= d.start <= d.limit <= n and d.stride > 0,
            f"slice [{d.start}:{d.limit}:{d.stride}] does not fit a dimension of size {n}",
        )
    return s.with_dimensions(tuple(d.size for d in spec))


def transpose(q: ShapeQuery) -> Shape:
    s, dims = _array(q, 0), q.ints("dimensions")
    _need(sorted(dims) == list(range(s.rank)), f"dimensions {list(dims)} are no permutation for {s}")
    return s.with_dimensions(tuple(s.dimensions[d] for d in dims))


def get_dimension_size(q: ShapeQuery) -> Shape:
    s, dims = _array(q, 0), q.ints("dimensions")
    _need(len(dims) == 1 and dims[0] < s.rank, f"dimensions {list(dims)} must name one dimension of {s}")
    return array_shape(T.S32)


def set_dimension_size(q: ShapeQuery) -> Shape:
    s, n, dims = _array(q, 0), _array(q, 1), q.ints("dimensions")
    _need(n.is_scalar and n.element_type is T.S32, f"the size must be an s32 scalar, got {n}")
    _need(len(dims) == 1 and dims[0] < s.rank, f"dimensions {list(dims)} must name one dimension of {s}")
    dynamic = list(s.dynamic or (False,) * s.rank)
    dynamic[dims[0]] = True
    return Shape(s.element_type, s.dimensions, s.layout, tuple(dynamic))


def _check_reducer(f: Signature, elements: Sequence[Shape]) -> None:
    want = [s.with_dimensions(()) for s in elements] * 2
    got = f.parameter_shapes
    _need(len(got) == len(want), f"reducer {f.name} must take {len(want)} scalars, takes {len(got)}")


def map_(q: ShapeQuery) -> Shape:
    f: Signature = q.attr("to_apply")
    first = _array(q, 0)
    for i in range(1, len(q.operands)):
        _need(first.same_dimensions(_array(q, i)), f"map operands must have one shape, got {first} and {q.operands[i]}")
    _need(len(f.parameter_shapes) == len(q.operands), f"{f.name} must take {len(q.operands)} scalars")
    return first.with_type(f.result_shape.element_type)


def _result_types(f: Signature, count: int) -> list[T]:
    leaves = list(f.result_shape.leaves())
    _need(len(leaves) == count, f"{f.name} must return {count} value(s), returns {f.result_shape}")
    return [s.element_type for s in leaves]


def reduce(q: ShapeQuery) -> Shape:
    n = len(q.operands) // 2
    _need(len(q.operands) == 2 * n, "reduce needs as many initial values as operands")
    first, dims = _array(q, 0), q.ints("dimensions")
    _distinct_dims(dims, first.rank, "dimensions")
    f: Signature = q.attr("to_apply")
    for i in range(n):
        s, init = _array(q, i), _array(q, n + i)
        _need(first.same_dimensions(s), f"reduce operands must have the same dimensions, got {first} and {s}")
        _need(init.is_scalar, f"initial value {i} must be a scalar, is {init}")
    _check_reducer(f, q.operands[:n])
    kept = tuple(d for k, d in enumerate(first.dimensions) if k not in dims)
    shapes = [Shape(t, kept) for t in _result_types(f, n)]
    return shapes[0] if n == 1 else tuple_shape(*shapes)


def _window_output(window: Window, dims: Sequence[int]) -> tuple[int, ...]:
    _need(len(window.dims) == len(dims), f"window has {len(window.dims)} dimensions, expected {len(dims)}")
    for w in window.dims:
        _need(w.stride > 0 and w.lhs_dilate > 0 and w.rhs_dilate > 0, "window stride and dilation must be positive")
    return tuple(w.output_size(d) for w, d in zip(window.dims, dims, strict=True))


def reduce_window(q: ShapeQuery) -> Shape:
    n = len(q.operands) // 2
    _need(len(q.operands) == 2 * n, "reduce-window needs as many initial values as operands")
    first = _array(q, 0)
    f: Signature = q.attr("to_apply")
    for i in range(n):
        s, init = _array(q, i), _array(q, n + i)
        _need(first.same_dimensions(s), f"operands must have the same dimensions, got {first} and {s}")
        _need(init.is_scalar, f"initial value {i} must be a scalar, is {init}")
    _check_reducer(f, q.operands[:n])
    dims = _window_output(q.attributes.get("window", Window()), first.dimensions)
    shapes = [Shape(t, dims) for t in _result_types(f, n)]
    return shapes[0] if n == 1 else tuple_shape(*shapes)


def scan(q: ShapeQuery) -> Shape:
    return declared(q)


def select_and_scatter(q: ShapeQuery) -> Shape:
    s, source, init = _array(q, 0), _array(q, 1), _array(q, 2)
    dims = _window_output(q.attributes.get("window", Window()), s.dimensions)
    _need(source.dimensions == dims, f"source {source} must have dimensions {list(dims)}")
    _need(init.is_scalar, f"initial value must be a scalar, is {init}")
    return s


def dot(q: ShapeQuery) -> Shape:
    a, b = _array(q, 0), _array(q, 1)
    lc, rc = q.ints("lhs_contracting_dims"), q.ints("rhs_contracting_dims")
    lb, rb = q.ints("lhs_batch_dims"), q.ints("rhs_batch_dims")
    _need(len(lc) == len(rc), f"contracting dimensions differ in number: {list(lc)} and {list(rc)}")
    _need(len(lb) == len(rb), f"batch dimensions differ in number: {list(lb)} and {list(rb)}")
    _distinct_dims((*lc, *lb), a.rank, "lhs batch and contracting dimensions")
    _distinct_dims((*rc, *rb), b.rank, "rhs batch and contracting dimensions")
    for i, j in zip((*lc, *lb), (*rc, *rb), strict=True):
        _need(
            a.dimensions[i] == b.dimensions[j],
            f"dimension {i} of {a} and dimension {j} of {b} must have the same size",
        )
    dims = [a.dimensions[i] for i in lb]
    dims += [n for i, n in enumerate(a.dimensions) if i not in lc and i not in lb]
    dims += [n for j, n in enumerate(b.dimensions) if j not in rc and j not in rb]
    result = Shape(a.element_type if q.declared is None else q.declared.element_type, tuple(dims))
    return result


def convolution(q: ShapeQuery) -> Shape:
    a, b = _array(q, 0), _array(q, 1)
    labels: ConvDimLabels = q.attr("dim_labels")
    for s, text, what in ((a, labels.lhs, "input"), (b, labels.rhs, "kernel")):
        _need(s.rank == len(text), f"{what} {s} does not have the rank of dim_labels {labels}")
    spatial = sorted(c for c in labels.lhs if c.isdigit())
    window: Window = q.attributes.get("window", Window())
    groups, batch_groups = q.attributes.get("feature_group_count", 1), q.attributes.get("batch_group_count", 1)
    batch, feature = a.dimensions[labels.lhs.index("b")], a.dimensions[labels.lhs.index("f")]
    k_in, k_out = b.dimensions[labels.rhs.index("i")], b.dimensions[labels.rhs.index("o")]
    _need(groups > 0 and batch_groups > 0, "group counts must be positive")
    _need(feature == k_in * groups, f"input features {feature} must be kernel inputs {k_in} x {groups} groups")
    _need(k_out % groups == 0, f"output features {k_out} must be a multiple of feature_group_count {groups}")
    _need(batch % batch_groups == 0, f"batch {batch} must be a multiple of batch_group_count {batch_groups}")
    _need(len(window.dims) == len(spatial), f"window must have {len(spatial)} dimensions")
    for c, w in zip(spatial, window.dims, strict=True):
        n = b.dimensions[labels.rhs.index(c)]
        _need(w.size == n, f"window size {w.size} differs from kernel size {n} in spatial dimension {c}")
    sizes = _window_output(window, [a.dimensions[labels.lhs.index(c)] for c in spatial])
    by_label = {"b": batch // batch_groups, "f": k_out} | dict(zip(spatial, sizes, strict=True))
    element = a.element_type if q.declared is None else q.declared.element_type
    return Shape(element, tuple(by_label[c] for c in labels.out))


def _feature_vector(q: ShapeQuery) -> tuple[Shape, Shape]:
    s = _array(q, 0)
    f = q.attr("feature_index")
    _need(0 <= f < s.rank, f"feature_index {f} out of range for {s}")
    return s, s.with_dimensions((s.dimensions[f],))


def batch_norm_training(q: ShapeQuery) -> Shape:
    s, vector = _feature_vector(q)
    return tuple_shape(s, vector, vector)


def batch_norm_grad(q: ShapeQuery) -> Shape:
    s, vector = _feature_vector(q)
    return tuple_shape(s, vector, vector)


def cholesky(q: ShapeQuery) -> Shape:
    s = _array(q, 0)
    _need(s.rank >= 2 and s.dimensions[-1] == s.dimensions[-2], f"cholesky needs square matrices, got {s}")
    return s


def triangular_solve(q: ShapeQuery) -> Shape:
    a, b = _array(q, 0), _array(q, 1)
    _need(a.rank == b.rank >= 2 and a.dimensions[-1] == a.dimensions[-2], f"cannot solve with {a} and {b}")
    n = b.dimensions[-2] if q.attributes.get("left_side", False) else b.dimensions[-1]
    _need(a.dimensions[-1] == n and a.dimensions[:-2] == b.dimensions[:-2], f"cannot solve with {a} and {b}")
    return b


def fft(q: ShapeQuery) -> Shape:
    s, length, kind = _array(q, 0), q.ints("fft_length"), q.attr("fft_type")
    n = len(length)
    _need(1 <= n <= 3 and s.rank >= n, f"fft_length {list(length)} does not fit {s}")
    kept = s.dimensions[: s.rank - n]
    if kind == "RFFT":
        return Shape(
            {T.F32: T.C64, T.F64: T.C128}.get(s.element_type, T.C64), (*kept, *length[:-1], length[-1] // 2 + 1)
        )
    if kind == "IRFFT":
        return Shape({T.C64: T.F32, T.C128: T.F64}.get(s.element_type, T.F32), (*kept, *length))
    return s


def sort(q: ShapeQuery) -> Shape:
    first, dims = _array(q, 0), q.ints("dimensions")
    _need(
        len(dims) == 1 and 0 <= dims[0] < max(1, first.rank), f"sort needs one dimension of {first}, got {list(dims)}"
    )
    for i in range(1, len(q.operands)):
        _need(first.same_dimensions(_array(q, i)), f"sort operands must have one shape, got {first}, {q.operands[i]}")
    return first if len(q.operands) == 1 else tuple_shape(*q.operands)


def topk(q: ShapeQuery) -> Shape:
    s, k = _array(q, 0), q.attr("k")
    _need(s.rank >= 1 and 0 < k <= s.dimensions[-1], f"k={k} does not fit {s}")
    dims = (*s.dimensions[:-1], k)
    return tuple_shape(s.with_dimensions(dims), Shape(T.S32, dims))


def _check_call(f: Signature, operands: Sequence[Shape]) -> None:
    params = f.parameter_shapes
    _need(len(params) == len(operands), f"{f.name} takes {len(params)} arguments, got {len(operands)}")
    for i, (p, o) in enumerate(zip(params, operands, strict=True)):
        _need(p.compatible(o), f"parameter {i} of {f.name} is {p}, the operand is {o}")


def call(q: ShapeQuery) -> Shape:
    f: Signature = q.attr("to_apply")
    _check_call(f, q.operands)
    return f.result_shape


def fusion(q: ShapeQuery) -> Shape:
    f: Signature = q.attr("calls")
    _check_call(f, q.operands)
    return f.result_shape


def conditional(q: ShapeQuery) -> Shape:
    branches: tuple[Signature, ...]
    if "branch_computations" in q.attributes:
        branches = q.attributes["branch_computations"]
    else:
        branches = (q.attr("true_computation"), q.attr("false_computation"))
    _need(len(branches) > 0, "conditional needs at least one branch")
    _need(len(q.operands) == len(branches) + 1, f"{len(branches)} branches need {len(branches) + 1} operands")
    for f, operand in zip(branches, q.operands[1:], strict=True):
        _check_call(f, [operand])
        _need(
            f.result_shape.compatible(branches[0].result_shape),
            f"branch {f.name} returns {f.result_shape}, {branches[0].name} returns {branches[0].result_shape}",
        )
    return branches[0].result_shape


def while_(q: ShapeQuery) -> Shape:
    state = q.operands[0]
    condition: Signature = q.attr("condition")
    body: Signature = q.attr("body")
    _check_call(condition, [state])
    _check_call(body, [state])
    want = array_shape(T.PRED)
    _need(condition.result_shape.compatible(want), f"condition must return pred[], returns {condition.result_shape}")
    _need(body.result_shape.compatible(state), f"body returns {body.result_shape}, the loop carries {state}")
    return state


def tuple_(q: ShapeQuery) -> Shape:
    return tuple_shape(*q.operands)


def get_tuple_element(q: ShapeQuery) -> Shape:
    s, i = q.operands[0], q.attr("index")
    _need(s.is_tuple and 0 <= i < len(s.tuple_shapes), f"no element {i} in {s}")
    element: Shape = s.tuple_shapes[i]
    return element


def elements(shape: Shape) -> int:
    """Elements over all array leaves."""
    return sum(math.prod(s.dimensions) for s in shape.leaves() if s.is_array)
