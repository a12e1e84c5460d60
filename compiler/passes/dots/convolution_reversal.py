"""Reversed kernels of convolutions: either in the window or as a `reverse`, whichever form libraries compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import ConvDimLabels, Window
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@dataclass(frozen=True)
class ConvolutionReversal(RewritePass):
    """Reverse the kernel in the window where a convolution is the transpose of another, and by a `reverse` elsewhere.

    A convolution over a dilated input, or of stride 1 with a kernel that is reversed in all dimensions, is the
    transpose of a convolution with the kernel as it is: the gradient of its input. Libraries have operations for these
    two forms, and none for a kernel that is reversed in some dimensions only.
    """

    name: ClassVar[str] = "convolution-reversal"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.CONVOLUTION)
def _reversal(i: HloInstruction, b: Builder) -> HloInstruction | None:
    window: Window = i.attr("window", Window())
    labels: ConvDimLabels = i.attributes["dim_labels"]
    kernel = i.operands[1]
    in_window = {d for d, w in enumerate(window.dims) if w.reversal and w.size > 1}
    reversed_before: set[int] = set()
    if kernel.opcode is Opcode.REVERSE:
        names = [labels.rhs[d] for d in kernel.attributes["dimensions"]]
        if not all(n.isdigit() for n in names):
            return None
        reversed_before = {d for n in names if window.dims[d := int(n)].size > 1}
        kernel = kernel.operands[0]
    effective = in_window ^ reversed_before
    every = {d for d, w in enumerate(window.dims) if w.size > 1}
    dilated = any(w.lhs_dilate > 1 for w in window.dims)
    is_transpose = dilated or (effective == every and all(w.stride == 1 for w in window.dims))
    wanted = every if is_transpose else set()
    if wanted == in_window and (i.operands[1] is kernel) == (effective == wanted):
        return None
    turned = tuple(sorted(labels.rhs.index(str(d)) for d in effective ^ wanted))
    if turned:
        kernel = b.add(Opcode.REVERSE, kernel, dimensions=turned)
    dims = tuple(replace(w, reversal=d in wanted) for d, w in enumerate(window.dims))
    attributes = {k: v for k, v in i.attributes.items() if k not in ("control-predecessors", "window")}
    return b.add(Opcode.CONVOLUTION, i.operands[0], kernel, shape=i.shape, window=Window(dims), **attributes)
