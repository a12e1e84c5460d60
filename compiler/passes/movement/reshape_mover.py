"""Reshape mover: sinks reshapes and transposes below elementwise ops, where they meet and cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.reshapes import kept_dimensions
from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import single_use, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import ELEMENTWISE, RewritePass, RuleSet, RulesOf

_MOVABLE = frozenset(op for op in ELEMENTWISE if op not in (Opcode.COPY, Opcode.STOCHASTIC_CONVERT, Opcode.MAP))

_MAX_VISITED = 32
"""Maximum number of ops that are visited to decide whether a transpose moves."""


@register
@dataclass(frozen=True)
class ReshapeMover(RewritePass):
    """Rewrite op(reshape(a), reshape(b)) -> reshape(op(a, b)); transposes with the same permutation likewise.

    Only if all operands have the same movement or are splats, or broadcasts beside a transpose; and only if at least
    one movement has no other user, or is a transpose whose other users can follow, so that none is added.

    Attributes:
        shared_products: also move transposes of matrix products that have several users; XLA computes such a product
            in the transposed order at no cost.
    """

    name: ClassVar[str] = "reshape-mover"
    rules: ClassVar[RuleSet] = RuleSet()
    shared_products: bool = True

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def sink(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return None if not self.shared_products and any(map(_turns_shared_product, i.operands)) else _sink(i, b)

        return lambda op: (sink,) if op in _MOVABLE else ()


def _turns_shared_product(o: HloInstruction) -> bool:
    return o.opcode is Opcode.TRANSPOSE and o.operand(0).opcode is Opcode.DOT and not single_use(o)


def _sink(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if i.shape.rank == 0 and not any(o.opcode is Opcode.RESHAPE for o in i.operands):
        return None
    moved = [o for o in i.operands if o.opcode in (Opcode.RESHAPE, Opcode.TRANSPOSE) and not _drops_units(o)]
    if not moved or not any(single_use(o) or _sinks_everywhere(o) for o in moved):
        return None
    first = moved[0]
    dims = first.operands[0].shape.dimensions
    if first.shape.dimensions != i.shape.dimensions:
        return None  # a scalar predicate of a select, or a scalar bound of a clamp
    operands = []
    for o in i.operands:
        before = _before(o, first, dims, b)
        if before is None:
            return None
        operands.append(before)
    inner = b.with_operands(i, operands, i.shape.with_dimensions(dims))
    if first.opcode is Opcode.RESHAPE:
        return b.reshape(inner, i.shape.dimensions)
    return b.transpose(inner, first.dimensions)


def _sinks_everywhere(o: HloInstruction) -> bool:
    """Check whether a transpose can sink below all of its users, so that it disappears when the last has moved."""
    return o.opcode is Opcode.TRANSPOSE and not o.is_root and all(_follows(u, o) for u in o.users)


def _follows(user: HloInstruction, transpose: HloInstruction) -> bool:
    """Check whether an op and those before it are elementwise ops of a transpose, of its like, and of broadcasts."""
    stack, visited = [user], 0
    while stack:
        i = stack.pop()
        if i is transpose or i.opcode is Opcode.BROADCAST or splat_value(i) is not None:
            continue
        if i.opcode is Opcode.TRANSPOSE and i.dimensions == transpose.dimensions:
            continue
        if i.opcode not in _MOVABLE or i.shape.dimensions != transpose.shape.dimensions or visited == _MAX_VISITED:
            return False
        visited += 1
        stack += i.operands
    return True


def _drops_units(o: HloInstruction) -> bool:
    """Check whether a reshape only drops dimensions of size 1; unit-dimension-movement moves those to the leaves."""
    source, target = o.operands[0].shape.dimensions, o.shape.dimensions
    return len(target) < len(source) and kept_dimensions(source, target) is not None


def _before(o: HloInstruction, first: HloInstruction, dims: tuple[int, ...], b: Builder) -> HloInstruction | None:
    """Return the operand before the movement of `first`, or None if it has another movement."""
    if o.opcode is first.opcode and o.operands[0].shape.dimensions == dims and o.dimensions == first.dimensions:
        return o.operands[0]
    value = splat_value(o)
    if value is not None:
        return b.splat(value, o.shape.with_dimensions(dims if o.shape.dimensions == first.shape.dimensions else ()))
    if o.shape.rank == 0 and first.shape.rank != 0:
        return o
    if o.opcode is Opcode.BROADCAST and (o.operands[0].shape.rank == 0 or first.opcode is Opcode.TRANSPOSE):
        order = first.dimensions
        return b.broadcast(o.operands[0], dims, [order[d] for d in o.dimensions])
    return None
