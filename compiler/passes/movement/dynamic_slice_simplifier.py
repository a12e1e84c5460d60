"""Dynamic slice simplification: slices and updates at known positions, or of the whole array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, is_splat, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DynamicSliceSimplifier(RewritePass):
    """Rewrite dynamic-slices with constant indices -> slice; drop complete slices and updates, and own updates."""

    name: ClassVar[str] = "dynamic-slice-simplifier"
    rules: ClassVar[RuleSet] = RULES


def known_starts(
    starts: Sequence[HloInstruction], sizes: Sequence[int], whole: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the clamped start indices if each is constant or the slice spans the dimension, else None."""
    if len(starts) == 1 and starts[0].shape.rank == 1:
        return None  # the legacy form with a vector of indices
    found = []
    for start, size, n in zip(starts, sizes, whole, strict=True):
        value = splat_value(start)
        if value is None and size != n:
            return None
        found.append(0 if value is None else min(max(0, int(value)), n - size))
    return tuple(found)


@RULES.on(Opcode.DYNAMIC_SLICE)
def _slice(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, starts = i.operands[0], i.operands[1:]
    sizes = i.shape.dimensions
    at = known_starts(starts, sizes, x.shape.dimensions)
    if at is not None:
        return b.slice(x, [SliceDim(s, s + n) for s, n in zip(at, sizes, strict=True)])
    if (
        is_op(x, Opcode.DYNAMIC_UPDATE_SLICE)
        and _same_place(x.operands[2:], starts)
        and x.operands[1].shape.dimensions == sizes
    ):
        return x.operands[1]
    if is_op(x, Opcode.BROADCAST):
        return _of_broadcast(i, x, b)
    return None


def _same_place(a: Sequence[HloInstruction], b: Sequence[HloInstruction]) -> bool:
    """Check whether two lists of start indices are the same instructions or the same constants."""
    if len(a) != len(b):
        return False
    return all(x is y or _same_constant(x, y) for x, y in zip(a, b, strict=True))


def _same_constant(x: HloInstruction, y: HloInstruction) -> bool:
    value, other = splat_value(x), splat_value(y)
    return value is not None and other is not None and bool(value == other)


def _of_broadcast(i: HloInstruction, x: HloInstruction, b: Builder) -> HloInstruction | None:
    source = x.operands[0]
    if any(i.shape.dimensions[d] != x.shape.dimensions[d] for d in x.dimensions):
        return None
    return b.broadcast(source, i.shape.dimensions, x.dimensions)


@RULES.on(Opcode.DYNAMIC_SLICE)
def _zero_where_full(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Set the start index to 0 along dimensions that the slice spans, because it is clamped to 0."""
    return _with_zero_starts(i, 1, i.operands[0].shape.dimensions, i.shape.dimensions, b)


@RULES.on(Opcode.DYNAMIC_UPDATE_SLICE)
def _update_zero_where_full(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return _with_zero_starts(i, 2, i.shape.dimensions, i.operands[1].shape.dimensions, b)


def _with_zero_starts(
    i: HloInstruction, first: int, whole: Sequence[int], sizes: Sequence[int], b: Builder
) -> HloInstruction | None:
    starts = i.operands[first:]
    if len(starts) != len(whole) or any(s.shape.rank for s in starts):
        return None
    free = [n == m and not is_splat(s, 0) for s, n, m in zip(starts, whole, sizes, strict=True)]
    if not any(free):
        return None
    new = [b.splat(0, s.shape) if f else s for s, f in zip(starts, free, strict=True)]
    return b.with_operands(i, [*i.operands[:first], *new])


@RULES.on(Opcode.DYNAMIC_UPDATE_SLICE)
def _update(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, update, starts = i.operands[0], i.operands[1], i.operands[2:]
    if update.shape.dimensions == i.shape.dimensions:
        return update
    if update.shape.num_elements == 0:
        return x
    if is_op(update, Opcode.DYNAMIC_SLICE) and update.operands[0] is x and _same_place(update.operands[1:], starts):
        return x
    same_place = is_op(x, Opcode.DYNAMIC_UPDATE_SLICE) and _same_place(x.operands[2:], starts)
    if same_place and x.operands[1].shape.dimensions == update.shape.dimensions:
        return b.add(Opcode.DYNAMIC_UPDATE_SLICE, x.operands[0], update, *starts)
    return None


@RULES.on(Opcode.DYNAMIC_UPDATE_SLICE)
def _update_of_equal_values(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite an update at a known position of a splat array -> pad of the update."""
    x, update = i.operands[:2]
    value = splat_value(x)
    at = known_starts(i.operands[2:], update.shape.dimensions, i.shape.dimensions)
    if value is None or at is None or i.shape.rank == 0:
        return None
    sizes = zip(at, update.shape.dimensions, i.shape.dimensions, strict=True)
    return b.pad(update, b.scalar(value, i.shape.element_type), [PadDim(k, n - k - m) for k, m, n in sizes])
