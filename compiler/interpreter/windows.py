"""Window positions and the input elements they cover; used by convolution, reduce-window, select-and-scatter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from compiler.ir.attributes import Window, WindowDim


@dataclass(frozen=True, slots=True)
class Tap:
    """A position inside a window.

    Attributes:
        position: index within the window, one number per dimension.
        outputs: the outputs whose window has an input element at this position.
        inputs: those elements, in the same order.
    """

    position: tuple[int, ...]
    outputs: tuple[slice, ...]
    inputs: tuple[slice, ...]


def taps(window: Window, input_dims: Sequence[int], output_dims: Sequence[int]) -> Iterator[Tap]:
    """Yield the taps in row-major order of the window, without those that only cover padding or holes."""
    lines = [
        [found for k in range(w.size) if (found := _line(w, k, n, out)) is not None]
        for w, n, out in zip(window.dims, input_dims, output_dims, strict=True)
    ]
    for combination in product(*lines):
        yield Tap(
            tuple(k for k, _, _ in combination),
            tuple(o for _, o, _ in combination),
            tuple(i for _, _, i in combination),
        )


def _line(w: WindowDim, k: int, size: int, out: int) -> tuple[int, slice, slice] | None:
    """Return the tap of one dimension: outputs o and inputs i with o * stride + k * dilation - pad = i * lhs_dilate."""
    offset = k * w.rhs_dilate - w.pad_low
    # The outputs that cover an element, not a hole, form an arithmetic progression with this step.
    step = next(s for s in range(1, w.lhs_dilate + 1) if s * w.stride % w.lhs_dilate == 0)
    first = next((o for o in range(min(step, out)) if (o * w.stride + offset) % w.lhs_dilate == 0), None)
    if first is None:
        return None
    stride = step * w.stride // w.lhs_dilate
    i = (first * w.stride + offset) // w.lhs_dilate
    if i < 0:
        skip = -(i // stride)
        first, i = first + skip * step, i + skip * stride
    if first >= out or i >= size:
        return None
    count = min((out - 1 - first) // step, (size - 1 - i) // stride) + 1
    outputs = slice(first, first + (count - 1) * step + 1, step)
    return k, outputs, slice(i, i + (count - 1) * stride + 1, stride)
