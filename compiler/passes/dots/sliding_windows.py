"""Convolutions that a kernel computes as sums of scaled rows: what they read is padded and widened before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.analysis.convolutions import rows_last
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
        changed = False
        for computation in treatable(module):
            fixed = pinned(computation)
            for i in computation.post_order():
                if i.opcode is Opcode.CONVOLUTION and i not in fixed and self.chosen(i):
                    made = _padded(i, Builder(computation))
                    if made is not None:
                        computation.replace(i, made)
                        changed = True
        return changed


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
    pads = dict(zip(map(str, range(len(window.dims))), edges(window.dims), strict=True))
    x = b.pad(x, b.scalar(0, x.shape.element_type), [pads.get(c, PadDim(0, 0)) for c in wanted.lhs])
    x = b.add(Opcode.OPTIMIZATION_BARRIER, x)  # else the convolution would compute it again for each of its elements
    attributes = dict(i.attributes)
    attributes["window"] = Window(tuple(replace(w, pad_low=0, pad_high=0) for w in window.dims))
    attributes["dim_labels"] = wanted
    order = [labels.out.index(c) for c in wanted.out]
    shape = Shape(PrimitiveType.F32 if t.is_narrow_float else t, tuple(i.shape.dimensions[d] for d in order))
    made = b.add(Opcode.CONVOLUTION, x, kernel, shape=shape, **attributes)
    return b.transpose(b.convert(made, t), [wanted.out.index(c) for c in labels.out])
