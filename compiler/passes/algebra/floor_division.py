"""Quotients and remainders that are rounded down, which frontends compose of those that are rounded towards zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, is_splat, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class FloorDivision(RewritePass):
    """Rewrite quotients and remainders of signed integers by positive constants that are rounded down.

    Those by 2^k become an arithmetic shift and a mask. For other constants, what decides whether to correct the rounded
    quotient becomes one comparison: the remainder has the sign of the dividend.

    It is not in the default pipeline but follows it, because value ranges and indices are derived from quotients.
    """

    name: ClassVar[str] = "floor-division"
    rules: ClassVar[RuleSet] = RULES


@dataclass(frozen=True)
class _Rounded:
    """A select that rounds down.

    Attributes:
        truncated: the quotient or remainder that is rounded towards zero.
        corrected: the operand of the select for negative remainders.
        remainder: the remainder that is rounded towards zero.
        divisor: a positive number.
    """

    truncated: HloInstruction
    corrected: HloInstruction
    remainder: HloInstruction
    divisor: int


def truncated(i: HloInstruction) -> HloInstruction | None:
    """Return the quotient or remainder that a select rounds down, to which it is equal if the dividend is not negative.

    Of other instructions, the result is None.
    """
    rounded = _rounded(i)
    return rounded.truncated if rounded is not None else None


@RULES.on(Opcode.SELECT)
def _round_down(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite r < 0 ? q - 1 : q and r < 0 ? r + c : r, where q is x / c and r is x rem c, in the forms of frontends."""
    rounded = _rounded(i)
    if rounded is None:
        return None
    test, found, c = i.operand(0), rounded.truncated, rounded.divisor
    if c & (c - 1) != 0:
        if is_op(test, Opcode.COMPARE):
            return None
        return b.add(Opcode.SELECT, _is_negative(rounded.remainder, b), rounded.corrected, found)
    if found.opcode is Opcode.DIVIDE:
        return b.add(Opcode.SHIFT_RIGHT_ARITHMETIC, found.operands[0], b.splat(c.bit_length() - 1, i.shape))
    return b.add(Opcode.AND, found.operands[0], b.splat(c - 1, i.shape))


def _rounded(i: HloInstruction) -> _Rounded | None:
    """Return the parts of a select that rounds a quotient or remainder down, or None if it does not."""
    if i.opcode is not Opcode.SELECT:
        return None
    test, corrected, found = i.operands
    c = _positive_divisor(found)
    if c is None or not is_op(corrected, Opcode.ADD):
        return None
    if not _adds(corrected, found, -1 if found.opcode is Opcode.DIVIDE else c):
        return None
    r = _negative_remainder(test, found.operands[0], c)
    return None if r is None else _Rounded(found, corrected, r, c)


def _positive_divisor(i: HloInstruction) -> int | None:
    """Return the constant by which a quotient or remainder of signed integers divides if it is positive."""
    if not is_op(i, Opcode.DIVIDE, Opcode.REMAINDER) or not i.shape.element_type.is_signed:
        return None
    value = splat_value(i.operands[1])
    return int(value) if value is not None and value > 0 else None


def _adds(i: HloInstruction, x: HloInstruction, value: int) -> bool:
    return any(p is x and is_splat(q, value) for p, q in (i.operands, i.operands[::-1]))


def _negative_remainder(test: HloInstruction, x: HloInstruction, c: int) -> HloInstruction | None:
    """Return r = x rem c if a test says whether it is negative: r < 0, or r != 0 and sign(x) != 1, or all of them."""
    remainder, said = None, set[str]()
    for t in test.operands if is_op(test, Opcode.AND) else [test]:
        if not is_op(t, Opcode.COMPARE):
            return None
        left, right, direction = *t.operands, t.attributes["direction"]
        if is_op(left, Opcode.SIGN) and left.operands[0] is x and direction == "NE" and is_splat(right, 1):
            said.add("sign")
        elif _is_remainder(left, x, c) and direction in ("LT", "NE") and is_splat(right, 0):
            said.add(direction)
            remainder = left
        else:
            return None
    return remainder if "LT" in said or said == {"sign", "NE"} else None


def _is_remainder(i: HloInstruction, x: HloInstruction, c: int) -> bool:
    return is_op(i, Opcode.REMAINDER) and i.operands[0] is x and is_splat(i.operands[1], c)


def _is_negative(x: HloInstruction, b: Builder) -> HloInstruction:
    return b.compare(x, b.splat(0, x.shape), "LT")
