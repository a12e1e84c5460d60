"""Lowerings of ATen ops that reduce, accumulate or sort along dimensions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, axes, count, highest, lowest
from compiler.frontends.torch_indexing import cumulative, reaching_back
from compiler.ir import HloComputation, HloInstruction, Literal, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import SliceDim

LOWERINGS = Lowerings()
H = HloInstruction


def _finish(b: TorchBuilder, reduced: H, out: Shape | None = None) -> H:
    """Reshape and convert to torch's result (which may keep dimensions of size one), by default the first one."""
    out = out or b.out
    return b.reshape(b.convert(reduced, out.element_type), out.dimensions)


def _wide(t: PrimitiveType) -> PrimitiveType:
    """Return the type of sums: like in torch, half precision is summed in single precision."""
    return T.F32 if t.is_half else t


@LOWERINGS.op("sum")
def _sum(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    x = b.convert(x, _wide(b.out.element_type))
    return _finish(b, b.reduce(Opcode.ADD, x, axes(dims, x.shape.rank), 0))


@LOWERINGS.op("mean")
def mean(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    """Return the sum divided by the number of elements."""
    return _mean(b, x, dims, b.out)


def _mean(b: TorchBuilder, x: H, dims: Any, out: Shape) -> H:
    x = b.convert(x, _wide(out.element_type))
    over = axes(dims, x.shape.rank)
    total = b.reduce(Opcode.ADD, x, over, 0)
    return _finish(b, b.binary(Opcode.DIVIDE, total, count(x.shape, over), total.shape.element_type), out)


@LOWERINGS.op("prod")
def _prod(b: TorchBuilder, x: H, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    x = b.convert(x, b.out.element_type)
    return _finish(b, b.reduce(Opcode.MULTIPLY, x, axes(dim, x.shape.rank), 1))


@LOWERINGS.op("amax")
def _amax(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False) -> H:
    return _finish(b, b.reduce(Opcode.MAXIMUM, x, axes(dims, x.shape.rank), lowest(x.shape.element_type)))


@LOWERINGS.op("amin")
def _amin(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False) -> H:
    return _finish(b, b.reduce(Opcode.MINIMUM, x, axes(dims, x.shape.rank), highest(x.shape.element_type)))


@LOWERINGS.op("any")
def _any(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False) -> H:
    return _finish(b, b.reduce(Opcode.OR, b.convert(x, T.PRED), axes(dims, x.shape.rank), 0))


@LOWERINGS.op("all")
def _all(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False) -> H:
    return _finish(b, b.reduce(Opcode.AND, b.convert(x, T.PRED), axes(dims, x.shape.rank), 1))


@LOWERINGS.op("var", "std")
def _var(b: TorchBuilder, x: H, dims: Any = None, correction: Any = 1, keepdim: bool = False, **more: Any) -> H:
    if isinstance(correction, bool):
        correction = int(correction)
    over, t = axes(dims, x.shape.rank), _wide(x.shape.element_type)
    x = b.convert(x, t)
    n = count(x.shape, over)
    center = b.binary(Opcode.DIVIDE, b.reduce(Opcode.ADD, x, over, 0), n, t)
    apart = b.binary(Opcode.SUBTRACT, x, b.keep_dims(center, x.shape, over), t)
    parts = (b.add(Opcode.REAL, apart), b.add(Opcode.IMAG, apart)) if t.is_complex else (apart,)
    square = functools.reduce(functools.partial(b.add, Opcode.ADD), [b.add(Opcode.MULTIPLY, p, p) for p in parts])
    squares, t = b.reduce(Opcode.ADD, square, over, 0), square.shape.element_type
    result = b.binary(Opcode.DIVIDE, squares, max(n - (1 if correction is None else correction), 0), t)
    return _finish(b, b.add(Opcode.SQRT, result) if b.what.startswith("aten.std") else result)


@LOWERINGS.op("var_mean", "std_mean")
def _var_mean(b: TorchBuilder, x: H, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> list[H]:
    return [_var(b, x, dims, correction), _mean(b, x, dims, b.out_at(1))]


@LOWERINGS.op("linalg_vector_norm")
def _norm(b: TorchBuilder, x: H, order: float = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    x = b.convert(x, _wide(b.out.element_type) if not x.shape.element_type.is_complex else x.shape.element_type)
    return _finish(b, vector_norm(b, x, order, axes(dims, x.shape.rank)))


def vector_norm(b: TorchBuilder, x: H, order: float, dims: Sequence[int]) -> H:
    """Return the norm of any order over some dimensions; order 0 counts non-zero elements."""
    size = b.add(Opcode.ABS, x)
    t = size.shape.element_type
    if order == 0:
        return b.reduce(Opcode.ADD, b.convert(b.compare(size, 0, "NE"), t), dims, 0)
    if math.isinf(order):
        return b.reduce(Opcode.MAXIMUM, size, dims, 0) if order > 0 else b.reduce(Opcode.MINIMUM, size, dims, math.inf)
    if order == 1:
        return b.reduce(Opcode.ADD, size, dims, 0)
    if order == 2:
        return b.add(Opcode.SQRT, b.reduce(Opcode.ADD, b.add(Opcode.MULTIPLY, size, size), dims, 0))
    total = b.reduce(Opcode.ADD, b.binary(Opcode.POWER, size, order, t), dims, 0)
    return b.binary(Opcode.POWER, total, 1 / order, t)


# ---- extremes with their positions


def better(b: TorchBuilder, t: PrimitiveType, direction: str, tie: str = "LT") -> HloComputation:
    """Return a reducer of (value, index) pairs: NaN wins, then the better value, then the first (or last) index."""
    return b.once(("better", t, direction, tie), lambda: _better(t, direction, tie))


def _better(t: PrimitiveType, direction: str, tie: str) -> HloComputation:
    f = HloComputation(f"better_{direction}_{tie}_{t.text}")
    v1, i1, v2, i2 = (f.add_parameter(n, Shape(k)) for n, k in enumerate((t, T.S64, t, T.S64)))
    first = f.add(Opcode.COMPARE, [v1, v2], direction=direction)
    same = f.add(Opcode.COMPARE, [v1, v2], direction="EQ")
    if t.is_float:
        nan1, nan2 = (f.add(Opcode.COMPARE, [v, v], direction="NE") for v in (v1, v2))
        both = f.add(Opcode.AND, [nan1, nan2])
        same = f.add(Opcode.OR, [same, both])
        first = f.add(Opcode.OR, [first, f.add(Opcode.AND, [nan1, f.add(Opcode.NOT, [nan2])])])
        first = f.add(Opcode.AND, [first, f.add(Opcode.OR, [f.add(Opcode.NOT, [nan2]), nan1])])
    earlier = f.add(Opcode.AND, [same, f.add(Opcode.COMPARE, [i1, i2], direction=tie)])
    keep = f.add(Opcode.OR, [first, earlier])
    f.root = f.add(Opcode.TUPLE, [f.add(Opcode.SELECT, [keep, v1, v2]), f.add(Opcode.SELECT, [keep, i1, i2])])
    return f


def extreme(b: TorchBuilder, x: H, dim: int, direction: str) -> tuple[H, H]:
    """Return the largest (GT) or smallest (LT) element along a dimension and its first position."""
    t = x.shape.element_type
    numbers = b.add(Opcode.IOTA, shape=Shape(T.S64, x.shape.dimensions), iota_dimension=dim)
    start = b.constant(lowest(t) if direction == "GT" else highest(t), t)
    # The initial pair must lose against every element, also one with an equal value.
    pair = b.add(
        Opcode.REDUCE, x, numbers, start, b.constant(np.iinfo(np.int64).max, T.S64),
        dimensions=(dim,), to_apply=better(b, t, direction),
    )  # fmt: skip
    return tuple(b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2))  # type: ignore[return-value]


def _by_value(direction: str) -> Any:
    def lowering(b: TorchBuilder, x: H, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, H):
            return b.binary(Opcode.MAXIMUM if direction == "GT" else Opcode.MINIMUM, x, dim)
        if dim is None:
            return (_amax if direction == "GT" else _amin)(b, x)
        found = extreme(b, x, dim % x.shape.rank, direction)
        return [b.reshape(part, b.out.dimensions) for part in found]

    return lowering


def _by_index(direction: str) -> Any:
    def lowering(b: TorchBuilder, x: H, dim: Any = None, keepdim: bool = False) -> H:
        if dim is None:
            x, dim = b.reshape(x, [count(x.shape, range(x.shape.rank))]), 0
        return b.reshape(extreme(b, x, dim % x.shape.rank, direction)[1], b.out.dimensions)

    return lowering


LOWERINGS.update(max=_by_value("GT"), min=_by_value("LT"), argmax=_by_index("GT"), argmin=_by_index("LT"))


@LOWERINGS.op("sort")
def _sort(b: TorchBuilder, x: H, *args: Any, **kwargs: Any) -> list[H]:
    options = (
        dict(
            zip(
                ("stable", "dim", "descending") if b.overload == "stable" else ("dim", "descending"), args, strict=False
            )
        )
        | kwargs
    )
    dim, descending = options.get("dim", -1), options.get("descending", False)
    return sorted_pair(b, x, dim % x.shape.rank, descending)


def sorted_pair(b: TorchBuilder, x: H, dim: int, descending: bool) -> list[H]:
    """Return sorted values and their original positions; NaN is the largest, and zeros of either sign are equal."""
    t = x.shape.element_type
    if t.is_float:
        # The total order distinguishes the signs of zeros and of NaN, which torch does not.
        x = b.select(b.compare(x, 0, "EQ"), 0, b.select(b.compare(x, x, "NE"), math.nan, x, t), t)
    order = "GT" if descending else "LT"

    def make() -> HloComputation:
        f = HloComputation(f"before_{order}_{t.text}")
        a, c, _, _ = (f.add_parameter(n, Shape(k)) for n, k in enumerate((t, t, T.S64, T.S64)))
        kind = {"type": "TOTALORDER"} if t.is_float else {}
        f.root = f.add(Opcode.COMPARE, [a, c], attributes={"direction": order, **kind})
        return f

    numbers = b.add(Opcode.IOTA, shape=Shape(T.S64, x.shape.dimensions), iota_dimension=dim)
    pair = b.add(
        Opcode.SORT, x, numbers, dimensions=(dim,), is_stable=True, to_apply=b.once(("before", order, t), make)
    )
    return [b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2)]


@LOWERINGS.op("topk")
def _topk(b: TorchBuilder, x: H, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[H]:
    at = dim % x.shape.rank
    spec = [SliceDim(0, k if d == at else n) for d, n in enumerate(x.shape.dimensions)]
    return [b.add(Opcode.SLICE, part, slice=tuple(spec)) for part in sorted_pair(b, x, at, largest)]


@LOWERINGS.op("kthvalue")
def _kth_value(b: TorchBuilder, x: H, k: int, dim: int = -1, keepdim: bool = False) -> list[H]:
    at = dim % x.shape.rank
    spec = [SliceDim(k - 1, k) if d == at else SliceDim(0, n) for d, n in enumerate(x.shape.dimensions)]
    picked = [b.add(Opcode.SLICE, part, slice=tuple(spec)) for part in sorted_pair(b, x, at, False)]
    return [b.reshape(part, b.out.dimensions) for part in picked]


@LOWERINGS.op("median")
def _median(b: TorchBuilder, x: H, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median; NaN if any element is NaN."""
    if dim is None:
        x, at = b.reshape(x, [count(x.shape, range(x.shape.rank))]), 0
    else:
        at = dim % x.shape.rank
    found, where = _kth_value(b, x, (x.shape.dimensions[at] + 1) // 2, at)
    t = x.shape.element_type
    if t.is_float:
        last = b.binary(
            Opcode.MAXIMUM, b.reshape(b.reduce(Opcode.MAXIMUM, x, (at,), lowest(t)), b.out.dimensions), found, t
        )
        found = b.select(b.compare(last, last, "NE"), last, found, t)
    return found if dim is None else [found, where]


@LOWERINGS.op("cumsum", "cumprod")
def _cumulative(b: TorchBuilder, x: H, dim: int, dtype: Any = None) -> H:
    x = b.convert(x, b.out.element_type)
    if x.shape.rank == 0:
        return x
    opcode, start = (Opcode.ADD, 0) if b.what.startswith("aten.cumsum") else (Opcode.MULTIPLY, 1)
    return cumulative(b, x, dim % x.shape.rank, opcode, start)


@LOWERINGS.op("cummax", "cummin")
def _running_extreme(b: TorchBuilder, x: H, dim: int) -> list[H]:
    """Return the running extremes and their last positions."""
    direction, t, at = "GT" if "cummax" in b.what else "LT", x.shape.element_type, dim % x.shape.rank
    numbers = b.add(Opcode.IOTA, shape=Shape(T.S64, x.shape.dimensions), iota_dimension=at)
    start = b.constant(lowest(t) if direction == "GT" else highest(t), t)
    pair = b.add(
        Opcode.REDUCE_WINDOW, x, numbers, start, b.constant(-1, T.S64), window=reaching_back(x.shape, at),
        to_apply=better(b, t, direction, "GT"),
    )  # fmt: skip
    return [b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2)]


@LOWERINGS.op("logcumsumexp")
def _log_cumulative(b: TorchBuilder, x: H, dim: int) -> H:
    t = x.shape.element_type

    def make() -> HloComputation:
        f = HloComputation(f"log_add_{t.text}")
        a, c = (f.add_parameter(n, Shape(t)) for n in range(2))
        top, low = f.add(Opcode.MAXIMUM, [a, c]), f.add(Opcode.MINIMUM, [a, c])
        # Equal infinities have no difference.
        same = f.add(Opcode.COMPARE, [a, c], attributes={"direction": "EQ"})
        apart = f.add(Opcode.SUBTRACT, [low, top])
        zero = f.add_constant(Literal.from_array(np.zeros((), t.dtype)))
        gap = f.add(Opcode.SELECT, [same, zero, apart])
        f.root = f.add(Opcode.ADD, [top, f.add(Opcode.LOG_PLUS_ONE, [f.add(Opcode.EXPONENTIAL, [gap])])])
        return f

    return b.add(
        Opcode.REDUCE_WINDOW, x, b.constant(-math.inf, t), window=reaching_back(x.shape, dim % x.shape.rank),
        to_apply=b.once(("log_add", t), make),
    )  # fmt: skip


@LOWERINGS.op("_softmax", "softmax")
def _softmax(b: TorchBuilder, x: H, dim: int, *_: Any) -> H:
    shifted, over = _shifted(b, x, dim)
    powers = b.add(Opcode.EXPONENTIAL, shifted)
    total = b.keep_dims(b.reduce(Opcode.ADD, powers, over, 0), x.shape, over)
    result = b.binary(Opcode.DIVIDE, powers, total, powers.shape.element_type)
    return b.convert(result, b.out.element_type)


@LOWERINGS.op("_log_softmax", "log_softmax")
def _log_softmax(b: TorchBuilder, x: H, dim: int, *_: Any) -> H:
    shifted, over = _shifted(b, x, dim)
    total = b.reduce(Opcode.ADD, b.add(Opcode.EXPONENTIAL, shifted), over, 0)
    log = b.keep_dims(b.add(Opcode.LOG, total), x.shape, over)
    return b.convert(b.binary(Opcode.SUBTRACT, shifted, log, shifted.shape.element_type), b.out.element_type)


def _shifted(b: TorchBuilder, x: H, dim: int) -> tuple[H, Sequence[int]]:
    """Subtract the maximum, so that no power overflows."""
    t = _wide(x.shape.element_type)
    x, over = b.convert(x, t), axes(dim, x.shape.rank)
    top = b.keep_dims(b.reduce(Opcode.MAXIMUM, x, over, lowest(t)), x.shape, over)
    return b.binary(Opcode.SUBTRACT, x, top, t), over
