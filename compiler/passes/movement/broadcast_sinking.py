"""Broadcast sinking: computes an elementwise op on broadcasts once before the broadcast, not once per copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import ELEMENTWISE, RewritePass, RuleSet

RULES = RuleSet()
_SINKABLE = tuple(op for op in ELEMENTWISE if op not in (Opcode.COPY, Opcode.STOCHASTIC_CONVERT, Opcode.MAP))


@register
@dataclass(frozen=True)
class BroadcastSinking(RewritePass):
    """Rewrite op(broadcast(a), broadcast(b)) -> broadcast(op(a, b)), if both broadcast along the same dimensions.

    Splat operands match any broadcast.
    """

    name: ClassVar[str] = "broadcast-sinking"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(*_SINKABLE)
def _sink(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not i.operands or i.shape.rank == 0:
        return None
    shaped = [o for o in i.operands if o.shape.rank > 0 and not _scalar_splat(o)]
    if not shaped:
        return _sink_scalars(i, b)
    first = shaped[0]
    if first.opcode is not Opcode.BROADCAST:
        return None
    source, dims = first.operands[0], first.dimensions
    for o in shaped:
        if o.opcode is not Opcode.BROADCAST or o.dimensions != dims:
            return None
    operands = [o if o.shape.rank == 0 else _before(o, source.shape.dimensions, b) for o in i.operands]
    inner = b.with_operands(i, operands, i.shape.with_dimensions(source.shape.dimensions))
    return b.broadcast(inner, i.shape.dimensions, dims)


def _sink_scalars(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Compute on scalars if every operand is a splat."""
    if any(o.shape.rank > 0 and o.opcode is not Opcode.BROADCAST for o in i.operands):
        return None
    operands = [o.operands[0] if o.shape.rank > 0 else o for o in i.operands]
    if any(o.shape.rank > 0 for o in operands):
        return None
    return b.broadcast(b.with_operands(i, operands, i.shape.with_dimensions(())), i.shape.dimensions, ())


def _scalar_splat(o: HloInstruction) -> bool:
    return (o.opcode is Opcode.BROADCAST and o.operands[0].shape.rank == 0) or splat_value(o) is not None


def _before(o: HloInstruction, sizes: tuple[int, ...], b: Builder) -> HloInstruction:
    """Return the operand before the broadcast."""
    if not _scalar_splat(o):
        return o.operands[0]
    value = splat_value(o)
    if value is not None:
        return b.splat(value, o.shape.with_dimensions(sizes))
    scalar = o.operands[0]
    return scalar if not sizes else b.broadcast(scalar, sizes, ())
