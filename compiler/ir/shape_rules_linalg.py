"""Shape rules of dots, convolutions, batch norms, matrix decompositions, FFTs and random numbers."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.attributes import ConvDimLabels, Window
from compiler.ir.shape import UNBOUNDED, Shape, array_shape, tuple_shape
from compiler.ir.shape_query import (
    ShapeQuery,
    array,
    declared,
    distinct_dims,
    dynamic_flags,
    fits,
    higher_precision,
    need,
    with_sizes,
)
from compiler.ir.shape_rules_reduce import window_output
from compiler.ir.types import PrimitiveType as T

_COMPLEX = {T.F32: T.C64, T.F64: T.C128}
_COMPONENT = {T.C64: T.F32, T.C128: T.F64}


def _dot_dims(q: ShapeQuery, a: Shape, b: Shape) -> None:
    lc, rc = q.ints("lhs_contracting_dims"), q.ints("rhs_contracting_dims")
    lb, rb = q.ints("lhs_batch_dims"), q.ints("rhs_batch_dims")
    need(len(lc) == len(rc), f"contracting dimensions differ in number: {list(lc)} and {list(rc)}")
    need(len(lb) == len(rb), f"batch dimensions differ in number: {list(lb)} and {list(rb)}")
    distinct_dims((*lc, *lb), a.rank, "lhs batch and contracting dimensions")
    distinct_dims((*rc, *rb), b.rank, "rhs batch and contracting dimensions")
    for i, j in zip((*lc, *lb), (*rc, *rb), strict=True):
        need(
            fits(a.dimensions[i], b.dimensions[j]),
            f"dimension {i} of {a} and dimension {j} of {b} must have the same size",
        )


def _dot_result(q: ShapeQuery, a: Shape, b: Shape, extra: Sequence[int] = (), rhs_gone: Sequence[int] = ()) -> Shape:
    """Return the dot's result: `extra`, batch, remaining lhs, and remaining rhs dimensions."""
    left, right = dynamic_flags(a), dynamic_flags(b)
    lb, rb = q.ints("lhs_batch_dims"), q.ints("rhs_batch_dims")
    # As in XLA, a batch dimension is dynamic if that of the lhs is.
    lhs_gone = {*q.ints("lhs_contracting_dims"), *lb}
    gone = {*q.ints("rhs_contracting_dims"), *rb, *rhs_gone}
    dims = [(n, False) for n in extra]
    dims += [(a.dimensions[i], left[i]) for i in lb]
    dims += [(a.dimensions[i], left[i]) for i in range(a.rank) if i not in lhs_gone]
    dims += [(b.dimensions[j], right[j]) for j in range(b.rank) if j not in gone]
    t = higher_precision(a.element_type, b.element_type) if q.declared is None else q.declared.element_type
    return with_sizes(Shape(t), [n for n, _ in dims], [f for _, f in dims])


def dot(q: ShapeQuery) -> Shape:
    """Return the batch dimensions, then the remaining dimensions of lhs and rhs."""
    a, b = array(q, 0), array(q, 1)
    _dot_dims(q, a, b)
    return _dot_result(q, a, b)


def ragged_dot(q: ShapeQuery) -> Shape:
    """Return the result of a ragged dot, whose ragged lhs dimension is free, contracting or batch."""
    a, b, groups = array(q, 0), array(q, 1), array(q, 2)
    _dot_dims(q, a, b)
    ragged, group_dims = q.ints("lhs_ragged_dims"), q.ints("rhs_group_dims")
    need(len(ragged) == 1 and 0 <= ragged[0] < a.rank, f"needs one ragged dimension of {a}, got {list(ragged)}")
    need(groups.rank > 0 and groups.element_type.is_integer, f"group sizes must be a vector of integers, got {groups}")
    r, batch, contracting = ragged[0], q.ints("lhs_batch_dims"), q.ints("lhs_contracting_dims")
    free = tuple(d for d in range(a.rank) if d not in batch and d not in contracting)
    role = batch if r in batch else contracting if r in contracting else free
    before = role[: role.index(r)] if role is batch else (*batch, *role[: role.index(r)])
    want = [a.dimensions[d] for d in before]
    need(
        groups.rank == 1 or list(groups.dimensions[:-1]) == want,
        f"group sizes must have dimensions {[*want, groups.dimensions[-1]]}, got {groups}",
    )
    count = groups.dimensions[-1]
    distinct_dims(group_dims, b.rank, "rhs_group_dims")
    taken = {*q.ints("rhs_batch_dims"), *q.ints("rhs_contracting_dims")}
    need(not taken & set(group_dims), f"rhs_group_dims {list(group_dims)} cannot be batch or contracting dimensions")
    if role is not free:
        need(not group_dims, "rhs_group_dims must be empty when the ragged dimension is batch or contracting")
        return _dot_result(q, a, b, extra=(count,) if role is contracting else ())
    need(len(group_dims) == 1, f"needs one rhs group dimension, got {list(group_dims)}")
    need(
        fits(b.dimensions[group_dims[0]], count), f"rhs group dimension of {b} must have the size {count} of the groups"
    )
    return _dot_result(q, a, b, rhs_gone=group_dims)


def scaled_dot(q: ShapeQuery) -> Shape:
    """Return the result of a dot whose operands have scales: per block, a scalar, or a bf16 dummy of one element."""
    need(len(q.operands) == 4, f"takes lhs, rhs, lhs_scale, rhs_scale; got {len(q.operands)} operands")
    a, b = array(q, 0), array(q, 1)
    _dot_dims(q, a, b)
    for operand, i in ((a, 2), (b, 3)):
        scale = array(q, i)
        dummy = scale.element_type is T.BF16 and operand.element_type is T.BF16 and scale.num_elements == 1
        if dummy:
            continue
        need(scale.rank == operand.rank, f"scale {scale} must have the rank of its operand {operand}")
        for n, m in zip(operand.dimensions, scale.dimensions, strict=True):
            need(m > 0 and n % m == 0, f"dimensions of {operand} must be multiples of those of its scale {scale}")
    need(not (q.operands[2].is_scalar and q.operands[3].is_scalar), "one of the two scales must not be a scalar")
    return _dot_result(q, a, b)


def convolution(q: ShapeQuery) -> Shape:
    """Return batch, output features and window positions, in the order of the dim labels."""
    a, b = array(q, 0), array(q, 1)
    labels: ConvDimLabels = q.attr("dim_labels")
    for s, text, what in ((a, labels.lhs, "input"), (b, labels.rhs, "kernel")):
        need(s.rank == len(text), f"{what} {s} does not have the rank of dim_labels {labels}")
    spatial = sorted(c for c in labels.lhs if c.isdigit())
    window: Window = q.attributes.get("window", Window())
    groups, batch_groups = q.attributes.get("feature_group_count", 1), q.attributes.get("batch_group_count", 1)
    batch, feature = a.dimensions[labels.lhs.index("b")], a.dimensions[labels.lhs.index("f")]
    k_in, k_out = b.dimensions[labels.rhs.index("i")], b.dimensions[labels.rhs.index("o")]
    need(groups > 0 and batch_groups > 0, "group counts must be positive")
    need(groups == 1 or batch_groups == 1, "feature_group_count and batch_group_count cannot both exceed 1")
    need(
        UNBOUNDED in (feature, k_in) or feature == k_in * groups,
        f"input features {feature} must be kernel inputs {k_in} x {groups} groups",
    )
    need(k_out % groups == 0, f"output features {k_out} must be a multiple of feature_group_count {groups}")
    need(k_out % batch_groups == 0, f"output features {k_out} must be a multiple of batch_group_count {batch_groups}")
    need(batch % batch_groups == 0, f"batch {batch} must be a multiple of batch_group_count {batch_groups}")
    need(len(window.dims) == len(spatial), f"window must have {len(spatial)} dimensions")
    for c, w in zip(spatial, window.dims, strict=True):
        n = b.dimensions[labels.rhs.index(c)]
        need(fits(w.size, n), f"window size {w.size} differs from kernel size {n} in spatial dimension {c}")
    sizes = window_output(window, [a.dimensions[labels.lhs.index(c)] for c in spatial])
    by_label = {"b": batch // batch_groups, "f": k_out} | dict(zip(spatial, sizes, strict=True))
    left, right = (dict(zip(text, dynamic_flags(s), strict=True)) for s, text in ((a, labels.lhs), (b, labels.rhs)))
    need(not right["o"], f"the kernel's output features cannot be dynamic: {b}")
    flags = {"b": left["b"], "f": False} | {c: left[c] or right[c] for c in spatial}
    t = higher_precision(a.element_type, b.element_type) if q.declared is None else q.declared.element_type
    return with_sizes(Shape(t), [by_label[c] for c in labels.out], [flags[c] for c in labels.out])


def _feature_vector(q: ShapeQuery, vectors: Sequence[int]) -> tuple[Shape, Shape]:
    """Return the shape of the operand, and that of its per-feature vectors, which the operands `vectors` must have."""
    s, f = array(q, 0), q.attr("feature_index")
    need(s.element_type.is_float, f"takes floating-point numbers, got {s}")
    need(0 <= f < s.rank, f"feature_index {f} out of range for {s}")
    vector = with_sizes(s, (s.dimensions[f],), (dynamic_flags(s)[f],))
    for i in vectors:
        need(array(q, i).compatible(vector), f"operand {i} must be {vector}, is {q.operands[i]}")
    return s, vector


def batch_norm_training(q: ShapeQuery) -> Shape:
    """Return (normalized, mean, variance)."""
    s, vector = _feature_vector(q, (1, 2))
    return tuple_shape(s, vector, vector)


def batch_norm_inference(q: ShapeQuery) -> Shape:
    """Return the shape of the operand."""
    return _feature_vector(q, (1, 2, 3, 4))[0]


def batch_norm_grad(q: ShapeQuery) -> Shape:
    """Return the gradients of (operand, scale, offset)."""
    s, vector = _feature_vector(q, (1, 2, 3))
    need(array(q, 4).compatible(s), f"operand 4, the output's gradient, must be {s}, is {q.operands[4]}")
    return tuple_shape(s, vector, vector)


def cholesky(q: ShapeQuery) -> Shape:
    """Return the shape of the operand, a batch of square matrices."""
    s = array(q, 0)
    need(s.element_type.is_float or s.element_type.is_complex, f"takes floating-point or complex numbers, got {s}")
    need(s.rank >= 2 and fits(s.dimensions[-1], s.dimensions[-2]), f"cholesky needs square matrices, got {s}")
    return s


def triangular_solve(q: ShapeQuery) -> Shape:
    """Return the shape of the right-hand side."""
    a, b = array(q, 0), array(q, 1)
    t = a.element_type
    need((t.is_float or t.is_complex) and b.element_type is t, f"takes floating-point or complex numbers, got {a}, {b}")
    need(a.rank == b.rank >= 2, f"operands must have one rank of at least 2, got {a} and {b}")
    need(fits(a.dimensions[-1], a.dimensions[-2]), f"the left operand must hold square matrices, is {a}")
    n = b.dimensions[-2] if q.attributes.get("left_side", False) else b.dimensions[-1]
    need(fits(a.dimensions[-1], n), f"cannot solve: the shared dimension of {a} and {b} differs")
    need(a.dimensions[:-2] == b.dimensions[:-2], f"batch dimensions of {a} and {b} differ")
    return b


def fft(q: ShapeQuery) -> Shape:
    """Return the shape of the result; RFFT keeps n // 2 + 1 elements of the last dimension, and IRFFT restores n."""
    s, length, kind = array(q, 0), q.ints("fft_length"), q.attr("fft_type")
    n, t = len(length), s.element_type
    need(1 <= n <= 3 and s.rank >= n, f"fft_length {list(length)} does not fit {s}")
    kept, given = s.dimensions[: s.rank - n], s.dimensions[s.rank - n :]
    if kind == "RFFT":
        need(t in _COMPLEX, f"RFFT takes f32 or f64, got {s}")
        need(all(fits(a, b) for a, b in zip(given, length, strict=True)), f"fft_length {list(length)} does not fit {s}")
        last = length[-1] // 2 + 1 if length[-1] else 0
        return with_sizes(Shape(_COMPLEX[t]), (*kept, *length[:-1], last), dynamic_flags(s))
    need(t.is_complex, f"{kind} takes complex numbers, got {s}")
    if kind == "IRFFT":
        want = (*length[:-1], length[-1] // 2 + 1 if length[-1] else 0)
        need(given == want or given == (*length[:-1], length[-1] // 2 + 1), f"{s} must end in {list(want)}")
        return with_sizes(Shape(_COMPONENT[t]), (*kept, *length), dynamic_flags(s))
    return s


def rng(q: ShapeQuery) -> Shape:
    """Return the declared shape, whose element type both parameters have."""
    d = declared(q)
    need(len(q.operands) == 2, f"takes two parameters of the distribution, got {len(q.operands)}")
    for i in range(2):
        s = array(q, i)
        need(
            s.is_scalar and s.element_type is d.element_type,
            f"operand {i} must be a {d.element_type.text} scalar, is {s}",
        )
    need(d.is_array and not d.element_type.is_complex, f"cannot draw {d}")
    need(q.attr("distribution") != "rng_normal" or d.element_type.is_float, f"rng_normal draws floats, not {d}")
    return d


def rng_bit_generator(q: ShapeQuery) -> Shape:
    """Return the declared shape: (new state, bits), or the bits only."""
    s, d = q.operands[0], declared(q)
    if d.is_tuple:
        need(len(d.tuple_shapes) == 2, f"must yield (state, bits), is declared as {d}")
        need(d.tuple_shapes[0].compatible(s), f"the new state {d.tuple_shapes[0]} must have the old one's shape {s}")
    bits = d.tuple_shapes[1] if d.is_tuple else d
    need(bits.is_array and (bits.element_type.is_integer or bits.element_type.is_float), f"cannot draw bits as {bits}")
    return d


def rng_state(q: ShapeQuery) -> Shape:
    """Return u64[2]."""
    return array_shape(T.U64, 2)
