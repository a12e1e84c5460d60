"""Reduce-window rewriting: windows without overlap become reductions; cumulative ones are done by doubling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim, Window, WindowDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value, is_op, scalar_function, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf
from compiler.passes.reductions.windows import edges, has_scan, in_summing_type, running_axis

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ReduceWindowRewriter(RewritePass):
    """Rewrite reduce-window of one operand that starts from the identity element of its function.

    - Adjacent windows without padding: a reshape and a reduce.
    - One window that covers its dimension: a reduce.
    - A cumulative reduction (window as long as the dimension, one result per element, padding on one side): log2(n)
      combinations with a shifted copy. Sums change their order; those of floats narrower than 32 bits are computed in
      f32 and rounded once.

    Attributes:
        running: rewrite cumulative reductions too, of which otherwise those stay that have a kernel.
    """

    name: ClassVar[str] = "reduce-window-rewriter"
    rules: ClassVar[RuleSet] = RULES
    running: bool = True

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""
        if self.running:
            return self.rules.of
        others = tuple(rule for rule in self.rules.of(Opcode.REDUCE_WINDOW) if rule is not _running)
        slices = self.rules.of(Opcode.SLICE)

        def unless_scan(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return None if has_scan(i) else _running(i, b)

        windows = (*others, unless_scan)
        return lambda op: windows if op is Opcode.REDUCE_WINDOW else slices if op is Opcode.SLICE else ()


@RULES.on(Opcode.REDUCE_WINDOW)
def _without_overlap(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not _plain(i):
        return None
    source, init = i.operands
    split: list[int] = []
    reduced: list[int] = []
    cut: list[SliceDim] = []
    for w, n, count in zip(_window(i), source.shape.dimensions, i.shape.dimensions, strict=True):
        if w.pad_low or w.pad_high or w.lhs_dilate != 1 or w.rhs_dilate != 1:
            return None
        whole = count == 1 and w.size <= n
        if w.stride != w.size and not whole and w.size != 1:
            return None
        step = 1 if w.size == 1 else w.size
        if w.size == 1 and w.stride != 1:
            cut.append(SliceDim(0, (count - 1) * w.stride + 1, w.stride))
        else:
            cut.append(SliceDim(0, count * step))
        split.append(count)
        if w.size != 1:
            reduced.append(len(split))
            split.append(w.size)
    if not reduced:
        return b.slice(source, cut)
    return b.reduce(b.reshape(b.slice(source, cut), split), init, reduced, i.attributes["to_apply"])


@RULES.on(Opcode.REDUCE_WINDOW)
def _one_element(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite windows of one element with padding or dilation -> pad."""
    if not _plain(i) or any(w.size != 1 or w.stride != 1 for w in _window(i)):
        return None
    spec = edges(_window(i))
    return b.pad(i.operand(0), i.operand(1), spec) if any(p != PadDim(0, 0) for p in spec) else None


@RULES.on(Opcode.REDUCE_WINDOW)
def _running(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not _plain(i):
        return None
    source, axis = i.operand(0), running_axis(i)
    if axis is None:
        return None
    n, w = source.shape.dimensions[axis], _window(i)[axis]
    forwards = WindowDim(n, pad_low=n - 1)
    if _only_the_whole(i, axis, w == forwards):
        return None  # see _slice_of_running
    function = scalar_function(i.attributes["to_apply"])
    (total, init), shift = in_summing_type(i, b), 1
    # Hillis-Steele scan: after round k, each element combines 2^k neighbors.
    while shift < n and function is not None:
        moved = PadDim(shift, -shift) if w == forwards else PadDim(-shift, shift)
        padding = [moved if d == axis else PadDim(0, 0) for d in range(source.shape.rank)]
        total = b.add(function, total, b.pad(total, init, padding))
        shift *= 2
    return b.convert(total, i.shape.element_type)


def _only_the_whole(i: HloInstruction, axis: int, forwards: bool) -> bool:
    """Check whether only the last element of a cumulative reduction is used."""
    last = i.shape.dimensions[axis] - 1 if forwards else 0
    taken = SliceDim(last, last + 1)
    return not i.is_root and all(is_op(u, Opcode.SLICE) and u.attributes["slice"][axis] == taken for u in i.users)


@RULES.on(Opcode.SLICE)
def _slice_of_running(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite the last element of a cumulative reduction -> reduce."""
    x = i.operand(0)
    if not is_op(x, Opcode.REDUCE_WINDOW) or not _plain(x):
        return None
    axis = running_axis(x)
    if axis is None:
        return None
    n = x.shape.dimensions[axis]
    forwards = _window(x)[axis] == WindowDim(n, pad_low=n - 1)
    if not _only_the_whole(x, axis, forwards):
        return None
    total = b.reduce(x.operand(0), x.operand(1), (axis,), x.attributes["to_apply"])
    kept = b.reshape(total, [1 if d == axis else m for d, m in enumerate(x.shape.dimensions)])
    return b.slice(kept, [SliceDim(0, 1) if d == axis else s for d, s in enumerate(i.attributes["slice"])])


def _window(i: HloInstruction) -> tuple[WindowDim, ...]:
    window: Window = i.attr("window", Window())
    return window.dims


def _plain(i: HloInstruction) -> bool:
    """Check for one non-empty operand, no reversal, and an initial value that is the identity element."""
    if len(i.operands) != 2 or not i.shape.is_array or i.shape.num_elements == 0 or any(w.reversal for w in _window(i)):
        return False
    function, start = scalar_function(i.attributes["to_apply"]), splat_value(i.operand(1))
    if function is None or start is None or i.operand(0).shape.element_type is not i.shape.element_type:
        return False
    neutral = identity_value(function, i.shape.element_type)
    return neutral is not None and bool(start == neutral)
