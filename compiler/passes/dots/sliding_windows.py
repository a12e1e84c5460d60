"""Convolutions whose input is padded before: those that a kernel sums from scaled rows, and those with long filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.analysis.convolutions import is_weights_gradient, rows_last
from compiler.ir import HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import ConvDimLabels, PadDim, Window
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable
from compiler.passes.infrastructure.sparing import Keeps
from compiler.passes.reductions.windows import edges


@dataclass(frozen=True)
class WindowPadding:
    """Pad the input of some convolutions, move its rows to the end, and convert narrow floats to f32.

    The loops of the convolutions then neither test positions nor convert elements.

    It is no pass of the registry, because `chosen` depends on the backend.

    Attributes:
        chosen: says of a convolution whether it is computed in such a loop.
    """

    name: ClassVar[str] = "window-padding"
    chosen: Keeps

    def run(self, module: HloModule) -> bool:
        """Rewrite every computation; return whether any changed."""
        return _rewrite_convolutions(module, lambda i, b: _padded(i, b) if self.chosen(i) else None)


@dataclass(frozen=True)
class LongFilterPadding:
    """Pad the input of convolutions of a library with long filters: the library is fast for short paddings only.

    It is no pass of the registry, because `chosen` depends on the backend.

    Attributes:
        chosen: says of a convolution whether the library computes it.
        longest: largest padding along rows for which the library is fast; 28 for AVX-512 in oneDNN, whose blocks of a
            row have as many positions.
    """

    name: ClassVar[str] = "long-filter-padding"
    chosen: Keeps
    longest: int = 28

    def run(self, module: HloModule) -> bool:
        """Rewrite every computation; return whether any changed."""
        return _rewrite_convolutions(module, lambda i, b: _with_padded_input(i, b) if self._is_slow(i) else None)

    def _is_slow(self, i: HloInstruction) -> bool:
        dims = i.attr("window", Window()).dims
        if not dims or max(dims[-1].pad_low, dims[-1].pad_high) <= self.longest or is_weights_gradient(i):
            return False
        if any(w.lhs_dilate > 1 or min(w.pad_low, w.pad_high) < 0 for w in dims):
            return False
        return i.shape.element_type is PrimitiveType.F32 and self.chosen(i)


def _rewrite_convolutions(
    module: HloModule, rewrite: Callable[[HloInstruction, Builder], HloInstruction | None]
) -> bool:
    """Replace convolutions by what `rewrite` makes of them, unless that is None; return whether any changed."""
    changed = False
    for computation in treatable(module):
        fixed = pinned(computation)
        for i in computation.post_order():
            if i.opcode is Opcode.CONVOLUTION and i not in fixed:
                made = rewrite(i, Builder(computation))
                if made is not None:
                    computation.replace(i, made)
                    changed = True
    return changed


def _with_padded_input(i: HloInstruction, b: Builder) -> HloInstruction:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    window: Window = i.attributes["window"]
    x, kernel = i.operands
    attributes = {k: v for k, v in i.attributes.items() if k != "control-predecessors"}
    attributes["window"] = _unpadded(window)
    return b.add(Opcode.CONVOLUTION, _pad_input(x, labels.lhs, window, b), kernel, shape=i.shape, **attributes)


def _pad_input(x: HloInstruction, labels: str, window: Window, b: Builder) -> HloInstruction:
    """Return the input of a convolution, whose dimensions have the labels, with the padding of a window."""
    pads = dict(zip(map(str, range(len(window.dims))), edges(window.dims), strict=True))
    return b.pad(x, b.scalar(0, x.shape.element_type), [pads.get(c, PadDim(0, 0)) for c in labels])


def _unpadded(window: Window) -> Window:
    return Window(tuple(replace(w, pad_low=0, pad_high=0) for w in window.dims))


def _padded(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return the convolution of a padded input; None if there is nothing to change."""
    window: Window = i.attr("window", Window())
    labels: ConvDimLabels = i.attributes["dim_labels"]
    wanted, t = rows_last(i), i.shape.element_type
    x, kernel = i.operands
    is_narrow = any(o.shape.element_type.is_narrow_float for o in (x, kernel, i))
    if wanted == labels and not is_narrow and all(w.pad_low == w.pad_high == 0 for w in window.dims):
        return None
    if is_narrow:
        x, kernel = (b.convert(o, PrimitiveType.F32) for o in (x, kernel))
    x = b.transpose(x, [labels.lhs.index(c) for c in wanted.lhs])
    x = _pad_input(x, wanted.lhs, window, b)
    x = b.add(Opcode.OPTIMIZATION_BARRIER, x)  # else the convolution would compute it again for each of its elements
    attributes = dict(i.attributes)
    attributes["window"] = _unpadded(window)
    attributes["dim_labels"] = wanted
    order = [labels.out.index(c) for c in wanted.out]
    shape = Shape(PrimitiveType.F32 if t.is_narrow_float else t, tuple(i.shape.dimensions[d] for d in order))
    made = b.add(Opcode.CONVOLUTION, x, kernel, shape=shape, **attributes)
    return b.transpose(b.convert(made, t), [wanted.out.index(c) for c in labels.out])
