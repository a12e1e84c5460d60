"""Cases of reductions, windows, scans, products, convolutions, FFT and linear algebra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.sweeps.case import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    SMALL_FLOATS,
    Array,
    Case,
    Tolerance,
    binary_computation,
    generator,
    quarters,
    shape,
    simple,
    type_class,
    values,
)

REDUCERS = {
    "add": ("pred", *FLOATS, *INTEGERS, *COMPLEX),
    "multiply": ("pred", *FLOATS, *INTEGERS, *COMPLEX),
    "maximum": ("pred", *FLOATS, *INTEGERS),
    "minimum": ("pred", *FLOATS, *INTEGERS),
    "and": ("pred", *INTEGERS),
    "or": ("pred", *INTEGERS),
    "xor": ("pred", *INTEGERS),
}
_IDENTITY = {"add": 0, "multiply": 1, "or": 0, "xor": 0}


def cases() -> Iterator[Case]:
    yield from _reduce()
    yield from _map()
    yield from _reduce_window()
    yield from _select_and_scatter()
    yield from _scan()
    yield from _dot()
    yield from _fft()
    yield from _linear_algebra()
    yield from _batch_norm()


def _sum_tolerance(t: str, count: int = 10) -> Tolerance | None:
    kind = type_class(t)
    if not (kind.is_float or kind.is_complex):
        return None
    return Tolerance(4 * count**0.5 if kind.bits >= 32 else count, 3)


def _init(op: str, t: str) -> Array:
    """Return the op's neutral element, because XLA may combine the initial value more than once."""
    kind = type_class(t)
    if op in _IDENTITY:
        return np.array(_IDENTITY[op]).astype(kind.dtype)
    if kind.is_float:
        return np.array(-np.inf if op == "maximum" else np.inf).astype(kind.dtype)
    if t == "pred":
        return np.array(op != "maximum")
    low, high = (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
    number = {"maximum": low, "minimum": high, "and": -1 if kind.is_signed else high}[op]
    return np.array(number).astype(kind.dtype)


def _reduce() -> Iterator[Case]:
    for op, types in REDUCERS.items():
        for t in types:
            shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = [((3, 4, 5), (1,)), ((3, 4, 5), (0, 2))]
            if t in ("f32", "s32"):
                shapes = [
                    *shapes,
                    ((40,), (0,)),
                    ((0, 3), (0,)),
                    ((3, 0), (0,)),
                    ((1, 1), (0, 1)),
                    ((4,), ()),
                    ((5, 2), (1, 0)),
                ]
            for dims, over in shapes:
                to = tuple(n for d, n in enumerate(dims) if d not in over)
                attributes = f"dimensions={{{','.join(map(str, over))}}}, to_apply=f"
                text = simple(
                    "reduce", shape(t, to), [shape(t, dims), shape(t)], attributes, binary_computation("f", op, t)
                )
                args = (values(t, dims, op), _init(op, t))
                fast = t in ("f32", "s32", "bf16", "pred") and dims == (3, 4, 5)
                exact = op in ("maximum", "minimum")
                yield Case(
                    "reduce",
                    t,
                    f"{op}{list(dims)}{list(over)}",
                    text,
                    args,
                    None if exact else _sum_tolerance(t, 12),
                    fast,
                )
    yield from _general_reduce()


_ARGMAX = """f {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  keep = pred[] compare(a, b), direction=GE
  v = f32[] select(keep, a, b)
  k = s32[] select(keep, i, j)
  ROOT t = (f32[], s32[]) tuple(v, k)
}
"""
_LOGADDEXP = """f {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  m = f32[] maximum(a, b)
  x = f32[] subtract(a, m)
  y = f32[] subtract(b, m)
  p = f32[] exponential(x)
  q = f32[] exponential(y)
  s = f32[] add(p, q)
  l = f32[] log(s)
  ROOT r = f32[] add(l, m)
}
"""
_BRANCHING = """yes {
  p = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(p), index=0
  b = f32[] get-tuple-element(p), index=1
  ROOT r = f32[] add(a, b)
}
no {
  p = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(p), index=0
  ROOT r = f32[] negate(a)
}
f {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  less = pred[] compare(a, b), direction=LT
  both = (f32[], f32[]) tuple(a, b)
  ROOT r = f32[] conditional(less, both, both), true_computation=yes, false_computation=no
}
"""


def _general_reduce() -> Iterator[Case]:
    for dims, over in (((4, 9), (1,)), ((4, 9), (0,)), ((3, 700), (1,)), ((3, 4), (0, 1))):
        to = tuple(n for d, n in enumerate(dims) if d not in over)
        x, at = values("f32", dims), np.arange(np.prod(dims), dtype=np.int32).reshape(dims)
        attributes = f"dimensions={{{','.join(map(str, over))}}}, to_apply=f"
        operands = [shape("f32", dims), shape("s32", dims), "f32[]", "s32[]"]
        text = simple("reduce", f"({shape('f32', to)}, {shape('s32', to)})", operands, attributes, _ARGMAX)
        args = (x, at, np.array(-np.inf, np.float32), np.array(-1, np.int32))
        yield Case("reduce", "f32", f"argmax{list(dims)}{list(over)}", text, args, None, True)
        text = simple("reduce", shape("f32", to), [shape("f32", dims), "f32[]"], attributes, _LOGADDEXP)
        yield Case(
            "reduce", "f32", f"logaddexp{list(dims)}{list(over)}", text, (x, args[2]), Tolerance(64), dims == (4, 9)
        )
    text = simple(
        "reduce",
        "f32[3]",
        ["f32[3,5]", "f32[]"],
        "dimensions={1}, to_apply=f",
        binary_computation("f", "subtract", "f32"),
    )
    yield Case(
        "reduce", "f32", "subtract", text, (values("f32", (3, 5)), np.array(0, np.float32)), Tolerance(8, 1), True
    )
    text = simple("reduce", "f32[3]", ["f32[3,5]", "f32[]"], "dimensions={1}, to_apply=f", _BRANCHING)
    yield Case(
        "reduce", "f32", "branching", text, (values("f32", (3, 5)), np.array(0, np.float32)), Tolerance(8, 1), True
    )


def _map() -> Iterator[Case]:
    for t in (*FLOATS, *INTEGERS):
        for dims in ((), (5,), (0, 2), (3, 4)):
            f = binary_computation("f", "maximum", t)
            attributes = f"dimensions={{{','.join(map(str, range(len(dims))))}}}, to_apply=f"
            text = simple("map", shape(t, dims), [shape(t, dims)] * 2, attributes, f)
            yield Case("map", t, f"dims{list(dims)}", text, (values(t, dims, 1), values(t, dims, 2)), None, t == "f32")
    text = simple("map", "f32[6]", ["f32[6]", "f32[6]"], "dimensions={0}, to_apply=f", _BRANCHING)
    yield Case("map", "f32", "branching", text, (values("f32", (6,), 1), values("f32", (6,), 2)), None, True)


_WINDOWS = {
    # name: input, window, output
    "valid": ((7, 6), "{size=3x2}", (5, 5)),
    "strided": ((7, 6), "{size=3x2 stride=2x3}", (3, 2)),
    "padded": ((7, 6), "{size=3x3 stride=2x2 pad=1_1x0_2}", (4, 3)),
    "cropped": ((7, 6), "{size=2x2 pad=-1_0x0_-2}", (5, 3)),
    "base-dilated": ((5, 4), "{size=2x3 lhs_dilate=2x3}", (8, 8)),
    "window-dilated": ((7, 9), "{size=3x2 rhs_dilate=2x3}", (3, 6)),
    "everything": ((6, 5), "{size=3x2 stride=2x1 pad=2_1x1_2 lhs_dilate=2x2 rhs_dilate=1x3}", (6, 9)),
    "prefix": ((8, 1), "{size=8x1 pad=7_0x0_0}", (8, 1)),
    "nothing-fits": ((2, 3), "{size=4x1}", (0, 3)),
    "empty": ((0, 3), "{size=2x1 pad=1_2x0_0}", (2, 3)),
}


def _reduce_window() -> Iterator[Case]:
    for name, (dims, window, to) in _WINDOWS.items():
        for op, t in (
            ("add", "f32"),
            ("maximum", "f32"),
            ("add", "s32"),
            ("minimum", "u8"),
            ("multiply", "f64"),
            ("add", "bf16"),
            ("maximum", "f16"),
        ):
            f = binary_computation("f", op, t)
            text = simple("reduce-window", shape(t, to), [shape(t, dims), shape(t)], f"window={window}, to_apply=f", f)
            args = (values(t, dims), _init(op, t))
            exact = op in ("maximum", "minimum")
            fast = t in ("f32", "s32") and name in ("padded", "everything")
            yield Case("reduce-window", t, f"{op}-{name}", text, args, None if exact else _sum_tolerance(t), fast)
        operands = [shape("f32", dims), shape("s32", dims), "f32[]", "s32[]"]
        result = f"({shape('f32', to)}, {shape('s32', to)})"
        text = simple("reduce-window", result, operands, f"window={window}, to_apply=f", _ARGMAX)
        at = np.arange(np.prod(dims), dtype=np.int32).reshape(dims)
        args4 = (values("f32", dims), at, np.array(-np.inf, np.float32), np.array(-1, np.int32))
        yield Case("reduce-window", "f32", f"argmax-{name}", text, args4, None, name == "padded")
    f = binary_computation("f", "add", "f32")
    text = simple("reduce-window", "f32[4]", ["f32[4]", "f32[]"], "window={size=3 pad=1_1}, to_apply=f", f)
    args = (values("f32", (4,)), np.array(10, np.float32))
    yield Case("reduce-window", "f32", "init-not-neutral", text, args, Tolerance(8), False)


def _select_and_scatter() -> Iterator[Case]:
    compare = (
        "s {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction={d}\n}}\n"
    )
    for name, (dims, window, to) in _WINDOWS.items():
        if "dilate" in window:
            continue
        for t, direction in (("f32", "GE"), ("f32", "LT"), ("s32", "GE"), ("bf16", "GE"), ("f64", "GE")):
            computations = compare.format(t=t, d=direction) + binary_computation("f", "add", t)
            operands = [shape(t, dims), shape(t, to), shape(t)]
            text = simple(
                "select-and-scatter", shape(t, dims), operands, f"window={window}, select=s, scatter=f", computations
            )
            args = (values(t, dims), values(t, to, "source"), np.zeros((), type_class(t).dtype))
            yield Case("select-and-scatter", t, f"{direction}-{name}", text, args, _sum_tolerance(t), t == "f32")


def _scan() -> Iterator[Case]:
    f = """f {{
  x = {t}{d} parameter(0)
  c = {t}{d} parameter(1)
  n = {t}{d} add(x, c)
  ROOT r = ({t}{d}, {t}{d}) tuple(c, n)
}}
"""
    for t in ("f32", "s32", "bf16", "f64", "u8"):
        for dims, at in (((6,), 0), ((3, 5), 1), ((4, 2), 0), ((0,), 0)):
            rest = tuple(n for d, n in enumerate(dims) if d != at)
            for reverse in ("", ", is_reverse=true"):
                inner = f.format(t=t, d=shape("", rest))
                attributes = f"dimensions={{{at}}}{reverse}, num_carries=1, to_apply=f"
                result = f"({shape(t, dims)}, {shape(t, rest)})"
                text = simple("scan", result, [shape(t, dims), shape(t, rest)], attributes, inner)
                args = (values(t, dims), values(t, rest, "carry"))
                fast = t == "f32" and dims != (0,)
                yield Case("scan", t, f"dims{list(dims)}at{at}{reverse[5:]}", text, args, _sum_tolerance(t), fast)


_BATCH = "lhs_batch_dims={0}, rhs_batch_dims={0}"
_ANYWHERE = "lhs_batch_dims={3,1}, lhs_contracting_dims={2}, rhs_batch_dims={1,3}, rhs_contracting_dims={0}"
_DOTS = {
    # name: lhs, rhs, attributes, result
    "matrix": ((3, 4), (4, 5), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", (3, 5)),
    "both-transposed": ((4, 3), (5, 4), "lhs_contracting_dims={0}, rhs_contracting_dims={1}", (3, 5)),
    "vectors": ((4,), (4,), "lhs_contracting_dims={0}, rhs_contracting_dims={0}", ()),
    "matrix-vector": ((3, 4), (4,), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", (3,)),
    "batch": ((2, 3, 4), (2, 4, 5), f"{_BATCH}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}", (2, 3, 5)),
    "batches-anywhere": ((3, 2, 4, 6), (4, 6, 5, 2), _ANYWHERE, (6, 2, 3, 5)),
    "two-contracted": ((3, 4, 2), (2, 4, 5), "lhs_contracting_dims={1,2}, rhs_contracting_dims={1,0}", (3, 5)),
    "outer": ((3,), (4,), "lhs_contracting_dims={}, rhs_contracting_dims={}", (3, 4)),
    "empty-inner": ((3, 0), (0, 5), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", (3, 5)),
    "empty": ((0, 4), (4, 5), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", (0, 5)),
    "size-1": ((1, 1), (1, 1), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", (1, 1)),
}  # fmt: skip
_MIXED = (
    ("s8", "s8", "s32"), ("u8", "s8", "s32"), ("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("s4", "s4", "s32"),
    ("f8e4m3fn", "f8e4m3fn", "f32"), ("f8e5m2", "f8e4m3fn", "bf16"), ("f32", "f32", "f64"), ("bf16", "f32", "f32"),
    ("s8", "f32", "f32"), ("f8e4m3fnuz", "f8e5m2fnuz", "f16"),
)  # fmt: skip


def _dot() -> Iterator[Case]:
    for name, (a, b, attributes, to) in _DOTS.items():
        for t in (
            (*FLOATS, *INTEGERS, *COMPLEX, "pred") if name in ("matrix", "batch") else ("f32", "s32", "bf16", "c64")
        ):
            text = simple("dot", shape(t, to), [shape(t, a), shape(t, b)], attributes)
            args = (values(t, a, 1), values(t, b, 2))
            yield Case("dot", t, name, text, args, _sum_tolerance(t), t in ("f32", "s32", "bf16"))
    a, b, attributes, to = _DOTS["matrix"]
    for left, right, result in _MIXED:
        text = simple("dot", shape(result, to), [shape(left, a), shape(right, b)], attributes)
        args = (values(left, a, 1), values(right, b, 2))
        yield Case(
            "dot",
            left,
            f"{right}-to-{result}",
            text,
            args,
            _sum_tolerance(result),
            result in ("s32", "f32") and left != "s4",
        )
    for t in SMALL_FLOATS:
        text = simple("dot", shape("f32", to), [shape(t, a), shape(t, b)], attributes)
        yield Case("dot", t, "to-f32", text, (values(t, a, 1), values(t, b, 2)), Tolerance(16, 1))
    for t in ("f64", "f32", "bf16", "f16"):
        for made in ("pred", "s8", "u8", "s32"):
            text = simple("dot", f"{made}[3,5]", [f"{t}[3,4]", f"{t}[4,5]"], attributes)
            given = (quarters(t, (3, 4), 1), quarters(t, (4, 5), 2))
            yield Case("dot", t, f"summed-before-it-is-{made}", text, given, None, t == "f32")
    big = (values("f32", (64, 200), 1), values("f32", (200, 33), 2))
    text = simple("dot", "f32[64,33]", ["f32[64,200]", "f32[200,33]"], attributes)
    yield Case("dot", "f32", "larger", text, big, Tolerance(64, 10), True)


def _fft() -> Iterator[Case]:
    for real, cplx in (("f32", "c64"), ("f64", "c128")):
        for dims, length in (
            ((8,), (8,)),
            ((3, 7), (7,)),
            ((2, 4, 6), (4, 6)),
            ((2, 3, 4, 5), (3, 4, 5)),
            ((1,), (1,)),
            ((0, 4), (4,)),
        ):
            half = (*dims[:-1], length[-1] // 2 + 1)
            for kind, source, target, given, to in (
                ("FFT", cplx, cplx, dims, dims), ("IFFT", cplx, cplx, dims, dims),
                ("RFFT", real, cplx, dims, half), ("IRFFT", cplx, real, half, dims),
            ):  # fmt: skip
                attributes = f"fft_type={kind}, fft_length={{{','.join(map(str, length))}}}"
                text = simple("fft", shape(target, to), [shape(source, given)], attributes)
                yield Case(
                    "fft",
                    source,
                    f"{kind}{list(dims)}",
                    text,
                    (values(source, given),),
                    Tolerance(64, 3),
                    real == "f32",
                )


def _definite(t: str, dims: tuple[int, ...], key: object) -> Array:
    kind, n = type_class(t), dims[-1]
    rng = generator("definite", t, dims, key)
    a = rng.standard_normal(dims) + (1j * rng.standard_normal(dims) if kind.is_complex else 0)
    return np.asarray(a @ np.swapaxes(a, -1, -2).conj() + n * np.eye(n)).astype(kind.dtype)


def _linear_algebra() -> Iterator[Case]:
    for t in ("f32", "f64", "c64", "c128"):
        for dims in ((3, 3), (2, 4, 4), (1, 1), (0, 2, 2), (0, 0)):
            for lower in ("true", "false"):
                text = simple("cholesky", shape(t, dims), [shape(t, dims)], f"lower={lower}")
                yield Case(
                    "cholesky",
                    t,
                    f"dims{list(dims)}{lower}",
                    text,
                    (_definite(t, dims, lower),),
                    Tolerance(64, 1),
                    t == "f32",
                )
        for left in ("true", "false"):
            for lower in ("true", "false"):
                for transpose in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
                    for unit in ("true", "false"):
                        b = (2, 4, 3) if left == "true" else (2, 3, 4)
                        attributes = f"left_side={left}, lower={lower}, transpose_a={transpose}, unit_diagonal={unit}"
                        text = simple("triangular-solve", shape(t, b), [shape(t, (2, 4, 4)), shape(t, b)], attributes)
                        args = (_definite(t, (2, 4, 4), "solve"), values(t, b))
                        name = f"left-{left}-lower-{lower}-{transpose}-unit-{unit}"
                        fast = t == "f32" and transpose == "TRANSPOSE"
                        yield Case("triangular-solve", t, name, text, args, Tolerance(512, 3000), fast)


def _batch_norm() -> Iterator[Case]:
    for t in ("f32", "f64", "f16", "bf16"):
        for dims, at in (((6, 4), 1), ((2, 3, 5), 1), ((4, 2, 3), 0)):
            n = shape(t, (dims[at],))
            x = shape(t, dims)
            attributes = f"epsilon=0.001, feature_index={at}"
            v = [values(t, (dims[at],), k, 0.5, 2) for k in range(4)]
            tolerance = Tolerance(64, 1)
            text = simple("batch-norm-training", f"({x}, {n}, {n})", [x, n, n], attributes)
            yield Case(
                "batch-norm-training", t, f"dims{list(dims)}", text, (values(t, dims), *v[:2]), tolerance, t == "f32"
            )
            text = simple("batch-norm-inference", x, [x, n, n, n, n], attributes)
            yield Case(
                "batch-norm-inference", t, f"dims{list(dims)}", text, (values(t, dims), *v), tolerance, t == "f32"
            )
            text = simple("batch-norm-grad", f"({x}, {n}, {n})", [x, n, n, n, x], attributes)
            args = (values(t, dims), *v[:3], values(t, dims, "grad"))
            yield Case("batch-norm-grad", t, f"dims{list(dims)}", text, args, tolerance, t == "f32")
