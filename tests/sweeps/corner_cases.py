"""Edge cases of windows, convolutions, indexing, sorting and linear algebra."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from tests.sweeps.case import (
    FLOATS,
    INTEGERS,
    Array,
    Case,
    Tolerance,
    binary_computation,
    edges,
    generator,
    shape,
    simple,
    type_class,
    values,
)


def cases() -> Iterator[Case]:
    yield from _convolutions()
    yield from _windows()
    yield from _select_and_scatter()
    yield from _gathers()
    yield from _scatters()
    yield from _sorts()
    yield from _top_k()
    yield from _linear_algebra()
    yield from _batch_norm()


def _window_size(n: int, size: int, stride: int, low: int, high: int, lhs: int, rhs: int) -> int:
    wide = (n - 1) * lhs + 1 + low + high if n else low + high
    return max(0, (wide - ((size - 1) * rhs + 1)) // stride + 1)


# ---- convolution: all orders of dimensions, and all attributes with groups


def _convolutions() -> Iterator[Case]:
    lhs, rhs, out = {"b": 2, "f": 4, "0": 6, "1": 5}, {"i": 4, "o": 3, "0": 3, "1": 2}, {"b": 2, "f": 3, "0": 4, "1": 4}
    orders = [(a, "01io", "b01f") for a in map("".join, permutations("b01f"))]
    orders += [("b01f", k, "b01f") for k in map("".join, permutations("01io"))]
    orders += [("b01f", "01io", o) for o in map("".join, permutations("b01f"))]
    for a, k, o in dict.fromkeys(orders):
        dims = [tuple(sizes[c] for c in order) for sizes, order in ((lhs, a), (rhs, k), (out, o))]
        text = simple(
            "convolution", shape("f32", dims[2]), [shape("f32", d) for d in dims[:2]],
            f"window={{size=3x2}}, dim_labels={a}_{k}->{o}",
        )  # fmt: skip
        args = (values("f32", dims[0], 1), values("f32", dims[1], 2))
        yield Case("convolution", "f32", f"{a}_{k}->{o}", text, args, Tolerance(24, 3))
    grouped = {
        # name: size, stride, low, high, lhs dilation, rhs dilation, reversal, feature groups, batch groups
        "groups-dilated-reversed": (3, 2, 1, 2, 2, 2, 1, 2, 1),
        "groups-negative": (2, 1, -1, -2, 1, 1, 0, 2, 1),
        "groups-lhs-negative": (2, 1, -1, 0, 3, 1, 1, 2, 1),
        "batches-strided": (3, 2, 1, 0, 1, 2, 0, 1, 2),
        "batches-lhs-dilated": (2, 1, 1, 1, 2, 1, 1, 1, 2),
        "pad-everything": (2, 1, 7, 7, 1, 1, 0, 1, 1),
        "stride-past-the-end": (2, 9, 0, 0, 1, 1, 0, 1, 1),
        "window-larger-than-dilated": (5, 1, 2, 2, 2, 3, 1, 1, 1),
    }
    for name, (size, stride, low, high, lhs_by, rhs_by, turned, features, batches) in grouped.items():
        for t in ("f32", "f64", "bf16", "s32", "c64"):
            n = _window_size(8, size, stride, low, high, lhs_by, rhs_by)
            x, kernel, to = (4, 8, 4), (size, 4 // features, 6), (4 // batches, n, 6)
            window = f"size={size} stride={stride} pad={low}_{high} lhs_dilate={lhs_by} rhs_dilate={rhs_by}"
            window += f" rhs_reversal={turned}"
            counts = (f", feature_group_count={features}" if features > 1 else "") + (
                f", batch_group_count={batches}" if batches > 1 else ""
            )
            text = simple(
                "convolution", shape(t, to), [shape(t, x), shape(t, kernel)],
                f"window={{{window}}}, dim_labels=b0f_0io->b0f{counts}",
            )  # fmt: skip
            kind = type_class(t)
            tolerance = None if kind.is_integer else Tolerance(24 if kind.bits >= 32 else 4, 3)
            yield Case("convolution", t, name, text, (values(t, x, 1), values(t, kernel, 2)), tolerance)


# ---- windows

_RANKS = {
    "rank-1": ((9,), "{size=3 stride=2 pad=1_1}", (5,)),
    "rank-3": ((3, 4, 5), "{size=1x2x3 pad=0_0x1_0x1_1}", (3, 4, 5)),
    "rank-4": ((2, 5, 4, 3), "{size=1x3x2x1 stride=1x2x1x1}", (2, 2, 3, 3)),
    "whole": ((3, 4), "{size=3x4}", (1, 1)),
    "size-1": ((3, 4), "{size=1x1 stride=2x3}", (2, 2)),
    "only-padding": ((2, 2), "{size=2x1 stride=5x1 pad=4_4x0_0}", (2, 2)),
}


def _neutral(op: str, t: str) -> Array:
    kind = type_class(t)
    if kind.is_float:
        return np.array({"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[op]).astype(kind.dtype)
    low, high = (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
    ones = -1 if kind.is_signed else high
    number = {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "and": ones, "or": 0, "xor": 0}[op]
    return np.array(number).astype(kind.dtype)


def _windows() -> Iterator[Case]:
    for name, (dims, window, to) in _RANKS.items():
        for op in ("add", "maximum"):
            for t in ("f32", "s32"):
                yield _window_case(op, t, name, dims, window, to)
    dims, window, to = (6, 5), "{size=3x2 stride=2x1 pad=1_1x0_1}", (3, 5)
    for t in INTEGERS:
        for op in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
            if type_class(t).bits >= 8:
                yield _window_case(op, t, "types", dims, window, to)
    for t in FLOATS:
        for op in ("multiply", "minimum"):
            yield _window_case(op, t, "types", dims, window, to)


def _window_case(op: str, t: str, name: str, dims: tuple[int, ...], window: str, to: tuple[int, ...]) -> Case:
    f = binary_computation("f", op, t)
    text = simple("reduce-window", shape(t, to), [shape(t, dims), shape(t)], f"window={window}, to_apply=f", f)
    kind = type_class(t)
    tolerance = Tolerance(16 if kind.bits >= 32 else 8, 3) if kind.is_float and op in ("add", "multiply") else None
    return Case("reduce-window", t, f"{op}-{name}", text, (values(t, dims), _neutral(op, t)), tolerance)


def _select_and_scatter() -> Iterator[Case]:
    dims, to = (2, 7, 6), (2, 3, 3)
    window = "{size=1x3x3 stride=1x2x2 pad=0_0x0_0x1_0}"
    for t in ("f32", "f64", "f16", "bf16", "s32", "s64", "u8", "s8"):
        for scatter in ("add", "multiply", "maximum"):
            for start in (0, 2):
                direction = "GE" if scatter != "maximum" else "LT"
                computations = (
                    f"s {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
                    f"  ROOT r = pred[] compare(a, b), direction={direction}\n}}\n"
                ) + binary_computation("f", scatter, t)
                text = simple(
                    "select-and-scatter", shape(t, dims), [shape(t, dims), shape(t, to), shape(t)],
                    f"window={window}, select=s, scatter=f", computations,
                )  # fmt: skip
                # Few distinct values, so that there are ties.
                x = np.round(values("f32", dims, scatter, 0, 3)).astype(type_class(t).dtype)
                args = (x, values(t, to, "source"), np.array(start).astype(type_class(t).dtype))
                kind = type_class(t)
                tolerance = Tolerance(16 if kind.bits >= 32 else 4, 3) if kind.is_float else None
                yield Case("select-and-scatter", t, f"overlap-{scatter}-from{start}", text, args, tolerance)


# ---- gather and scatter


def _at(t: str, dims: tuple[int, ...], low: int, high: int) -> Array:
    return (
        generator("at", t, dims).integers(max(low, 0) if t[0] == "u" else low, high, dims).astype(type_class(t).dtype)
    )


_GATHERS = {
    # name: operand, indices, attributes, slice sizes, result
    "two-batching": (
        (2, 3, 5, 4), (3, 2, 6, 1),
        "offset_dims={3}, collapsed_slice_dims={2}, start_index_map={2}, operand_batching_dims={0,1}, "
        "start_indices_batching_dims={1,0}, index_vector_dim=3", "{1,1,1,4}", (3, 2, 6, 4),
    ),
    "vector-in-the-middle": (
        (6, 7), (3, 2, 4), "offset_dims={0}, collapsed_slice_dims={0}, start_index_map={1,0}, index_vector_dim=1",
        "{1,3}", (3, 3, 4),
    ),
    "offsets-around": (
        (4, 5, 6), (2, 3, 2), "offset_dims={0,2,4}, collapsed_slice_dims={}, start_index_map={2,0}, index_vector_dim=2",
        "{2,5,3}", (2, 2, 5, 3, 3),
    ),
    "no-index": ((3, 4), (2, 0), "offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={}, index_vector_dim=1",
                 "{3,2}", (2, 3, 2)),
    "whole": ((3, 4), (5, 1), "offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1",
              "{3,4}", (5, 3, 4)),
    "scalar-result": ((7,), (1,), "offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=0",
                      "{1}", ()),
    "one": ((1, 1), (1, 1), "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1",
            "{1,1}", (1, 1)),
}  # fmt: skip


def _gathers() -> Iterator[Case]:
    for name, (dims, at, attributes, sizes, to) in _GATHERS.items():
        for t in ("f32", "s64", "bf16", "pred", "c64"):
            for index in ("s32", "u8", "s16", "u64") if t == "f32" else ("s32",):
                text = simple(
                    "gather", shape(t, to), [shape(t, dims), shape(index, at)], f"{attributes}, slice_sizes={sizes}"
                )
                args = (values(t, dims), _at(index, at, -4, 9))
                yield Case("gather", t, f"{name}-{index}", text, args)
    text = simple(
        "gather", "f32[2,2]", ["f32[5,2]", "s64[2,1]"],
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}",
    )  # fmt: skip
    far = np.array([[2**62], [-(2**62)]], np.int64)
    yield Case("gather", "f32", "far-out", text, (values("f32", (5, 2)), far))


_SCATTERS = {
    # name: operand, indices, updates, attributes
    "two-batching": (
        (2, 3, 5, 4), (3, 2, 6, 1), (3, 2, 6, 4),
        "update_window_dims={3}, inserted_window_dims={2}, scatter_dims_to_operand_dims={2}, "
        "input_batching_dims={0,1}, scatter_indices_batching_dims={1,0}, index_vector_dim=3",
    ),
    "vector-in-the-middle": (
        (6, 7), (3, 2, 4), (3, 3, 4),
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={1,0}, index_vector_dim=1",
    ),
    "window-around": (
        (4, 5, 6), (2, 2), (2, 2, 5),
        "update_window_dims={0,2}, inserted_window_dims={2}, scatter_dims_to_operand_dims={2,0}, index_vector_dim=1",
    ),
    "one-row": (
        (5, 3), (1,), (3,),
        "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=0",
    ),
    "empty-operand": (
        (0, 3), (2, 1), (2, 3),
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1",
    ),
}  # fmt: skip


def _scatters() -> Iterator[Case]:
    for name, (dims, at, upd, attributes) in _SCATTERS.items():
        for op, t in (("add", "f32"), ("maximum", "f32"), ("add", "s32"), ("xor", "u32"), ("and", "s8"), ("or", "pred"),
                      ("add", "bf16"), ("multiply", "c64"), ("minimum", "f64")):  # fmt: skip
            for index in ("s32", "s64", "u8") if t == "f32" else ("s32",):
                text = simple(
                    "scatter", shape(t, dims), [shape(t, dims), shape(index, at), shape(t, upd)],
                    f"{attributes}, to_apply=f", binary_computation("f", op, t),
                )  # fmt: skip
                args = (values(t, dims), _at(index, at, -2, 8), values(t, upd, "update"))
                kind = type_class(t)
                tolerance = Tolerance(16 if kind.bits >= 32 else 8, 3) if kind.is_float or kind.is_complex else None
                yield Case("scatter", t, f"{name}-{op}-{index}", text, args, tolerance)
    for said in ("unique_indices=true", "indices_are_sorted=true", "indices_are_sorted=true, unique_indices=true"):
        attributes = (
            _SCATTERS["one-row"][3]
            .replace("index_vector_dim=0", "index_vector_dim=1")
            .replace("dims={0}, i", "dims={1}, i", 1)
        )
        text = simple(
            "scatter", "f32[6,3]", ["f32[6,3]", "s32[3,1]", "f32[3,3]"], f"{attributes}, {said}, to_apply=f",
            binary_computation("f", "add", "f32"),
        )  # fmt: skip
        args = (values("f32", (6, 3)), np.array([[0], [2], [5]], np.int32), values("f32", (3, 3), "update"))
        yield Case("scatter", "f32", said.replace(", ", "-"), text, args, Tolerance(8, 1))


# ---- sorting


def _compare(types: list[str], direction: str, kind: str = "") -> str:
    lines = [f"  p{i} = {t}[] parameter({i})" for i, t in enumerate(t for t in types for _ in range(2))]
    more = f", type={kind}" if kind else ""
    return "f {\n" + "\n".join(lines) + f"\n  ROOT r = pred[] compare(p0, p1), direction={direction}{more}\n}}\n"


def _sorts() -> Iterator[Case]:
    payloads = ("bf16", "c64", "pred", "f64", "u16", "s8", "f8e4m3fn")
    for key in ("f32", "s64", "u16", "f64"):
        for direction in ("LT", "GT"):
            types = [key, "s32", *payloads]
            dims = (2, 37)
            shapes = [shape(t, dims) for t in types]
            text = simple(
                "sort", f"({', '.join(shapes)})", shapes, "dimensions={1}, is_stable=true, to_apply=f",
                _compare(types, direction),
            )  # fmt: skip
            keys = np.asarray(values("s32", dims, key) % 9).astype(type_class(key).dtype)
            args = (keys, np.arange(74, dtype=np.int32).reshape(dims), *(values(t, dims) for t in payloads))
            yield Case("sort", key, f"nine-operands-{direction}", text, args)
    for t in FLOATS:
        x = np.concatenate([edges(t), -edges(t), values(t, (30,))])
        for direction in ("LT", "GT"):
            text = simple(
                "sort", f"({shape(t, x.shape)}, {shape('s32', x.shape)})", [shape(t, x.shape), shape("s32", x.shape)],
                "dimensions={0}, is_stable=true, to_apply=f", _compare([t, "s32"], direction, "TOTALORDER"),
            )  # fmt: skip
            yield Case("sort", t, f"edges-with-places-{direction}", text, (x, np.arange(x.size, dtype=np.int32)))
    sizes: tuple[tuple[tuple[int, ...], int], ...] = (
        ((1,), 0), ((0,), 0), ((2, 1), 1), ((1, 1, 1), 1), ((3, 4, 2, 2), 2), ((1000,), 0),
    )  # fmt: skip
    for some, d in sizes:
        for stable in ("true", "false"):
            text = simple(
                "sort", shape("f32", some), [shape("f32", some)], f"dimensions={{{d}}}, is_stable={stable}, to_apply=f",
                _compare(["f32"], "LT"),
            )  # fmt: skip
            yield Case("sort", "f32", f"sizes{list(some)}by{d}{stable}", text, (values("f32", some),))


def _top_k() -> Iterator[Case]:
    for t in FLOATS:
        x = np.concatenate([edges(t), edges(t)[::-1]])
        for k in (1, 7, x.size):
            text = simple(
                "topk", f"({shape(t, (k,))}, {shape('s32', (k,))})", [shape(t, x.shape)], f"k={k}, largest=true"
            )
            yield Case("topk", t, f"nan-and-ties-k{k}", text, (x,))
    for t in ("f32", "s32", "u8", "s16", "u32", "s8"):
        x = np.asarray(values("s32", (3, 50), t) % 3 + (0 if t[0] != "u" else 3)).astype(type_class(t).dtype)
        text = simple(
            "topk", f"({shape(t, (3, 20))}, {shape('s32', (3, 20))})", [shape(t, (3, 50))], "k=20, largest=true"
        )
        yield Case("topk", t, "many-ties", text, (x,))


# ---- linear algebra and normalisation


def _definite(t: str, dims: tuple[int, ...]) -> Array:
    kind, n = type_class(t), dims[-1]
    rng = generator("corner", t, dims)
    a = rng.standard_normal(dims) + (1j * rng.standard_normal(dims) if kind.is_complex else 0)
    return np.asarray(a @ np.swapaxes(a, -1, -2).conj() + n * np.eye(n)).astype(kind.dtype)


def _linear_algebra() -> Iterator[Case]:
    for t in ("f32", "f64", "c64", "c128"):
        for lower in ("true", "false"):
            keep = np.tril if lower == "true" else np.triu
            # The other triangle must not be read.
            x = keep(_definite(t, (2, 1, 3, 3))) + np.asarray(99 - keep(np.full((3, 3), 99.0)))
            text = simple("cholesky", shape(t, (2, 1, 3, 3)), [shape(t, (2, 1, 3, 3))], f"lower={lower}")
            yield Case(
                "cholesky", t, f"other-triangle-{lower}", text, (x.astype(type_class(t).dtype),), Tolerance(64, 1)
            )
            not_definite = np.diag([4, -1, 9]).astype(type_class(t).dtype)
            text = simple("cholesky", shape(t, (3, 3)), [shape(t, (3, 3))], f"lower={lower}")
            yield Case("cholesky", t, f"not-definite-{lower}", text, (not_definite,), Tolerance(64, 1))
            for n, m in ((1, 1), (0, 2), (3, 0), (5, 1), (17, 3)):
                a = keep(_definite(t, (n, n))) + np.asarray(99 - keep(np.full((n, n), 99.0)))
                text = simple(
                    "triangular-solve", shape(t, (n, m)), [shape(t, (n, n)), shape(t, (n, m))],
                    f"left_side=true, lower={lower}, transpose_a=NO_TRANSPOSE, unit_diagonal=false",
                )  # fmt: skip
                args = (a.astype(type_class(t).dtype), values(t, (n, m)))
                yield Case(
                    "triangular-solve", t, f"sizes{n}x{m}-other-triangle-{lower}", text, args, Tolerance(512, 3000)
                )


def _batch_norm() -> Iterator[Case]:
    for t in ("f32", "f64"):
        x, n = shape(t, (4, 3)), shape(t, (3,))
        for epsilon in ("0.001", "0"):
            constant = np.broadcast_to(np.array([1, 2, 3]).astype(type_class(t).dtype), (4, 3)).copy()
            scale, offset, mean = (values(t, (3,), k, 0.5, 2) for k in range(3))
            zero = np.zeros(3).astype(type_class(t).dtype)
            attributes = f"epsilon={epsilon}, feature_index=1"
            text = simple("batch-norm-training", f"({x}, {n}, {n})", [x, n, n], attributes)
            yield Case(
                "batch-norm-training", t, f"no-variance-{epsilon}", text, (constant, scale, offset), Tolerance(64, 1)
            )
            text = simple("batch-norm-inference", x, [x, n, n, n, n], attributes)
            args = (values(t, (4, 3)), scale, offset, mean, zero)
            yield Case("batch-norm-inference", t, f"no-variance-{epsilon}", text, args, Tolerance(64, 1))
            text = simple("batch-norm-grad", f"({x}, {n}, {n})", [x, n, n, n, x], attributes)
            args = (values(t, (4, 3)), scale, mean, zero, values(t, (4, 3), "grad"))
            yield Case("batch-norm-grad", t, f"no-variance-{epsilon}", text, args, Tolerance(256, 10))
        x = shape(t, (1, 3))
        text = simple("batch-norm-training", f"({x}, {n}, {n})", [x, n, n], "epsilon=0.001, feature_index=1")
        one = (values(t, (1, 3)), values(t, (3,), 1), values(t, (3,), 2))
        yield Case("batch-norm-training", t, "batch-of-one", text, one, Tolerance(64, 1))
