"""Convolutions of HLO as oneDNN primitives: forward, transposed (deconvolution), and gradients of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from compiler.analysis.convolutions import (
    FEW,
    is_depthwise,
    is_weights_gradient,
    slides_along_rows,
    suits_windows,
    window_size,
)
from compiler.backends.cpu.onednn.description import MAX_SPACE, Description, Space, Tensor, row_major
from compiler.errors import UnsupportedError
from compiler.ir.attributes import ConvDimLabels, Window, WindowDim
from compiler.ir.instruction import HloInstruction
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

TYPES = {
    (T.F32, T.F32, T.F32),
    (T.BF16, T.BF16, T.BF16), (T.BF16, T.BF16, T.F32),
    (T.F16, T.F16, T.F16), (T.F16, T.F16, T.F32),
    (T.U8, T.S8, T.S32), (T.S8, T.S8, T.S32),
}  # fmt: skip
"""Element types of input, kernel and result that oneDNN computes as HLO defines: with sums in f32 or s32."""


MAX_SCALED = 25
"""Maximum number of kernel elements for which our loops over scaled rows are faster than oneDNN."""


def scales_rows(i: HloInstruction) -> bool:
    """Check whether our loops over scaled rows are faster than oneDNN, which arranges features in blocks.

    Of few output features, a block is mostly empty; of many features that are scaled by few numbers each, it takes
    longer to arrange them than to scale them.
    """
    types = {o.shape.element_type for o in (*i.operands, i)}
    if types != {T.F32} or not is_depthwise(i) or not slides_along_rows(i):
        return types <= {T.F32, T.BF16, T.F16} and suits_windows(i)
    features = i.operands[0].shape.dimensions[i.attributes["dim_labels"].lhs.index("f")]
    return features < FEW or window_size(i) <= MAX_SCALED


def describe_convolution(i: HloInstruction) -> Description:
    """Return the primitive that computes a convolution.

    Raises:
        UnsupportedError: no primitive computes exactly this; the message says why.
    """
    form = _Form.of(i)
    if is_weights_gradient(i):
        return _in_two_dimensions(form.weights_gradient())
    if any(w.lhs_dilate > 1 or w.reversal for w in form.window):
        return _in_two_dimensions(form.transposed())
    return _in_two_dimensions(form.forward())


def _in_two_dimensions(d: Description) -> Description:
    """Return a depthwise primitive of one spatial dimension as one of two; others unchanged.

    In oneDNN only depthwise convolutions of two dimensions have implementations of their own.
    """
    grouped = [t for t in d.tensors if len(t.dims) == 4]  # the weights: groups, outputs, inputs, space
    if len(d.space) != 1 or not grouped or grouped[0].dims[1:3] != (1, 1):
        return d
    tensors = []
    for t in d.tensors:
        at = len(t.dims) - 1
        stride = t.dims[at] * t.strides[at]
        dims, strides = (*t.dims[:at], 1, t.dims[at]), (*t.strides[:at], stride, t.strides[at])
        tensors.append(Tensor(t.element_type, dims, strides, t.free))
    return replace(d, tensors=tuple(tensors), space=(Space(1, 1, 0, 0, 0), *d.space))


@dataclass(frozen=True)
class _Form:
    """A convolution with its arrays in oneDNN's order of dimensions.

    Attributes:
        x: input as [batch, features, space...].
        kernel: as [outputs, inputs, space...]; `out` is the result as [batch, features, space...].
        window: one window dimension per spatial dimension.
        feature_groups, batch_groups: numbers of groups.
    """

    x: Tensor
    kernel: Tensor
    out: Tensor
    window: tuple[WindowDim, ...]
    feature_groups: int
    batch_groups: int

    @staticmethod
    def of(i: HloInstruction) -> _Form:
        """Return the form of a convolution; raise UnsupportedError if the library has no such arrays or types."""
        labels: ConvDimLabels = i.attributes["dim_labels"]
        window: Window = i.attr("window", Window())
        shapes = [*(o.shape for o in i.operands), i.shape]
        types = tuple(s.element_type for s in shapes)
        if types not in TYPES:
            raise UnsupportedError(f"oneDNN convolves no {', '.join(t.text for t in types)}")
        if any(s.is_dynamic or s.num_elements == 0 for s in shapes):
            raise UnsupportedError("an array is empty or has a dynamic size")
        if not 1 <= len(window.dims) <= MAX_SPACE:
            raise UnsupportedError(f"a convolution has 1 to {MAX_SPACE} spatial dimensions in oneDNN")
        return _Form(
            _tensor(shapes[0], labels.lhs, "bf"), _tensor(shapes[1], labels.rhs, "oi"),
            _tensor(shapes[2], labels.out, "bf"), window.dims,
            i.attr("feature_group_count", 1), i.attr("batch_group_count", 1),
        )  # fmt: skip

    def forward(self) -> Description:
        """Return the primitive of a convolution without dilated input."""
        space = [Space(w.size, w.stride, w.rhs_dilate - 1, w.pad_low, w.pad_high) for w in self.window]
        return self._describe("convolution", space)

    def transposed(self) -> Description:
        """Return the primitive of a convolution over a dilated input, which oneDNN takes with the reversed kernel."""
        space = []
        for w in self.window:
            if w.stride > 1 or not (w.reversal or w.size == 1):
                raise UnsupportedError("oneDNN dilates the input only with stride 1 and a reversed kernel")
            reach = (w.size - 1) * w.rhs_dilate
            space.append(Space(w.size, w.lhs_dilate, w.rhs_dilate - 1, reach - w.pad_low, reach - w.pad_high))
        return self._describe("deconvolution", space)

    def _describe(self, operation: str, space: list[Space]) -> Description:
        if self.batch_groups > 1:
            raise UnsupportedError("oneDNN groups the batch only in gradients of weights")
        tensors = (_arranged(self.x), _free(_grouped(self.kernel, self.feature_groups)), _arranged(self.out))
        return Description(operation, tensors, space=tuple(space))

    def weights_gradient(self) -> Description:
        """Return the primitive of the gradient of a convolution's weights.

        In HLO, batch and features of the input are exchanged, and the output's gradient is the kernel, whose dilation
        is the stride of the convolution.
        """
        if self.feature_groups > 1:
            raise UnsupportedError("oneDNN groups the batch, and not features, in gradients of weights")
        space = []
        for w, size, kernel in zip(self.window, self.x.dims[2:], self.out.dims[2:], strict=True):
            if w.lhs_dilate > 1 or w.reversal:
                raise UnsupportedError(
                    "oneDNN computes gradients of weights without dilation and reversal of the input"
                )
            stride = w.rhs_dilate if w.size > 1 else max(1, w.rhs_dilate)
            high = (w.size - 1) * stride + (kernel - 1) * w.stride + 1 - size - w.pad_low
            space.append(Space(kernel, stride, w.stride - 1, w.pad_low, high))
        source = _exchanged(self.x)
        output = _exchanged(self.kernel)
        weights = _grouped(_exchanged(self.out), self.batch_groups)
        tensors = (_arranged(source), _arranged(output), _free(weights))
        return Description("weights-gradient", tensors, space=tuple(space))


def _tensor(shape: Shape, labels: str, first: str) -> Tensor:
    """Return an array with its dimensions in the order `first`, then the spatial ones."""
    order = [labels.index(c) for c in first] + [labels.index(c) for c in sorted(c for c in labels if c.isdigit())]
    strides = [math.prod(shape.dimensions[d + 1 :]) for d in range(shape.rank)]
    return Tensor(shape.element_type, tuple(shape.dimensions[d] for d in order), tuple(strides[d] for d in order))


def _exchanged(t: Tensor) -> Tensor:
    """Return a tensor with its first two dimensions exchanged."""
    (a, b, *rest), (s, u, *strides) = t.dims, t.strides
    return Tensor(t.element_type, (b, a, *rest), (u, s, *strides), t.free)


def _grouped(kernel: Tensor, groups: int) -> Tensor:
    """Return a kernel with its outputs divided into groups: [groups, outputs, inputs, space...]."""
    if groups == 1:
        return kernel
    outputs = kernel.dims[0] // groups
    return Tensor(
        kernel.element_type, (groups, outputs, *kernel.dims[1:]),
        (kernel.strides[0] * outputs, *kernel.strides), kernel.free,
    )  # fmt: skip


def _arranged(t: Tensor) -> Tensor:
    """Return a tensor whose layout is free unless it is batch, space, features, which oneDNN computes as it is."""
    batch, features, *space = t.dims
    outer, *inner, last = row_major((batch, *space, features))
    strides = (outer, last, *inner)
    same = all(a == b or n == 1 for n, a, b in zip(t.dims, t.strides, strides, strict=True))
    return Tensor(t.element_type, t.dims, strides) if same else _free(t)


def _free(t: Tensor) -> Tensor:
    return Tensor(t.element_type, t.dims, t.strides, True)
