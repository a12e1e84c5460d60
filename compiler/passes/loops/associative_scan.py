"""Associative scans: prefix sums by doubling, and plain reductions by a reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import PadDim, SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet
from compiler.passes.loops.scans import ScanView, step_of_array, view_scan, with_steps

RULES = RuleSet()
_ASSOCIATIVE = frozenset(
    {Opcode.ADD, Opcode.MULTIPLY, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR, Opcode.XOR}
)


@register
@dataclass(frozen=True)
class AssociativeScanRewriter(RewritePass):
    """Rewrite scans that combine each step with the carry by add, multiply, maximum, minimum, and, or, xor.

    - If the outputs are the carry before or after each step: log2(length) combinations with a shifted copy, each of
    which
      processes all steps at once (Hillis and Steele, "Data parallel algorithms", 1986).
    - If there are no outputs: a reduce over the scanned dimension, which can be parallelized.

    The order of summation changes, so a float sum near the maximum may overflow in one order and not in the other.
    """

    name: ClassVar[str] = "associative-scan-rewriter"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.SCAN)
def _running(i: HloInstruction, b: Builder) -> HloInstruction | None:
    view = view_scan(i)
    if view is None or view.length == 0 or len(view.inputs) != 1 or len(view.init) != 1 or not i.shape.is_tuple:
        return None
    function = _function(view)
    if function is None:
        return None
    neutral = identity_value(function, i.operand(0).shape.element_type)
    *outputs, following = view.returned
    if neutral is None or any(o is not following and o is not _carry(view) for o in outputs):
        return None
    if not outputs:
        return b.add(Opcode.TUPLE, _reduced(view, function, neutral, b))
    before, behind, last = _prefixes(view, function, neutral, b)
    return b.add(Opcode.TUPLE, *(behind if o is following else before for o in outputs), last)


def _carry(view: ScanView) -> HloInstruction:
    return view.function.parameters[1]


def _function(view: ScanView) -> Opcode | None:
    """Return the opcode that combines a step with the carry, if the function does nothing else."""
    following = view.returned[-1]
    if following.opcode not in _ASSOCIATIVE or set(following.operands) != set(view.function.parameters):
        return None
    return following.opcode if view.inputs[0].shape.element_type is view.init[0].shape.element_type else None


def _reduced(view: ScanView, function: Opcode, neutral: Any, b: Builder) -> HloInstruction:
    x, init = view.inputs[0], view.init[0]
    kind = x.shape.element_type
    combine = _combiner(function, kind, b)
    total = b.reduce(x, b.scalar(neutral, kind), (view.axis,), combine)
    return b.add(function, total, init)


def _combiner(function: Opcode, kind: PrimitiveType, b: Builder) -> HloComputation:
    module = b.computation.parent
    if module is None:
        raise ValueError(f"computation %{b.computation.name} is not in a module, so it cannot have a reducer")
    made = module.add(HloComputation(function.text))
    first, second = (made.add_parameter(n, Shape(kind)) for n in range(2))
    made.root = made.add(function, [first, second])
    return made


def _prefixes(
    view: ScanView, function: Opcode, neutral: Any, b: Builder
) -> tuple[HloInstruction, HloInstruction, HloInstruction]:
    """Return the carries before each step, those after each step, and the last carry."""
    x, init, axis = view.inputs[0], view.init[0], view.axis
    start = b.reshape(init, with_steps(init.shape.dimensions, axis, 1))
    # The initial carry becomes an additional first step.
    total = b.concatenate((x, start) if view.reverse else (start, x), axis)
    filler, shift = b.scalar(neutral, x.shape.element_type), 1
    # Before round k, element i combines up to `shift` = 2^k elements that end at i.
    while shift <= view.length:
        moved = PadDim(-shift, shift) if view.reverse else PadDim(shift, -shift)
        padding = [moved if d == axis else PadDim(0, 0) for d in range(total.shape.rank)]
        total = b.add(function, total, b.pad(total, filler, padding))
        shift *= 2
    low, high = (_steps(total, axis, n, view.length, b) for n in (0, 1))
    last = step_of_array(total, axis, 0 if view.reverse else view.length, b)
    return (high, low, last) if view.reverse else (low, high, last)


def _steps(x: HloInstruction, axis: int, first: int, count: int, b: Builder) -> HloInstruction:
    return b.slice(
        x, [SliceDim(first, first + count) if d == axis else SliceDim(0, n) for d, n in enumerate(x.shape.dimensions)]
    )
