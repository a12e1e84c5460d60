"""Range simplification: integer ops whose result follows from the ranges of their operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.value_range import Range, module_ranges
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.algebra.floor_division import truncated
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned


@register
@dataclass(frozen=True)
class RangeSimplifier:
    """Use the value ranges of iotas, constants, loop counters and loop invariants.

    A result with a single possible value becomes a constant (the high half of a small counter, a counter compared with
    0). Masks, remainders, clamps, minima and maxima without effect are removed, and corrections of quotients that are
    rounded down, if the dividend is not negative.
    """

    name: ClassVar[str] = "range-simplifier"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        ranges = module_ranges(module)
        changed = False
        fixed = {i for c in module.control_flow_computations() for i in pinned(c)}
        for i in list(ranges):
            computation = i.parent
            if computation is None or i in fixed or i.is_dead or i.shape.is_dynamic:
                continue
            builder = Builder(computation)
            new = _known(i, ranges[i], builder) or _unchanged(i, ranges) or _shifted(i, ranges, builder)
            if new is not None and new.shape.compatible(i.shape):
                ranges.setdefault(new, ranges[i])
                computation.replace_uses(i, new)
                computation.remove_dead([i])
                changed = True
        return changed


_COMPUTED = frozenset(
    {
        Opcode.ADD, Opcode.SUBTRACT, Opcode.NEGATE, Opcode.MULTIPLY, Opcode.DIVIDE, Opcode.REMAINDER, Opcode.ABS,
        Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.CLAMP, Opcode.AND, Opcode.OR, Opcode.XOR, Opcode.SHIFT_LEFT,
        Opcode.SHIFT_RIGHT_LOGICAL, Opcode.SHIFT_RIGHT_ARITHMETIC, Opcode.CONVERT, Opcode.SELECT, Opcode.COMPARE,
        Opcode.IOTA,
    }
)  # fmt: skip


def _known(i: HloInstruction, r: Range, b: Builder) -> HloInstruction | None:
    if not r.is_point or i.opcode not in _COMPUTED or i.shape.num_elements == 0:
        return None
    return b.splat(r.low, i.shape)


def _unchanged(i: HloInstruction, ranges: dict[HloInstruction, Range]) -> HloInstruction | None:
    """Return the operand that the result always equals, or None."""
    r = [ranges.get(o) for o in i.operands]
    if i.opcode is Opcode.CLAMP:
        return _clamped(i, r)
    if i.opcode is Opcode.SELECT:
        return _chosen(i, ranges)
    if len(r) != 2:
        return i.operand(0) if i.opcode is Opcode.ABS and r[0] is not None and r[0].low >= 0 else None
    a, b = r
    if a is None or b is None:
        return None
    if i.opcode is Opcode.REMAINDER:
        return i.operand(0) if a.low >= 0 and a.high < b.low else None
    if i.opcode in (Opcode.MAXIMUM, Opcode.MINIMUM):
        first_wins = a.low >= b.high if i.opcode is Opcode.MAXIMUM else a.high <= b.low
        second_wins = b.low >= a.high if i.opcode is Opcode.MAXIMUM else b.high <= a.low
        return i.operand(0) if first_wins else i.operand(1) if second_wins else None
    if i.opcode is Opcode.AND:
        return _masked(i, a, b)
    return None


def _chosen(i: HloInstruction, ranges: dict[HloInstruction, Range]) -> HloInstruction | None:
    """Return the operand that a select always chooses, or a quotient that needs no correction to be rounded down."""
    which = ranges.get(i.operand(0))
    if which is not None and which.is_point:
        return i.operand(1 if which.low else 2)
    quotient = truncated(i)
    dividend = ranges.get(quotient.operand(0)) if quotient is not None else None
    return quotient if dividend is not None and dividend.low >= 0 else None


def _shifted(i: HloInstruction, ranges: dict[HloInstruction, Range], b: Builder) -> HloInstruction | None:
    """Rewrite x rem n -> x - k*n, if x is always between k*n and (k+1)*n."""
    if i.opcode is not Opcode.REMAINDER:
        return None
    a, n = ranges.get(i.operand(0)), ranges.get(i.operand(1))
    if a is None or n is None or not n.is_point or n.low <= 0 or a.low < n.low or a.low // n.low != a.high // n.low:
        return None
    return b.add(Opcode.SUBTRACT, i.operand(0), b.splat(a.low // n.low * n.low, i.shape))


def _masked(i: HloInstruction, a: Range, b: Range) -> HloInstruction | None:
    for kept, r, mask in ((0, a, b), (1, b, a)):
        all_low_bits = mask.is_point and mask.low > 0 and mask.low & (mask.low + 1) == 0
        if all_low_bits and r.low >= 0 and r.high <= mask.low:
            return i.operand(kept)
    return None


def _clamped(i: HloInstruction, r: list[Range | None]) -> HloInstruction | None:
    low, x, high = r
    if low is None or x is None or high is None:
        return None
    return i.operand(1) if low.high <= x.low and x.high <= high.low else None
