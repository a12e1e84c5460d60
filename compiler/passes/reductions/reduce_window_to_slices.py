"""Reduce-window to slices: combines the slices of the padded input under each element of a small window."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import Window
from compiler.passes.expanders.map_inliner import lifted
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value, scalar_function, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf
from compiler.passes.reductions.separable_windows import separated, separated_selection
from compiler.passes.reductions.windows import edges, in_summing_type, is_running, under_element


@register
@dataclass(frozen=True)
class ReduceWindowToSlices(RewritePass):
    """Rewrite a reduce-window -> slices of the padded inputs, combined one after the other.

    Large windows are combined dimension by dimension. A reduction by more than one op, such as that of a maximum and
    its index, is combined by elementwise ops. Sums of floats of less than 32 bits are in f32 and rounded once.

    Attributes:
        max_parts: maximum number of elements of the window.
        max_ops: maximum number of ops of all combinations, for a reduction by more than one op.
    """

    name: ClassVar[str] = "reduce-window-to-slices"
    rules: ClassVar[RuleSet] = RuleSet()
    max_parts: int = number_option(64, 0, 4096)
    max_ops: int = number_option(1024, 0, 1 << 16)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def cut(i: HloInstruction, b: Builder) -> HloInstruction | None:
            made = separated(i, b) or separated_selection(i, b) if self.max_parts else None
            return made or _cut(i, b, self.max_parts) or _combine(i, b, self.max_parts, self.max_ops)

        return lambda op: (cut,) if op is Opcode.REDUCE_WINDOW else ()


def _cut(i: HloInstruction, b: Builder, max_parts: int) -> HloInstruction | None:
    if len(i.operands) != 2 or not i.shape.is_array or 0 in (*i.shape.dimensions, *i.operand(0).shape.dimensions):
        return None
    x, init = i.operands
    function = scalar_function(i.attributes["to_apply"])
    window: Window = i.attr("window", Window())
    neutral = None if function is None else identity_value(function, i.shape.element_type)
    if function is None or neutral is None or math.prod(w.size for w in window.dims) > max_parts:
        return None
    if {x.shape.element_type, init.shape.element_type} != {i.shape.element_type}:
        return None
    starts_neutral = splat_value(init) == neutral
    x, init = in_summing_type(i, b)
    padded = b.pad(x, b.scalar(neutral, x.shape.element_type), edges(window.dims))
    total = None if starts_neutral else b.broadcast(init, i.shape.dimensions, ())
    for element in itertools.product(*(range(w.size) for w in window.dims)):
        part = b.slice(padded, under_element(element, window.dims, i.shape.dimensions))
        total = part if total is None else b.add(function, total, part)
    return None if total is None else b.convert(total, i.shape.element_type)


def _combine(i: HloInstruction, b: Builder, max_parts: int, max_ops: int) -> HloInstruction | None:
    """Return the results of a reduction by any computation of elementwise ops; padding holds the initial values."""
    count, function = len(i.operands) // 2, i.attributes["to_apply"]
    results = i.shape.tuple_shapes if i.shape.is_tuple else (i.shape,)
    window: Window = i.attr("window", Window())
    parts = math.prod(w.size for w in window.dims)
    if any(0 in s.dimensions for s in (*results, *(o.shape for o in i.operands))):
        return None
    if not 0 < parts <= max_parts or parts * len(function) > max_ops or is_running(i):
        return None
    inputs, starts = i.operands[:count], i.operands[count:]
    if any(x.shape.element_type is not s.shape.element_type for x, s in zip(inputs, starts, strict=True)):
        return None
    dims = results[0].dimensions
    padded = [b.pad(x, s, edges(window.dims)) for x, s in zip(inputs, starts, strict=True)]
    total = [b.broadcast(s, dims, ()) for s in starts]
    for element in itertools.product(*(range(w.size) for w in window.dims)):
        found = [b.slice(x, under_element(element, window.dims, dims)) for x in padded]
        combined = lifted(function, [*total, *found], dims, b)
        if combined is None:
            return None
        total = combined
    return b.add(Opcode.TUPLE, *total) if i.shape.is_tuple else total[0]
