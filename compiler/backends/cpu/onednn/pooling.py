"""Windowed maxima and sums of HLO as oneDNN's pooling."""

from __future__ import annotations

import math

import numpy as np

from compiler.backends.cpu.onednn.description import MAX_SPACE, Description, PostOp, Space, Tensor, row_major
from compiler.codegen.templates.running import running_axis
from compiler.errors import UnsupportedError
from compiler.ir.attributes import Window, WindowDim
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MAX_ELEMENTS = 64
"""Windows with more elements are left to our kernels."""

MAX_ROW_MAXIMA = 16
"""Maxima of windows of the last dimensions with at most so many elements are computed along the rows by our kernels."""

MAX_UNPADDED = 36
"""Windows without padding and with at most so many elements are computed by our kernels, which other ops may join."""

SUMS_NEED_FEATURES_LAST = True
"""Sums over windows of the last dimensions are left to our kernels, whose vectors run along the rows."""


def describe_pooling(i: HloInstruction) -> Description:
    """Return the primitive that computes a reduce-window, or a custom fusion of one.

    Raises:
        UnsupportedError: no primitive computes exactly this; the message says why.
    """
    window_op = i.attributes["calls"].root if i.opcode is Opcode.FUSION else i
    if window_op.opcode is not Opcode.REDUCE_WINDOW or len(window_op.operands) != 2:
        raise UnsupportedError("oneDNN has no such window")
    x, init = window_op.operands
    if x.shape.element_type is not T.F32 or window_op.shape.element_type is not T.F32 or x.shape.is_dynamic:
        raise UnsupportedError("oneDNN pools arrays of f32 here")
    if i.opcode is Opcode.FUSION and x.opcode is not Opcode.PARAMETER:
        raise UnsupportedError("the fusion computes more than a window")
    operation = _operation(window_op, init)
    window: Window = window_op.attributes["window"]
    spatial = [d for d, w in enumerate(window.dims) if w != WindowDim(1)]
    if not spatial or math.prod(w.size for w in window.dims) > MAX_ELEMENTS or not window_op.shape.num_elements:
        raise UnsupportedError("the window has no extent or is too large")
    first, last = spatial[0], spatial[-1]
    sizes = x.shape.dimensions
    if last - first >= MAX_SPACE:
        raise UnsupportedError(f"a window has at most {MAX_SPACE} dimensions in oneDNN")
    space = tuple(_space(w) for w in window.dims[first : last + 1])
    if operation == "sum-pool" and math.prod(sizes[last + 1 :]) == 1 and SUMS_NEED_FEATURES_LAST:
        raise UnsupportedError("our kernels sum windows over the last dimensions as fast")
    source, result = (_tensor(s, first, last) for s in (sizes, window_op.shape.dimensions))
    posts = () if operation == "max-pool" else (PostOp("linear", alpha=float(math.prod(s.kernel for s in space))),)
    return Description(operation, (source, result), posts=posts, space=space)


def suits_scan(i: HloInstruction) -> bool:
    """Check for a cumulative reduction, or a custom fusion of one: our scan has one step per element, a window many."""
    window_op = i.attributes["calls"].root if i.opcode is Opcode.FUSION else i
    return window_op.opcode is Opcode.REDUCE_WINDOW and running_axis(window_op) is not None


def suits_rows(i: HloInstruction) -> bool:
    """Check for a small window of the last dimensions, whose maxima our kernels compute faster, with vectors of rows.

    Measured on two cores with AVX-512: oneDNN takes 1 to 5 times as long for windows of 2x2 and 3x3, with any stride
    and padding, and half as long for padded windows of 5x5.
    """
    window: Window = i.attr("window", Window())
    spatial = [d for d, w in enumerate(window.dims) if w != WindowDim(1)]
    if not spatial or not i.operands[0].shape.is_array:
        return False
    inner = math.prod(i.operands[0].shape.dimensions[spatial[-1] + 1 :])
    return inner == 1 and math.prod(w.size for w in window.dims) <= MAX_ROW_MAXIMA


def suits_slices(i: HloInstruction) -> bool:
    """Check for a small window without padding, which our kernels compute faster from slices, in one pass.

    Measured on two cores with AVX-512, see results/kernels/pooling.md: oneDNN takes up to 5 times as long, and up to 14
    times with a bias before the window, which our kernel computes as well. With padding our kernels take longer.
    """
    window: Window = i.attr("window", Window())
    padded = any(w.pad_low or w.pad_high for w in window.dims)
    return not padded and math.prod(w.size for w in window.dims) <= MAX_UNPADDED


def _operation(window_op: HloInstruction, init: HloInstruction) -> str:
    """Return the operation of a window with the identity element of its function as the initial value."""
    combine = window_op.attributes["to_apply"]
    root = combine.root
    plain = len(root.operands) == 2 and set(root.operands) == set(combine.parameters)
    if not plain or init.opcode is not Opcode.CONSTANT or init.value.array is None:
        raise UnsupportedError("oneDNN pools by maximum or sum, from a constant")
    start = float(init.value.array)
    if root.opcode is Opcode.MAXIMUM and start == -np.inf:
        return "max-pool"
    if root.opcode is Opcode.ADD and start == 0:
        return "sum-pool"
    raise UnsupportedError("oneDNN pools by maximum or sum, from their identity elements")


def _space(w: WindowDim) -> Space:
    # A window that lies in the padding altogether would have no maximum in oneDNN.
    if w.lhs_dilate > 1 or w.rhs_dilate > 1 or not 0 <= w.pad_low < w.size or not 0 <= w.pad_high < w.size:
        raise UnsupportedError("oneDNN pools without dilation, and with less padding than the window's size")
    return Space(w.size, w.stride, 0, w.pad_low, w.pad_high)


def _tensor(sizes: tuple[int, ...], first: int, last: int) -> Tensor:
    """Return an array as [batch, features, space...]: the features follow the space, or precede it if nothing does."""
    outer, space, inner = sizes[:first], sizes[first : last + 1], math.prod(sizes[last + 1 :])
    if inner == 1 and outer:
        dims = (math.prod(outer[:-1]), outer[-1], *space)
        return Tensor(T.F32, dims, row_major(dims))
    batch, *steps, one = row_major((math.prod(outer), *space, inner))
    return Tensor(T.F32, (math.prod(outer), inner, *space), (batch, one, *steps))
