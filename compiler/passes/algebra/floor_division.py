"""Quotients and remainders that are rounded down, which frontends compose of those that are rounded towards zero."""

from __future__ import annotations

from collections.abc import Sequence
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


@RULES.on(Opcode.SELECT)
def _remainder(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite r < 0 and r != 0 ? r + c : r, where r is x rem c."""
    test, corrected, r = i.operands
    c = _positive_divisor(r, Opcode.REMAINDER)
    if c is None or not is_op(corrected, Opcode.ADD) or not _adds(corrected, r, c):
        return None
    x, tests = r.operands[0], _conjuncts(test)
    if not any(_compares(t, r, "LT", 0) for t in tests):
        return None
    if not all(_compares(t, r, "LT", 0) or _compares(t, r, "NE", 0) for t in tests):
        return None
    if _shift(c) is not None:
        return b.add(Opcode.AND, x, b.splat(c - 1, i.shape))
    return None if len(tests) == 1 else b.add(Opcode.SELECT, _is_negative(r, b), corrected, r)


@RULES.on(Opcode.SELECT)
def _quotient(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite sign(x) != 1 and x rem c != 0 ? q - 1 : q, where q is x / c."""
    test, corrected, q = i.operands
    c = _positive_divisor(q, Opcode.DIVIDE)
    if c is None or not is_op(corrected, Opcode.ADD) or not _adds(corrected, q, -1):
        return None
    x, tests = q.operands[0], _conjuncts(test)
    for sign, rest in (tests, tests[::-1]) if len(tests) == 2 else ():
        r = rest.operands[0]
        is_remainder = is_op(r, Opcode.REMAINDER) and r.operands[0] is x and is_splat(r.operands[1], c)
        s = sign.operands[0]
        if not (is_remainder and _compares(rest, r, "NE", 0) and is_op(s, Opcode.SIGN) and s.operands[0] is x):
            continue
        if not _compares(sign, s, "NE", 1):
            continue
        shift = _shift(c)
        if shift is not None:
            return b.add(Opcode.SHIFT_RIGHT_ARITHMETIC, x, b.splat(shift, i.shape))
        return b.add(Opcode.SELECT, _is_negative(r, b), corrected, q)
    return None


def _positive_divisor(i: HloInstruction, opcode: Opcode) -> int | None:
    """Return the constant by which a signed integer is divided by an op if it is positive, otherwise None."""
    if not is_op(i, opcode) or not i.shape.element_type.is_signed:
        return None
    value = splat_value(i.operands[1])
    return int(value) if value is not None and value > 0 else None


def _adds(i: HloInstruction, x: HloInstruction, value: int) -> bool:
    return any(p is x and is_splat(q, value) for p, q in (i.operands, i.operands[::-1]))


def _conjuncts(test: HloInstruction) -> Sequence[HloInstruction]:
    return test.operands if is_op(test, Opcode.AND) else [test]


def _compares(test: HloInstruction, x: HloInstruction, direction: str, value: int) -> bool:
    if not is_op(test, Opcode.COMPARE) or test.attributes["direction"] != direction:
        return False
    return test.operands[0] is x and is_splat(test.operands[1], value)


def _is_negative(x: HloInstruction, b: Builder) -> HloInstruction:
    return b.compare(x, b.splat(0, x.shape), "LT")


def _shift(c: int) -> int | None:
    return c.bit_length() - 1 if c & (c - 1) == 0 else None
