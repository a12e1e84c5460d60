"""ATen ops that reduce, accumulate or order along dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, axes, count
from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import SliceDim, Window, WindowDim

LOWERINGS = Lowerings()
H = HloInstruction


def _finish(b: TorchBuilder, reduced: H) -> H:
    """Sizes as torch has them (kept dimensions of one), in torch's type."""
    return b.reshape(b.convert(reduced, b.out.element_type), b.out.dimensions)


def lowest(t: PrimitiveType) -> Any:
    """What a maximum starts from."""
    return -math.inf if t.is_float else 0 if t is T.PRED else np.iinfo(t.dtype).min


def highest(t: PrimitiveType) -> Any:
    """What a minimum starts from."""
    return math.inf if t.is_float else 1 if t is T.PRED else np.iinfo(t.dtype).max


def _wide(t: PrimitiveType) -> PrimitiveType:
    """The type to add up in: half precision is summed in single, as torch does."""
    return T.F32 if t in (T.F16, T.BF16) else t


@LOWERINGS.op("sum")
def _sum(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    x = b.convert(x, _wide(b.out.element_type))
    return _finish(b, b.reduce(Opcode.ADD, x, axes(dims, x.shape.rank), 0))


@LOWERINGS.op("mean")
def mean(b: TorchBuilder, x: H, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    """The sum over the number of elements."""
    x = b.convert(x, _wide(b.out.element_type))
    over = axes(dims, x.shape.rank)
    total = b.reduce(Opcode.ADD, x, over, 0)
    return _finish(b, b.binary(Opcode.DIVIDE, total, count(x.shape, over), total.shape.element_type))


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
    apart = b.binary(Opcode.SUBTRACT, x, b.keep(center, x.shape, over), t)
    squares = b.reduce(Opcode.ADD, b.add(Opcode.MULTIPLY, apart, apart), over, 0)
    result = b.binary(Opcode.DIVIDE, squares, n - (1 if correction is None else correction), t)
    return _finish(b, b.add(Opcode.SQRT, result) if b.what.startswith("aten.std") else result)


@LOWERINGS.op("linalg_vector_norm")
def _norm(b: TorchBuilder, x: H, order: float = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> H:
    if order != 2:
        raise b.unsupported(f"a norm of order {order}")
    x = b.convert(x, _wide(b.out.element_type))
    return _finish(
        b, b.add(Opcode.SQRT, b.reduce(Opcode.ADD, b.add(Opcode.MULTIPLY, x, x), axes(dims, x.shape.rank), 0))
    )


# ---- extremes with their places


def _better(b: TorchBuilder, t: PrimitiveType, direction: str) -> HloComputation:
    """(value, index) pairs: the better value, of equal ones the first, NaN before all."""
    f = HloComputation(f"better_{direction}_{t.text}")
    v1, i1, v2, i2 = (f.add_parameter(n, Shape(k)) for n, k in enumerate((t, T.S64, t, T.S64)))
    first = f.add(Opcode.COMPARE, [v1, v2], direction=direction)
    same = f.add(Opcode.COMPARE, [v1, v2], direction="EQ")
    if t.is_float:
        nan1, nan2 = (f.add(Opcode.COMPARE, [v, v], direction="NE") for v in (v1, v2))
        both = f.add(Opcode.AND, [nan1, nan2])
        same = f.add(Opcode.OR, [same, both])
        first = f.add(Opcode.OR, [first, f.add(Opcode.AND, [nan1, f.add(Opcode.NOT, [nan2])])])
        first = f.add(Opcode.AND, [first, f.add(Opcode.OR, [f.add(Opcode.NOT, [nan2]), nan1])])
    earlier = f.add(Opcode.AND, [same, f.add(Opcode.COMPARE, [i1, i2], direction="LT")])
    keep = f.add(Opcode.OR, [first, earlier])
    f.root = f.add(Opcode.TUPLE, [f.add(Opcode.SELECT, [keep, v1, v2]), f.add(Opcode.SELECT, [keep, i1, i2])])
    return b.module.add(f)


def _extreme(b: TorchBuilder, x: H, dim: int, direction: str) -> tuple[H, H]:
    t = x.shape.element_type
    numbers = b.add(Opcode.IOTA, shape=Shape(T.S64, x.shape.dimensions), iota_dimension=dim)
    start = b.constant(lowest(t) if direction == "GT" else highest(t), t)
    # The start must lose against every element, also one equal to it.
    pair = b.add(
        Opcode.REDUCE, x, numbers, start, b.constant(np.iinfo(np.int64).max, T.S64),
        dimensions=(dim,), to_apply=_better(b, t, direction),
    )  # fmt: skip
    return tuple(b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2))  # type: ignore[return-value]


def _by_value(direction: str) -> Any:
    def lowering(b: TorchBuilder, x: H, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, H):
            return b.binary(Opcode.MAXIMUM if direction == "GT" else Opcode.MINIMUM, x, dim)
        if dim is None:
            return (_amax if direction == "GT" else _amin)(b, x)
        found = _extreme(b, x, dim % x.shape.rank, direction)
        return [b.reshape(part, b.out.dimensions) for part in found]

    return lowering


def _by_index(direction: str) -> Any:
    def lowering(b: TorchBuilder, x: H, dim: Any = None, keepdim: bool = False) -> H:
        if dim is None:
            x, dim = b.reshape(x, [count(x.shape, range(x.shape.rank))]), 0
        return b.reshape(_extreme(b, x, dim % x.shape.rank, direction)[1], b.out.dimensions)

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
    """Sorted values and where they came from; NaN is greater than all."""
    t = x.shape.element_type
    f = HloComputation(f"before_{t.text}")
    a, c, _, _ = (f.add_parameter(n, Shape(k)) for n, k in enumerate((t, t, T.S64, T.S64)))
    order = "GT" if descending else "LT"
    kind = {"type": "TOTALORDER"} if t.is_float else {}
    f.root = f.add(Opcode.COMPARE, [a, c], attributes={"direction": order, **kind})
    numbers = b.add(Opcode.IOTA, shape=Shape(T.S64, x.shape.dimensions), iota_dimension=dim)
    pair = b.add(Opcode.SORT, x, numbers, dimensions=(dim,), is_stable=True, to_apply=b.module.add(f))
    return [b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=i) for i in range(2)]


@LOWERINGS.op("topk")
def _topk(b: TorchBuilder, x: H, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[H]:
    at = dim % x.shape.rank
    spec = [SliceDim(0, k if d == at else n) for d, n in enumerate(x.shape.dimensions)]
    return [b.add(Opcode.SLICE, part, slice=tuple(spec)) for part in sorted_pair(b, x, at, largest)]


@LOWERINGS.op("cumsum", "cumprod")
def _cumulative(b: TorchBuilder, x: H, dim: int, dtype: Any = None) -> H:
    """A window that reaches back to the beginning."""
    x = b.convert(x, b.out.element_type)
    if x.shape.rank == 0:
        return x
    at, t = dim % x.shape.rank, x.shape.element_type
    opcode, start = (Opcode.ADD, 0) if b.what.startswith("aten.cumsum") else (Opcode.MULTIPLY, 1)
    dims = [WindowDim(n, 1, n - 1, 0) if d == at else WindowDim(1) for d, n in enumerate(x.shape.dimensions)]
    return b.add(
        Opcode.REDUCE_WINDOW, x, b.constant(start, t), window=Window(tuple(dims)), to_apply=b.function(opcode, t)
    )


@LOWERINGS.op("_softmax", "softmax")
def _softmax(b: TorchBuilder, x: H, dim: int, *_: Any) -> H:
    shifted, over = _shifted(b, x, dim)
    powers = b.add(Opcode.EXPONENTIAL, shifted)
    total = b.keep(b.reduce(Opcode.ADD, powers, over, 0), x.shape, over)
    result = b.binary(Opcode.DIVIDE, powers, total, powers.shape.element_type)
    return b.convert(result, b.out.element_type)


@LOWERINGS.op("_log_softmax", "log_softmax")
def _log_softmax(b: TorchBuilder, x: H, dim: int, *_: Any) -> H:
    shifted, over = _shifted(b, x, dim)
    total = b.reduce(Opcode.ADD, b.add(Opcode.EXPONENTIAL, shifted), over, 0)
    log = b.keep(b.add(Opcode.LOG, total), x.shape, over)
    return b.convert(b.binary(Opcode.SUBTRACT, shifted, log, shifted.shape.element_type), b.out.element_type)


def _shifted(b: TorchBuilder, x: H, dim: int) -> tuple[H, Sequence[int]]:
    """`x` less its maximum, so that no power overflows."""
    t = _wide(x.shape.element_type)
    x, over = b.convert(x, t), axes(dim, x.shape.rank)
    top = b.keep(b.reduce(Opcode.MAXIMUM, x, over, lowest(t)), x.shape, over)
    return b.binary(Opcode.SUBTRACT, x, top, t), over
