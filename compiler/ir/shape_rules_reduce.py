"""Shape rules of reductions, windows, scans and sorts."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.attributes import Window
from compiler.ir.shape import UNBOUNDED, Shape, tuple_shape
from compiler.ir.shape_query import (
    ShapeQuery,
    Signature,
    array,
    combined,
    declared,
    distinct_dims,
    dynamic_flags,
    need,
    same_but_precision,
    with_sizes,
)
from compiler.ir.types import PrimitiveType as T


def check_reducer(f: Signature, elements: Sequence[Shape], initial: Sequence[Shape]) -> list[T]:
    """Check a reducer and return its result types; it takes n accumulators and n elements, and returns n scalars."""
    n, params, result = len(elements), f.parameter_shapes, f.result_shape
    need(len(params) == 2 * n, f"reducer {f.name} must take {2 * n} scalars, takes {len(params)}")
    returned = result.tuple_shapes if result.is_tuple else (result,)
    need(len(returned) == n, "reducer {} must return {} scalar(s), returns {}", f.name, n, result)
    wrong = "parameter {} of reducer {} is {}, {} {}"
    for i, accumulator in enumerate(returned):
        need(accumulator.is_scalar, "reducer {} must return scalars, returns {}", f.name, result)
        same = accumulator.compatible(params[i])
        need(same, wrong, i, f.name, params[i], "the returned value is", accumulator)
        fits = same_but_precision(accumulator, initial[i])
        need(fits, "initial value {} does not fit the accumulator {} of reducer {}", initial[i], accumulator, f.name)
        element, p = Shape(elements[i].element_type), params[n + i]
        for given, what in ((element, "the operand's elements are"), (accumulator, "the returned value is")):
            need(same_but_precision(given, p), wrong, n + i, f.name, p, what, given)
    return [s.element_type for s in returned]


def _reduced(q: ShapeQuery, name: str) -> tuple[Shape, list[T]]:
    """Return the common shape of the operands, and the result types."""
    n = len(q.operands) // 2
    need(len(q.operands) == 2 * n, f"{name} needs as many initial values as operands")
    first = array(q, 0)
    for i in range(n):
        s, init = array(q, i), array(q, n + i)
        need(first.same_dimensions(s), "{} operands must have the same dimensions, got {} and {}", name, first, s)
        need(init.is_scalar, "initial value {} must be a scalar, is {}", i, init)
    return first, check_reducer(q.attr("to_apply"), q.operands[:n], q.operands[n:])


def _results(q: ShapeQuery, types: Sequence[T], dims: Sequence[int], flags: Sequence[bool]) -> Shape:
    shapes = [with_sizes(Shape(t), dims, flags) for t in types]
    return tuple_shape(*shapes) if q.attr("to_apply").result_shape.is_tuple else shapes[0]


def reduce(q: ShapeQuery) -> Shape:
    """Return the remaining dimensions for each result type."""
    first, types = _reduced(q, "reduce")
    dims = q.ints("dimensions")
    distinct_dims(dims, first.rank, "dimensions")
    gone = set(dims)
    kept = [k for k in range(first.rank) if k not in gone]
    flags = dynamic_flags(first)
    return _results(q, types, [first.dimensions[k] for k in kept], [flags[k] for k in kept])


def window_output(window: Window, dims: Sequence[int]) -> tuple[int, ...]:
    """Return the number of window positions in each dimension; raise ShapeError if the window is invalid."""
    need(len(window.dims) == len(dims), f"window has {len(window.dims)} dimensions, expected {len(dims)}")
    for w in window.dims:
        need(w.size > 0, f"window size must be positive, is {w.size}")
        need(w.stride > 0 and w.lhs_dilate > 0 and w.rhs_dilate > 0, "window stride and dilation must be positive")
    for w, d in zip(window.dims, dims, strict=True):
        padded = w.padded_size(d)
        need(d < 0 or padded >= 0, f"padding makes a dimension of size {d} negative: {padded}")
    return tuple(d if d < 0 else w.output_size(d) for w, d in zip(window.dims, dims, strict=True))


def reduce_window(q: ShapeQuery) -> Shape:
    """Return the number of window positions for each result type."""
    first, _ = _reduced(q, "reduce-window")
    types = [s.element_type for s in q.operands[len(q.operands) // 2 :]]
    dims = window_output(q.attributes.get("window", Window()), first.dimensions)
    return _results(q, types, dims, dynamic_flags(first))


def select_and_scatter(q: ShapeQuery) -> Shape:
    """Return the shape of the operand; the source has one element per window position."""
    s, source, init = array(q, 0), array(q, 1), array(q, 2)
    dims = window_output(q.attributes.get("window", Window()), s.dimensions)
    need(source.dimensions == dims, f"source {source} must have dimensions {list(dims)}")
    need(source.element_type is s.element_type, f"source {source} must have the type of the operand {s}")
    need(init.is_scalar, f"initial value must be a scalar, is {init}")
    select: Signature = q.attr("select")
    scalar = Shape(s.element_type)
    need(
        len(select.parameter_shapes) == 2 and all(p.compatible(scalar) for p in select.parameter_shapes),
        f"{select.name} must take two {scalar}",
    )
    need(
        select.result_shape.compatible(Shape(T.PRED)),
        f"{select.name} must return pred[], returns {select.result_shape}",
    )
    check_reducer(q.attr("scatter"), [source], [init])
    return s


def scan(q: ShapeQuery) -> Shape:
    """Return outputs, then carries; inputs are sliced along the dimension and outputs stacked along it."""
    f: Signature = q.attr("to_apply")
    dims, carries = q.ints("dimensions"), q.attr("num_carries")
    need(len(dims) == 1, f"scan goes along one dimension, got {list(dims)}")
    at, params = dims[0], f.parameter_shapes
    inputs = len(q.operands) - carries
    returned = f.result_shape.tuple_shapes if f.result_shape.is_tuple else (f.result_shape,)
    need(carries >= 0 and inputs >= 0, f"scan has {carries} carries, but {len(q.operands)} operands")
    need(len(returned) >= carries, f"scan has {carries} carries, but {f.name} returns {len(returned)} values")
    need(inputs > 0 or len(returned) > carries, "scan needs an input or an output")
    need(len(params) == len(q.operands), f"{f.name} must take {len(q.operands)} values, takes {len(params)}")
    length: int | None = None
    for i, (s, p) in enumerate(zip(q.operands, params, strict=True)):
        want = s
        if i < inputs:
            need(s.is_array and 0 <= at < s.rank, f"dimension {at} out of range for operand {i}, {s}")
            need(length in (None, s.dimensions[at]), f"operand {i} has {s.dimensions[at]} steps, others {length}")
            length = s.dimensions[at]
            want = s.with_dimensions((*s.dimensions[:at], *s.dimensions[at + 1 :]))
        need(p.compatible(want), f"parameter {i} of {f.name} must be {want}, is {p}")
    outputs = len(returned) - carries
    for i in range(carries):
        need(
            returned[outputs + i].compatible(params[inputs + i]),
            f"{f.name} returns {returned[outputs + i]} for carry {i}, which is {params[inputs + i]}",
        )
    if length is None:
        whole = declared(q)
        leaves = whole.tuple_shapes if whole.is_tuple else (whole,)
        length = leaves[0].dimensions[at]
    stacked = [s.with_dimensions((*s.dimensions[:at], length, *s.dimensions[at:])) for s in returned[:outputs]]
    shapes = (*stacked, *returned[outputs:])
    return tuple_shape(*shapes) if f.result_shape.is_tuple else combined(shapes)


def sort(q: ShapeQuery) -> Shape:
    """Return the shapes of the operands."""
    first, dims = array(q, 0), q.ints("dimensions")
    need(len(dims) == 1 and 0 <= dims[0] < max(1, first.rank), f"sort needs one dimension of {first}, got {list(dims)}")
    for i in range(1, len(q.operands)):
        need(first.same_dimensions(array(q, i)), f"sort operands must have one shape, got {first}, {q.operands[i]}")
    f: Signature = q.attr("to_apply")
    params = f.parameter_shapes
    need(f.result_shape.compatible(Shape(T.PRED)), f"comparator {f.name} must return pred[], returns {f.result_shape}")
    need(len(params) == 2 * len(q.operands), f"comparator {f.name} must take {2 * len(q.operands)} scalars")
    for i, p in enumerate(params):
        want = Shape(q.operands[i // 2].element_type)
        need(same_but_precision(p, want), f"parameter {i} of comparator {f.name} must be {want}, is {p}")
    return combined(tuple(q.operands))


def topk(q: ShapeQuery) -> Shape:
    """Return (values, indices) with k elements in the last dimension."""
    s, k = array(q, 0), q.attr("k")
    need(s.rank > 0, f"topk takes at least one dimension, got {s}")
    need(0 <= k <= s.dimensions[-1] or s.dimensions[-1] == UNBOUNDED, f"k={k} does not fit {s}")
    dims, flags = (*s.dimensions[:-1], k), (*dynamic_flags(s)[:-1], False)
    return tuple_shape(with_sizes(s, dims, flags), with_sizes(Shape(T.S32), dims, flags))
