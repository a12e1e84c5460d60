"""Degenerate dimensions: removes dimensions of size 1 from the operands of dots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, make_dot
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DegenerateDimensions(RewritePass):
    """Reshape away dimensions of size 1 of dot operands: batch, contracting and free ones."""

    name: ClassVar[str] = "degenerate-dimensions"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DOT)
def _dot(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not is_plain_dot(i):
        return None
    dims = DotDims.of(i)
    lhs, rhs = i.operands
    left = _dropped(lhs, dims.lhs_free(lhs.shape.rank), dims.lhs_batch, dims.lhs_contracting)
    right = _dropped(rhs, dims.rhs_free(rhs.shape.rank), dims.rhs_batch, dims.rhs_contracting)
    if not left and not right:
        return None
    new = DotDims(
        _renumber(dims.lhs_contracting, left),
        _renumber(dims.rhs_contracting, right),
        _renumber(dims.lhs_batch, left),
        _renumber(dims.rhs_batch, right),
    )
    product = make_dot(b, i, _without(lhs, left, b), _without(rhs, right, b), new)
    return b.reshape(product, i.shape.dimensions)


def _dropped(x: HloInstruction, free: list[int], batch: tuple[int, ...], contracting: tuple[int, ...]) -> set[int]:
    """Return the dimensions of size 1, except one if all contracting dimensions are (a dot keeps contracting one)."""
    sizes = x.shape.dimensions
    gone = {d for d in (*free, *batch) if sizes[d] == 1}
    units = [d for d in contracting if sizes[d] == 1]
    return gone | set(units if len(units) < len(contracting) else units[1:])


def _renumber(dims: tuple[int, ...], gone: set[int]) -> tuple[int, ...]:
    return tuple(d - sum(g < d for g in gone) for d in dims if d not in gone)


def _without(x: HloInstruction, gone: set[int], b: Builder) -> HloInstruction:
    return b.reshape(x, [n for d, n in enumerate(x.shape.dimensions) if d not in gone])
