"""Shape rules of data movement and of dynamic sizes."""

from __future__ import annotations

from compiler.errors import ShapeError
from compiler.ir.attributes import PadDim, SliceDim
from compiler.ir.shape import UNBOUNDED, Shape, array_shape
from compiler.ir.shape_query import (
    ShapeQuery,
    array,
    declared,
    distinct_dims,
    dynamic_flags,
    fits,
    need,
    with_sizes,
)
from compiler.ir.types import PrimitiveType as T


def bitcast(q: ShapeQuery) -> Shape:
    """Return the declared shape; a bitcast keeps the bits and the number of bits."""
    s, d = q.operands[0], declared(q)
    if s.is_array and d.is_array:
        size = s.num_elements * s.element_type.bits, d.num_elements * d.element_type.bits
        need(size[0] == size[1], f"bitcast between different sizes: {s} and {d}")
    else:
        need(s.compatible(d), f"bitcast cannot make {d} of {s}")
    return d


def reshape(q: ShapeQuery) -> Shape:
    """Return the declared shape, which has the same element type and number of elements."""
    s, d = array(q, 0), declared(q)
    unbounded = UNBOUNDED in s.dimensions or UNBOUNDED in d.dimensions
    need(
        d.is_array and s.element_type is d.element_type and (unbounded or s.num_elements == d.num_elements),
        "cannot reshape {} to {}: type and number of elements must stay",
        s,
        d,
    )
    return d


def dynamic_reshape(q: ShapeQuery) -> Shape:
    """Return the declared shape; the operands are the data, then one s32 size per dimension."""
    s, d = array(q, 0), declared(q)
    need(
        d.is_array and s.element_type is d.element_type and s.num_elements == d.num_elements,
        f"cannot reshape {s} to {d}: type and number of elements must stay",
    )
    sizes = q.operands[1:]
    need(len(sizes) == d.rank, f"needs one size for each dimension of {d}, got {len(sizes)}")
    for n in sizes:
        need(n.is_scalar and n.element_type is T.S32, f"sizes must be s32 scalars, got {n}")
    return d


def broadcast(q: ShapeQuery) -> Shape:
    """Return the declared shape; `dimensions` maps each operand dimension to one of the result."""
    s, d, dims = array(q, 0), declared(q), q.ints("dimensions")
    need(d.is_array, "the result must be an array, is {}", d)
    need(len(dims) == s.rank, "dimensions {} must name one result dimension for each of {}", list(dims), s)
    distinct_dims(dims, d.rank, "dimensions")
    need(s.element_type is d.element_type, "broadcast cannot change the type: {} to {}", s, d)
    for i, to in enumerate(dims):
        size = s.dimensions[i]
        fit = fits(size, d.dimensions[to])
        need(fit, "operand dimension {} of size {} does not fit result dimension {} of {}", i, size, to, d)
    return d


def concatenate(q: ShapeQuery) -> Shape:
    """Return the shape of the operands, with their sizes added along the dimension."""
    first = array(q, 0)
    dims = q.ints("dimensions")
    need(len(dims) == 1 and 0 <= dims[0] < first.rank, f"concatenate needs one dimension of {first}, got {list(dims)}")
    at = dims[0]
    total = 0
    flags = list(dynamic_flags(first))
    for i in range(len(q.operands)):
        s = array(q, i)
        agrees = s.rank == first.rank and all(
            fits(a, b) for k, (a, b) in enumerate(zip(s.dimensions, first.dimensions, strict=True)) if k != at
        )
        need(agrees and s.element_type is first.element_type, f"cannot concatenate {s} with {first} along {at}")
        total = UNBOUNDED if UNBOUNDED in (total, s.dimensions[at]) else total + s.dimensions[at]
        if s.dynamic:
            flags = [a or b for a, b in zip(flags, s.dynamic, strict=True)]
    return with_sizes(first, (*first.dimensions[:at], total, *first.dimensions[at + 1 :]), flags)


def _start_indices(q: ShapeQuery, first: int, rank: int) -> None:
    starts = q.operands[first:]
    if len(starts) == 1 and starts[0].rank == 1 and starts[0].dimensions == (rank,):
        return  # the legacy form: one vector of indices
    need(len(starts) == rank, f"needs {rank} start indices, got {len(starts)}")
    for s in starts:
        need(s.is_scalar and s.element_type.is_integer, f"start indices must be integer scalars, got {s}")
        need(
            s.element_type is starts[0].element_type,
            f"start indices must have one type, got {starts[0]} and {s}",
        )


def dynamic_slice(q: ShapeQuery) -> Shape:
    """Return the shape of the slice."""
    s, sizes = array(q, 0), q.ints("dynamic_slice_sizes")
    _start_indices(q, 1, s.rank)
    inside = len(sizes) == s.rank and all(
        0 <= n <= d or d == UNBOUNDED for n, d in zip(sizes, s.dimensions, strict=True)
    )
    need(inside, f"dynamic_slice_sizes {list(sizes)} do not fit {s}")
    flags = [f and n == d > 1 for f, n, d in zip(dynamic_flags(s), sizes, s.dimensions, strict=True)]
    return with_sizes(s, sizes, flags)


def dynamic_update_slice(q: ShapeQuery) -> Shape:
    """Return the shape of the operand, an array or a buffer, which must contain the update."""
    whole = q.operands[0]
    s = whole.tuple_shapes[0] if whole.element_type is T.BUFFER else array(q, 0)
    u = array(q, 1)
    _start_indices(q, 2, s.rank)
    inside = u.rank == s.rank and all(a <= b or b == UNBOUNDED for a, b in zip(u.dimensions, s.dimensions, strict=True))
    need(inside and u.element_type is s.element_type, f"update {u} does not fit into {s}")
    if not u.dynamic or whole is not s:
        return whole
    replaced = [f and n == d for f, n, d in zip(u.dynamic, u.dimensions, s.dimensions, strict=True)]
    return with_sizes(s, s.dimensions, [a or b for a, b in zip(dynamic_flags(s), replaced, strict=True)])


def gather(q: ShapeQuery) -> Shape:
    """Return the batch dimensions of the indices interleaved with the slice dimensions."""
    s, idx = array(q, 0), array(q, 1)
    offset_dims, collapsed = q.ints("offset_dims"), q.ints("collapsed_slice_dims")
    batching, sizes = q.ints("operand_batching_dims"), q.ints("slice_sizes")
    index_batching = q.ints("start_indices_batching_dims")
    ivd, start_map = q.attr("index_vector_dim"), q.ints("start_index_map")
    need(idx.element_type.is_integer, f"gather indices must be integers, got {idx}")
    need(0 <= ivd <= idx.rank, f"index_vector_dim {ivd} out of range for {idx}")
    need(len(sizes) == s.rank, f"slice_sizes {list(sizes)} must have one entry for each dimension of {s}")
    inside = all(0 <= n <= d or d == UNBOUNDED for n, d in zip(sizes, s.dimensions, strict=True))
    need(inside, f"slice_sizes {list(sizes)} exceed {s}")
    need(sorted(offset_dims) == list(offset_dims), f"offset_dims {list(offset_dims)} must ascend")
    need(sorted(collapsed) == list(collapsed), f"collapsed_slice_dims {list(collapsed)} must ascend")
    need(sorted(batching) == list(batching), f"operand_batching_dims {list(batching)} must ascend")
    distinct_dims((*collapsed, *batching), s.rank, "collapsed_slice_dims and operand_batching_dims")
    distinct_dims(start_map, s.rank, "start_index_map")
    _batching_pairs(s, idx, ivd, batching, index_batching)
    vector = idx.dimensions[ivd] if ivd < idx.rank else 1
    need(len(start_map) == vector, f"start_index_map {list(start_map)} must have {vector} entries")
    for d in (*collapsed, *batching):
        need(sizes[d] <= 1, f"slice size of collapsed or batching dimension {d} must be 1, is {sizes[d]}")
    batch = [n for k, n in enumerate(idx.dimensions) if k != ivd]
    window = [n for k, n in enumerate(sizes) if k not in collapsed and k not in batching]
    need(len(offset_dims) == len(window), f"offset_dims {list(offset_dims)} must have {len(window)} entries")
    rank = len(batch) + len(window)
    distinct_dims(offset_dims, rank, "offset_dims")
    gone = {*collapsed, *batching}
    whole = [f and sizes[k] == s.dimensions[k] for k, f in enumerate(dynamic_flags(s)) if k not in gone]
    flags = [f for k, f in enumerate(dynamic_flags(idx)) if k != ivd]
    from_batch, from_window = zip(batch, flags, strict=True), zip(window, whole, strict=True)
    offsets = set(offset_dims)
    out = [next(from_window) if k in offsets else next(from_batch) for k in range(rank)]
    return with_sizes(s, [n for n, _ in out], [f for _, f in out])


def _batching_pairs(s: Shape, idx: Shape, ivd: int, operand: tuple[int, ...], indices: tuple[int, ...]) -> None:
    """Check that the batching dimensions of operand and indices are paired and have equal sizes."""
    need(
        len(operand) == len(indices),
        f"batching dimensions differ in number: {list(operand)} of the operand, {list(indices)} of the indices",
    )
    distinct_dims(indices, idx.rank, "batching dimensions of the indices")
    need(ivd not in indices, f"index_vector_dim {ivd} cannot be a batching dimension of the indices")
    for a, b in zip(operand, indices, strict=True):
        need(
            fits(s.dimensions[a], idx.dimensions[b]),
            f"batching dimension {a} of {s} and {b} of {idx} must have one size",
        )


def scatter(q: ShapeQuery) -> Shape:
    """Return the shapes of the operands."""
    n = (len(q.operands) - 1) // 2
    need(len(q.operands) == 2 * n + 1, "scatter needs n operands, the indices, and n updates")
    idx = array(q, n)
    need(idx.element_type.is_integer, f"scatter indices must be integers, got {idx}")
    window, inserted = q.ints("update_window_dims"), q.ints("inserted_window_dims")
    batching, ivd = q.ints("input_batching_dims"), q.attr("index_vector_dim")
    to_operand = q.ints("scatter_dims_to_operand_dims")
    need(0 <= ivd <= idx.rank, f"index_vector_dim {ivd} out of range for {idx}")
    for dims, what in (
        (window, "update_window_dims"),
        (inserted, "inserted_window_dims"),
        (batching, "input_batching_dims"),
    ):
        need(sorted(dims) == list(dims), f"{what} {list(dims)} must ascend")
    # The other dimensions of the indices are batch dimensions; each index vector selects one window.
    batch = [d for k, d in enumerate(idx.dimensions) if k != ivd]
    vector = idx.dimensions[ivd] if ivd < idx.rank else 1
    need(len(to_operand) == vector, f"scatter_dims_to_operand_dims {list(to_operand)} must have {vector} entries")
    first = array(q, 0)
    for i in range(n):
        s, u = array(q, i), array(q, n + 1 + i)
        need(s.same_dimensions(first), f"scatter operands must have the same dimensions, got {first} and {s}")
        need(
            u.element_type is s.element_type or (u.element_type.is_float and s.element_type.is_float),
            f"update {u} must have the type of the operand {s}",
        )
        distinct_dims((*inserted, *batching), s.rank, "inserted_window_dims and input_batching_dims")
        distinct_dims((*to_operand, *batching), s.rank, "scatter_dims_to_operand_dims and input_batching_dims")
        distinct_dims(window, u.rank, "update_window_dims")
        _batching_pairs(s, idx, ivd, batching, q.ints("scatter_indices_batching_dims"))
        need(u.rank == len(batch) + len(window), f"update {u} must have rank {len(batch) + len(window)}")
        need(s.rank == len(window) + len(inserted) + len(batching), f"operand {s} does not fit the window dimensions")
        # An update has the kept operand dimensions as window, at most as large, and the batch dimensions.
        kept = [d for k, d in enumerate(s.dimensions) if k not in inserted and k not in batching]
        for at, d in zip(window, kept, strict=True):
            need(
                u.dimensions[at] <= d or d == UNBOUNDED,
                f"update window dimension {at} of {u} exceeds the operand {s}",
            )
        given = [d for k, d in enumerate(u.dimensions) if k not in window]
        need(
            all(fits(a, b) for a, b in zip(given, batch, strict=True)),
            f"update {u} does not have the batch dimensions {batch} of the indices {idx}",
        )
    _scatter_function(q, n)
    shapes = tuple(q.operands[:n])
    return shapes[0] if n == 1 else Shape(T.TUPLE, tuple_shapes=shapes)


def _scatter_function(q: ShapeQuery, n: int) -> None:
    from compiler.ir.shape_rules_reduce import check_reducer

    check_reducer(q.attr("to_apply"), q.operands[:n], [s.with_dimensions(()) for s in q.operands[:n]])


def pad(q: ShapeQuery) -> Shape:
    """Return the shape after edge and interior padding."""
    s, v = array(q, 0), array(q, 1)
    config: tuple[PadDim, ...] = q.attr("padding")
    need(v.is_scalar and v.element_type is s.element_type, f"pad value must be a {s.element_type.text} scalar, got {v}")
    need(len(config) == s.rank, f"padding has {len(config)} dimensions, {s} has {s.rank}")
    out = []
    for d, p in zip(s.dimensions, config, strict=True):
        need(p.interior >= 0, f"interior padding must not be negative, got {p.interior}")
        n = d + p.low + p.high + max(0, d - 1) * p.interior if d != UNBOUNDED else UNBOUNDED
        need(n >= 0 or d == UNBOUNDED, f"padding {p.low}_{p.high}_{p.interior} makes a dimension of size {d} negative")
        out.append(n)
    return with_sizes(s, out, dynamic_flags(s))


def reverse(q: ShapeQuery) -> Shape:
    """Return the shape of the operand."""
    s = array(q, 0)
    distinct_dims(q.ints("dimensions"), s.rank, "dimensions")
    return s


def slice_(q: ShapeQuery) -> Shape:
    """Return the shape of the slice."""
    s = array(q, 0)
    spec: tuple[SliceDim, ...] = q.attr("slice")
    need(len(spec) == s.rank, f"slice has {len(spec)} dimensions, {s} has {s.rank}")
    for d, n in zip(spec, s.dimensions, strict=True):
        if not (0 <= d.start <= d.limit and (d.limit <= n or n == UNBOUNDED) and d.stride > 0):
            raise ShapeError(f"slice [{d.start}:{d.limit}:{d.stride}] does not fit a dimension of size {n}")
    sizes = tuple(d.size for d in spec)
    return with_sizes(s, sizes, dynamic_flags(s)) if s.dynamic else s.with_dimensions(sizes)


def transpose(q: ShapeQuery) -> Shape:
    """Return the permuted dimensions."""
    s, dims = array(q, 0), q.ints("dimensions")
    need(sorted(dims) == list(range(s.rank)), f"dimensions {list(dims)} are not a permutation for {s}")
    flags = dynamic_flags(s)
    return with_sizes(s, [s.dimensions[d] for d in dims], [flags[d] for d in dims])


def _one_dimension(q: ShapeQuery) -> int:
    s, dims = array(q, 0), q.ints("dimensions")
    need(len(dims) == 1 and 0 <= dims[0] < s.rank, f"dimensions {list(dims)} must name one dimension of {s}")
    return dims[0]


def get_dimension_size(q: ShapeQuery) -> Shape:
    """Return s32[]."""
    _one_dimension(q)
    return array_shape(T.S32)


def set_dimension_size(q: ShapeQuery) -> Shape:
    """Return the shape with the dimension dynamic; a static shape may be declared if the size is the upper bound."""
    s, n, at = array(q, 0), array(q, 1), _one_dimension(q)
    need(n.is_scalar and n.element_type is T.S32, f"the size must be an s32 scalar, got {n}")
    flags = list(dynamic_flags(s))
    flags[at] = True
    return Shape(s.element_type, s.dimensions, s.layout, tuple(flags))
