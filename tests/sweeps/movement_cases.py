"""Cases of ops that move elements: reshapes, slices, gather, scatter, sort."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sweeps.case import (
    ALL,
    FLOATS,
    INTEGERS,
    MAIN,
    SMALL_FLOATS,
    Case,
    Tolerance,
    binary_computation,
    edges,
    generator,
    module,
    shape,
    simple,
    type_class,
    values,
)


def cases() -> Iterator[Case]:
    yield from _shapes()
    yield from _slices()
    yield from _dynamic_slices()
    yield from _iota()
    yield from _gather()
    yield from _scatter()
    yield from _sort()
    yield from _top_k()


def _move(op: str, t: str, name: str, dims: tuple[int, ...], to: tuple[int, ...], attributes: str, fast: bool) -> Case:
    text = simple(op, shape(t, to), [shape(t, dims)], attributes)
    return Case(op, t, name, text, (values(t, dims),), None, fast)


def _shapes() -> Iterator[Case]:
    for t in ALL:
        main = t in MAIN
        yield _move("broadcast", t, "new-dims", (3,), (2, 3, 4), "dimensions={1}", t in ("f32", "s32"))
        yield _move("reshape", t, "split", (6, 4), (2, 3, 4), "", t == "f32")
        yield _move("transpose", t, "permute", (2, 3, 4), (4, 2, 3), "dimensions={2,0,1}", t in ("f32", "s32"))
        yield _move("reverse", t, "two", (2, 3, 4), (2, 3, 4), "dimensions={0,2}", t == "f32")
        text = simple("concatenate", shape(t, (2, 6)), [shape(t, (2, n)) for n in (1, 3, 2)], "dimensions={1}")
        args = tuple(values(t, (2, n), n) for n in (1, 3, 2))
        yield Case("concatenate", t, "three", text, args, None, t in ("f32", "s32"))
        text = simple("pad", shape(t, (6, 6)), [shape(t, (3, 4)), shape(t)], "padding=1_0_1x-1_3_0")
        yield Case("pad", t, "interior-negative", text, (values(t, (3, 4)), values(t, ())), None, t in ("f32", "s32"))
        if not main:
            continue
        yield _move("broadcast", t, "scalar", (), (2, 3), "dimensions={}", False)
        yield _move("broadcast", t, "transposing", (2, 3), (3, 5, 2), "dimensions={2,0}", False)
        yield _move("broadcast", t, "empty", (0,), (2, 0), "dimensions={1}", False)
        yield _move("broadcast", t, "size-1", (1,), (1, 4), "dimensions={0}", False)
        yield _move("reshape", t, "to-scalar", (1, 1), (), "", False)
        yield _move("reshape", t, "from-scalar", (), (1, 1), "", False)
        yield _move("reshape", t, "empty", (0, 3), (3, 0, 2), "", False)
        yield _move("transpose", t, "identity", (2, 3), (2, 3), "dimensions={0,1}", False)
        yield _move("transpose", t, "empty", (2, 0), (0, 2), "dimensions={1,0}", False)
        yield _move("reverse", t, "none", (3,), (3,), "dimensions={}", False)
        text = simple("concatenate", shape(t, (3,)), [shape(t, (0,)), shape(t, (3,)), shape(t, (0,))], "dimensions={0}")
        yield Case("concatenate", t, "empties", text, (values(t, (0,)), values(t, (3,)), values(t, (0,))))
        text = simple("concatenate", shape(t, (3,)), [shape(t, (3,))], "dimensions={0}")
        yield Case("concatenate", t, "one", text, (values(t, (3,)),))
        for name, padding, dims, to in (
            ("edges", "2_1x0_3", (3, 2), (6, 5)),
            ("crop", "-1_-1x0_0", (4, 2), (2, 2)),
            ("interior", "0_0_2x1_1_1", (3, 2), (7, 5)),
            ("empty", "2_1", (0,), (3,)),
            ("crop-interior", "-1_-2_1", (5,), (6,)),
        ):
            text = simple("pad", shape(t, to), [shape(t, dims), shape(t)], f"padding={padding}")
            yield Case("pad", t, name, text, (values(t, dims), values(t, (), "fill")), None, t == "f32")


def _slices() -> Iterator[Case]:
    for t in ALL:
        yield _move("slice", t, "strided", (5, 8), (2, 3), "slice={[1:5:2], [0:7:3]}", t in ("f32", "s32"))
        if t in MAIN:
            yield _move("slice", t, "empty", (5,), (0,), "slice={[3:3]}", False)
            yield _move("slice", t, "whole", (5,), (5,), "slice={[0:5]}", False)
            yield _move("slice", t, "scalar", (), (), "slice={}", False)


def _dynamic_slices() -> Iterator[Case]:
    for t in ALL:
        for index, starts in (
            ("s32", (1, 2)),
            ("s32", (-5, 99)),
            ("u8", (200, 0)),
            ("s64", (3, 1)),
            ("u32", (2**32 - 1, 1)),
        ):
            name = f"{index}{starts[0]}_{starts[1]}"
            x, u = values(t, (4, 6)), values(t, (2, 3), "update")
            at = tuple(np.array(s).astype(_numpy(index)) for s in starts)
            if t not in MAIN and index != "s32":
                continue
            operands = [shape(t, (4, 6)), f"{index}[]", f"{index}[]"]
            text = simple("dynamic-slice", shape(t, (2, 3)), operands, "dynamic_slice_sizes={2,3}")
            yield Case("dynamic-slice", t, name, text, (x, *at), None, t in ("f32", "s32"))
            operands = [shape(t, (4, 6)), shape(t, (2, 3)), f"{index}[]", f"{index}[]"]
            text = simple("dynamic-update-slice", shape(t, (4, 6)), operands)
            yield Case("dynamic-update-slice", t, name, text, (x, u, *at), None, t in ("f32", "s32"))


def _numpy(t: str) -> np.dtype[np.generic]:
    return type_class(t).dtype


def _iota() -> Iterator[Case]:
    for t in (*FLOATS, *INTEGERS, *SMALL_FLOATS, "c64", "c128"):
        for dims, at in (((9,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 0), 0), ((300,), 0)):
            text = module(f"ROOT r = {shape(t, dims)} iota(), iota_dimension={at}")
            name = f"dims{list(dims)}at{at}"
            if dims == (300,) and type_class(t).bits <= 8:
                continue
            yield Case("iota", t, name, text, (), None, t in ("f32", "s32") and dims == (3, 4))


_ROWS = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"
_POINTS = "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={1,0}, index_vector_dim=1"
_WINDOWS = "offset_dims={0,3}, collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=2"
_VECTOR_FIRST = "offset_dims={1}, collapsed_slice_dims={1}, start_index_map={0,1}, index_vector_dim=0"
_BATCHING = (
    "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
    "start_indices_batching_dims={0}, index_vector_dim=2"
)
_GATHERS = {
    # name: operand, indices, slice sizes, attributes, result
    "rows": ((5, 3), (4, 1), "{1,3}", _ROWS, (4, 3)),
    "implicit-vector": ((5, 3), (4,), "{1,3}", _ROWS, (4, 3)),
    "points": ((5, 3), (4, 2), "{1,1}", _POINTS, (4,)),
    "windows": ((6, 7), (2, 3, 2), "{2,3}", _WINDOWS, (2, 2, 3, 3)),
    "vector-first": ((6, 7), (2, 3), "{2,1}", _VECTOR_FIRST, (3, 2)),
    "batching": ((3, 5, 2), (3, 4, 1), "{1,1,2}", _BATCHING, (3, 4, 2)),
    "empty-indices": ((5, 3), (0, 1), "{1,3}", _ROWS, (0, 3)),
    "empty-slices": ((5, 3), (2, 1), "{1,0}", _ROWS, (2, 0)),
}


def _indices(t: str, dims: tuple[int, ...], name: str, low: int = -3, high: int = 9) -> np.ndarray:
    rng = generator("indices", name, t, dims)
    if t[0] == "u":
        low = 0
    return rng.integers(low, high, dims).astype(_numpy(t))


def _gather() -> Iterator[Case]:
    for name, (dims, at, sizes, attributes, to) in _GATHERS.items():
        for t in ALL if name == "rows" else MAIN:
            for index in ("s32", "s64", "u32", "s8") if t == "f32" else ("s32",):
                text = simple(
                    "gather", shape(t, to), [shape(t, dims), shape(index, at)], f"{attributes}, slice_sizes={sizes}"
                )
                args = (values(t, dims), _indices(index, at, name))
                yield Case("gather", t, f"{name}-{index}", text, args, None, t == "f32" and index == "s32")


_TO_ROWS = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
_TO_POINTS = "update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={1,0}, index_vector_dim=1"
_TO_WINDOWS = (
    "update_window_dims={0,3}, inserted_window_dims={}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=2"
)
_TO_NUMBERS = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
_TO_BATCHES = (
    "update_window_dims={2}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, "
    "input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2"
)
_SCATTERS = {
    # name: operand, indices, updates, attributes
    "rows": ((5, 3), (4, 1), (4, 3), _TO_ROWS),
    "points": ((5, 3), (6, 2), (6,), _TO_POINTS),
    "windows": ((6, 7), (2, 3, 2), (2, 2, 3, 3), _TO_WINDOWS),
    "implicit-vector": ((9,), (12,), (12,), _TO_NUMBERS),
    "batching": ((3, 5, 2), (3, 4, 1), (3, 4, 2), _TO_BATCHES),
    "empty": ((5, 3), (0, 1), (0, 3), _TO_ROWS),
    "narrow-window": ((5, 4), (3, 1), (3, 2), _TO_ROWS),
}
_SET = "f {{\n  a = {t}[] parameter(0)\n  ROOT b = {t}[] parameter(1)\n}}\n"


def _scatter() -> Iterator[Case]:
    for name, (dims, at, upd, attributes) in _SCATTERS.items():
        for t in ALL if name == "rows" else MAIN:
            for how in ("set", "add", "minimum", "multiply", "subtract"):
                if t == "pred" and how not in ("set", "add"):
                    continue
                if (how == "minimum" and type_class(t).is_complex) or (t not in MAIN and how not in ("set", "add")):
                    continue
                computation = _SET.format(t=t) if how == "set" else binary_computation("f", how, t)
                operands = [shape(t, dims), shape("s32", at), shape(t, upd)]
                text = simple("scatter", shape(t, dims), operands, f"{attributes}, to_apply=f", computation)
                args = (values(t, dims), _indices("s32", at, name, -2, 7), values(t, upd, "update"))
                tolerance = Tolerance(8, 1) if type_class(t).is_float or type_class(t).is_complex else None
                fast = t in ("f32", "s32") and how in ("set", "add")
                yield Case("scatter", t, f"{name}-{how}", text, args, None if how == "set" else tolerance, fast)
    yield _variadic_scatter()


def _variadic_scatter() -> Case:
    f = """f {
  a = f32[] parameter(0)
  n = s32[] parameter(1)
  b = f32[] parameter(2)
  m = s32[] parameter(3)
  less = pred[] compare(b, a), direction=LT
  v = f32[] select(less, b, a)
  k = s32[] select(less, m, n)
  ROOT t = (f32[], s32[]) tuple(v, k)
}
"""
    attributes = _SCATTERS["implicit-vector"][3] + ", to_apply=f"
    text = simple("scatter", "(f32[9], s32[9])", ["f32[9]", "s32[9]", "s32[12]", "f32[12]", "s32[12]"], attributes, f)
    at = _indices("s32", (12,), "variadic", -2, 11)
    args = (
        values("f32", (9,)),
        np.arange(9, dtype=np.int32),
        at,
        values("f32", (12,), 1),
        np.arange(12, dtype=np.int32),
    )
    return Case("scatter", "f32", "variadic", text, args, None, True)


def _less(t: str, direction: str = "LT", kind: str = "") -> str:
    more = f", type={kind}" if kind else ""
    return (
        f"f {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
        f"  ROOT r = pred[] compare(a, b), direction={direction}{more}\n}}\n"
    )


def _sort() -> Iterator[Case]:
    for t in (*FLOATS, *INTEGERS, *SMALL_FLOATS, "pred"):
        if type_class(t).bits < 8:
            continue  # XLA:CPU packs these types and then sorts out of bounds
        kind = "TOTALORDER" if type_class(t).is_float and t != "f8e8m0fnu" else ""
        for direction in ("LT", "GT"):
            x = np.concatenate([edges(t), values(t, (40,), "sort")])
            if t == "f8e8m0fnu":
                x = np.abs(values("f32", (60,), "sort")).astype(_numpy(t))
            text = simple(
                "sort",
                shape(t, x.shape),
                [shape(t, x.shape)],
                "dimensions={0}, is_stable=true, to_apply=f",
                _less(t, direction, kind),
            )
            yield Case("sort", t, f"{direction}{kind}", text, (x,), None, t in ("f32", "s32"))
        for dims, d in (((3, 5), 0), ((3, 5), 1), ((2, 0), 1), ((1, 4), 0), ((4, 17, 2), 1)):
            if t not in MAIN:
                continue
            attributes = f"dimensions={{{d}}}, is_stable=true, to_apply=f"
            text = simple("sort", shape(t, dims), [shape(t, dims)], attributes, _less(t))
            yield Case("sort", t, f"dims{list(dims)}by{d}", text, (values(t, dims),), None, t == "f32")
    yield from _sort_by_key()


_PAIR = """f {
  a = KEY[] parameter(0)
  b = KEY[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
BODY
}
"""
_BODIES = {
    "key": "  ROOT r = pred[] compare(a, b), direction=LT",
    "two-keys": """  less = pred[] compare(a, b), direction=LT
  same = pred[] compare(a, b), direction=EQ
  after = pred[] compare(c, d), direction=GT
  tie = pred[] and(same, after)
  ROOT r = pred[] or(less, tie)""",
    "by-payload": "  ROOT r = pred[] compare(c, d), direction=GT",
    "by-modulus": """  five = s32[] constant(5)
  x = s32[] remainder(c, five)
  y = s32[] remainder(d, five)
  ROOT r = pred[] compare(x, y), direction=LT""",
}


def _sort_by_key() -> Iterator[Case]:
    for t in ("f32", "s32", "u8", "bf16"):
        for name, body in _BODIES.items():
            for dims, d in (((23,), 0), ((3, 100), 1), ((70, 2), 0)):
                keys = (np.abs(values(t, dims).astype(np.float64)) % 4).astype(_numpy(t))
                payload = np.arange(keys.size, dtype=np.int32).reshape(dims)
                f = _PAIR.replace("KEY", t).replace("BODY", body)
                attributes = f"dimensions={{{d}}}, is_stable=true, to_apply=f"
                shapes = [shape(t, dims), shape("s32", dims)]
                text = simple("sort", f"({', '.join(shapes)})", shapes, attributes, f)
                yield Case("sort", t, f"{name}{list(dims)}", text, (keys, payload), None, t == "f32" and dims == (23,))


def _top_k() -> Iterator[Case]:
    for t in ("f32", "bf16", "f16", "f64", "s32", "u8", "s64"):
        for dims, k in (((9,), 3), ((4, 20), 5), ((2, 3), 3), ((3, 1), 1)):
            x = values(t, dims)
            if type_class(t).is_integer:
                x = np.asarray(x % 7).astype(x.dtype)
            for largest in ("true", "false"):
                to = (*dims[:-1], k)
                text = simple(
                    "topk", f"({shape(t, to)}, {shape('s32', to)})", [shape(t, dims)], f"k={k}, largest={largest}"
                )
                yield Case("topk", t, f"dims{list(dims)}k{k}{largest}", text, (x,), None, t == "f32")
    x = edges("f32")
    text = simple("topk", "(f32[9], s32[9])", [shape("f32", x.shape)], "k=9, largest=true")
    yield Case("topk", "f32", "edges", text, (x,), None, True)
