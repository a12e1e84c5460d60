"""Windows as pads and slices, for the expansion of convolutions and windowed reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim, Window, WindowDim
from compiler.ir.types import PrimitiveType
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_real_float, scalar_function

SHORT_SCAN = 8
"""Maximum number of elements of a cumulative reduction that is combined with the ops around it."""
LARGE_SCAN = 4096
"""Minimum number of elements of a cumulative reduction in a loop that has a kernel of its own."""


def edges(window: Sequence[WindowDim]) -> list[PadDim]:
    """Return the padding, with holes, of the input that the window slides over."""
    return [PadDim(w.pad_low, w.pad_high, w.lhs_dilate - 1) for w in window]


def under_element(element: Sequence[int], window: Sequence[WindowDim], positions: Sequence[int]) -> list[SliceDim]:
    """Return the slice of the padded input under one element of the window, at all window positions."""
    starts = (k * w.rhs_dilate for k, w in zip(element, window, strict=True))
    return list(_strided(starts, positions, [w.stride for w in window]))


def at_position(position: Sequence[int], window: Sequence[WindowDim]) -> list[SliceDim]:
    """Return the slice of the padded input under the window at one of its positions."""
    starts = (p * w.stride for p, w in zip(position, window, strict=True))
    return list(_strided(starts, [w.size for w in window], [w.rhs_dilate for w in window]))


def _strided(starts: Iterator[int], counts: Sequence[int], steps: Sequence[int]) -> Iterator[SliceDim]:
    for start, count, step in zip(starts, counts, steps, strict=True):
        yield SliceDim(start, start + (count - 1) * step + 1, step)


def running_axis(i: HloInstruction) -> int | None:
    """Return the dimension along which a reduce-window is cumulative, None if it is not.

    Its window is then as long as the dimension, with one result per element and padding on one side.
    """
    return _running_axis(i) if i.shape.is_array else None


def is_running(i: HloInstruction) -> bool:
    """Check whether a reduce-window, of one or several arrays, is cumulative."""
    return _running_axis(i) is not None


def _running_axis(i: HloInstruction) -> int | None:
    window: Window = i.attr("window", Window())
    moving = [d for d, w in enumerate(window.dims) if w != WindowDim(1)]
    if len(moving) != 1:
        return None
    (axis,) = moving
    n = i.operand(0).shape.dimensions[axis]
    forms = (WindowDim(n, pad_low=n - 1), WindowDim(n, pad_high=n - 1))
    return axis if window.dims[axis] in forms and n > 1 else None


def has_scan(i: HloInstruction) -> bool:
    """Check for a cumulative reduce-window that is best computed by a kernel of its own.

    A short one is combined with the ops around it instead, and so is a small one in the body of a loop, because the
    kernel of a whole loop has no scans.
    """
    if i.opcode is not Opcode.REDUCE_WINDOW or not i.shape.is_array:
        return False
    axis, t = running_axis(i), i.operand(0).shape.element_type
    if axis is None or i.shape.dimensions[axis] <= SHORT_SCAN:
        return False
    module = i.parent.parent if i.parent is not None else None
    is_outside = module is not None and module.entry is i.parent
    is_supported = t is PrimitiveType.PRED or (t.bits >= 8 and t.is_integer) or (t.is_float and t.bits >= 16)
    return is_supported and (is_outside or i.shape.num_elements >= LARGE_SCAN)


def in_summing_type(i: HloInstruction, b: Builder) -> tuple[HloInstruction, HloInstruction]:
    """Return operand and initial value of a reduce-window, in f32 if it adds or multiplies narrower floats.

    The result is then rounded once, whatever the number of terms.
    """
    x, init = i.operands
    sums = scalar_function(i.attributes["to_apply"]) in (Opcode.ADD, Opcode.MULTIPLY)
    if not sums or not is_real_float(i.shape) or i.shape.element_type.bits >= 32:
        return x, init
    return b.convert(x, PrimitiveType.F32), b.convert(init, PrimitiveType.F32)
