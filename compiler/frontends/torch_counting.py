"""Lowerings of ATen ops that count: histograms, the most frequent value."""

from __future__ import annotations

import math
from typing import Any

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, axes, highest, lowest
from compiler.frontends.torch_indexing import cumulative, gather
from compiler.frontends.torch_reductions import extreme, sorted_pair
from compiler.ir import HloInstruction, Opcode, Shape

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("histc")
def _histogram(b: TorchBuilder, x: H, bins: int = 100, min: Any = 0, max: Any = 0) -> H:
    """Count the elements in each of `bins` bins of equal width; the last bin includes its upper end."""
    t, n = x.shape.element_type, x.shape.num_elements
    if not t.is_float:
        raise b.unsupported(f"a histogram of type {t.text}")
    x = b.reshape(x, (n,))
    low, high = b.constant(min, t), b.constant(max, t)
    if min == max:
        low = b.reduce(Opcode.MINIMUM, x, (0,), highest(t))
        high = b.reduce(Opcode.MAXIMUM, x, (0,), lowest(t))
        same = b.compare(low, high, "EQ")
        low, high = (b.select(same, b.binary(Opcode.ADD, v, d, t), v, t) for v, d in ((low, -1), (high, 1)))
    width = b.binary(Opcode.SUBTRACT, high, low, t)
    place = b.binary(Opcode.MULTIPLY, b.binary(Opcode.SUBTRACT, x, low, t), bins, t)
    number = b.convert(b.add(Opcode.FLOOR, b.binary(Opcode.DIVIDE, place, width, t)), T.S64)
    number = b.binary(Opcode.MINIMUM, number, bins - 1, T.S64)
    inside = b.binary(Opcode.AND, b.compare(x, low, "GE"), b.compare(x, high, "LE"), T.PRED)
    number = b.select(inside, number, bins, T.S64)  # out of bounds, where scatter drops updates
    return b.add(
        Opcode.SCATTER, b.full(0, Shape(t, (bins,))), b.reshape(number, (n, 1)), b.full(1, Shape(t, (n,))),
        to_apply=b.function(Opcode.ADD, t), update_window_dims=(), inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip


@LOWERINGS.op("mode")
def _mode(b: TorchBuilder, x: H, dim: int = -1, keepdim: bool = False) -> list[H]:
    """Return the most frequent value (the smallest of several) and its last position."""
    if x.shape.rank == 0:
        return [x, b.full(0, Shape(T.S64))]
    at = dim % x.shape.rank
    values, places = sorted_pair(b, x, at, False)
    number = b.add(Opcode.IOTA, shape=places.shape, iota_dimension=at)
    before = gather(b, values, at, b.binary(Opcode.MAXIMUM, b.binary(Opcode.SUBTRACT, number, 1, T.S64), 0, T.S64))
    # In sorted order, the length of the run up to each element is its distance from the start of the run.
    begins = b.binary(Opcode.OR, b.compare(values, before, "NE"), b.compare(number, 0, "EQ"), T.PRED)
    first = cumulative(b, b.select(begins, number, 0, T.S64), at, Opcode.MAXIMUM, 0)
    length = b.binary(Opcode.SUBTRACT, number, first, T.S64)
    _, where = extreme(b, length, at, "GT")
    where = b.keep_dims(where, places.shape, (at,))
    return [b.reshape(gather(b, v, at, where), b.out.dimensions) for v in (values, places)]


@LOWERINGS.op("nanmedian")
def _nan_median(b: TorchBuilder, x: H, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median of the elements that are not NaN; NaN if there are none."""
    if dim is None:
        x, at = b.reshape(x, (x.shape.num_elements,)), 0
    else:
        at = axes(dim, x.shape.rank)[0]
    values, places = sorted_pair(b, x, at, False)  # NaN last
    numbers = b.convert(b.compare(x, x, "EQ"), T.S64)
    count = b.keep_dims(b.reduce(Opcode.ADD, numbers, (at,), 0), x.shape, (at,))
    middle = b.binary(Opcode.DIVIDE, b.binary(Opcode.SUBTRACT, count, 1, T.S64), 2, T.S64)
    middle = b.binary(Opcode.MAXIMUM, middle, 0, T.S64)
    found = [b.reshape(gather(b, v, at, middle), b.out.dimensions) for v in (values, places)]
    return found[0] if dim is None else found


@LOWERINGS.op("fft_rfftfreq", "fft_fftfreq")
def _frequencies(b: TorchBuilder, n: int, d: float = 1.0, **_: Any) -> H:
    """Return the frequencies of a transform of `n` samples with spacing `d`."""
    numbers = b.convert(b.add(Opcode.IOTA, shape=Shape(T.S64, b.out.dimensions), iota_dimension=0), b.out.element_type)
    if b.what.startswith("aten.fft_fftfreq"):
        upper = b.compare(numbers, math.ceil(n / 2), "GE")
        numbers = b.select(upper, b.binary(Opcode.SUBTRACT, numbers, n), numbers)
    return b.binary(Opcode.MULTIPLY, numbers, 1.0 / (n * d))
