"""Inputs on which the traffic of a kernel is counted: random values of its types, the same in each process."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir.shape import Shape

__all__ = ["aligned_array", "input_arrays"]

Array = npt.NDArray[Any]
ALIGNMENT = 256
"""Bytes to which a GPU aligns its arrays."""
PERIOD = 1 << 16
"""Elements after which the values of a large array repeat."""


def input_arrays(shapes: tuple[Shape, ...]) -> list[Array]:
    """Return inputs of a kernel.

    Floats lie between -2 and 2. Integers may be indices, so they lie between 0 and the largest dimension of the inputs.
    """
    rng = np.random.default_rng(0)
    largest = max((n for s in shapes for n in s.dimensions), default=1)
    return [_filled(s, largest, rng) for s in shapes]


def aligned_array(shape: Shape) -> Array:
    """Return an array, aligned as on a GPU, whose memory the system provides when it is first touched."""
    size = shape.byte_size
    room = np.zeros(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(shape.dtype).reshape(shape.dimensions)


def _filled(shape: Shape, largest: int, rng: np.random.Generator) -> Array:
    out = aligned_array(shape)
    flat = out.reshape(-1)
    period = min(flat.size, PERIOD)
    kind = shape.dtype.kind
    if kind == "b":
        values = rng.integers(0, 2, period).astype(np.bool_)
    elif kind in "iu":
        limit = min(largest, np.iinfo(shape.dtype).max)
        values = rng.integers(0, max(1, limit), period).astype(shape.dtype)
    elif kind == "c":
        values = (rng.uniform(-2, 2, period) + 1j * rng.uniform(-2, 2, period)).astype(shape.dtype)
    else:  # ml_dtypes have the kind of raw bytes
        values = rng.uniform(-2, 2, period).astype(shape.dtype)
    whole = flat.size // period * period if period else 0
    if whole:
        flat[:whole].reshape(-1, period)[:] = values
        flat[whole:] = values[: flat.size - whole]
    return out
