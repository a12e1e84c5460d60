"""Map inlining: replaces a map by the elementwise ops of its function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class MapInliner(RewritePass):
    """Replace a map whose function consists of elementwise ops and constants by those ops on arrays."""

    name: ClassVar[str] = "map-inliner"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.MAP)
def _inline(i: HloInstruction, b: Builder) -> HloInstruction | None:
    found = lifted(i.attributes["to_apply"], i.operands, i.shape.dimensions, b)
    return None if found is None else found[0]


def lifted(
    function: HloComputation, arguments: Sequence[HloInstruction], sizes: tuple[int, ...], b: Builder
) -> list[HloInstruction] | None:
    """Apply a scalar function elementwise to arrays of these sizes; return its results, several for a tuple root.

    Return None if the function contains anything but elementwise ops and constants.
    """
    root = function.root
    results = root.operands if root.opcode is Opcode.TUPLE else (root,)
    order = [f for f in function.post_order() if f is not root or f in results]
    if not all(_is_simple(f) for f in order):
        return None
    values: dict[HloInstruction, HloInstruction] = {}
    for f in order:
        values[f] = _lift(f, arguments, sizes, [values[o] for o in f.operands], b)
    return [values[r] for r in results]


def _is_simple(f: HloInstruction) -> bool:
    if f.opcode is Opcode.PARAMETER or (f.opcode is Opcode.CONSTANT and f.shape.is_scalar):
        return True
    return f.opcode.is_elementwise and f.opcode is not Opcode.MAP and f.shape.is_scalar


def _lift(
    f: HloInstruction,
    arguments: Sequence[HloInstruction],
    sizes: tuple[int, ...],
    operands: list[HloInstruction],
    b: Builder,
) -> HloInstruction:
    if f.opcode is Opcode.PARAMETER:
        return arguments[f.parameter_number or 0]
    if f.opcode is Opcode.CONSTANT:
        scalar = b.constant(f.value)
        return b.broadcast(scalar, sizes, ()) if sizes else scalar
    return b.with_operands(f, operands, f.shape.with_dimensions(sizes))
