"""Recognition of functions expressed by simpler ops: logistic, expm1, log1p, abs, tan, erfc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.algebra.erfc_approximation import cheaper_erfc
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    is_op,
    is_real_float,
    is_splat,
    operands_with_constant_right,
    single_use,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class FunctionRecognition(RewritePass):
    """Rewrite 1/(1+exp(-x)) -> logistic(x), exp(x)-1 -> expm1(x), log(x+1) -> log1p(x), max(x,-x) -> abs(x) etc.

    expm1 and log1p are more accurate near zero.
    """

    name: ClassVar[str] = "function-recognition"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DIVIDE)
def _logistic(i: HloInstruction, b: Builder) -> HloInstruction | None:
    one, total = i.operands
    if not is_splat(one, 1) or not is_op(total, Opcode.ADD) or not is_real_float(i.shape):
        return None
    e, c = operands_with_constant_right(total)
    if not is_splat(c, 1) or not is_op(e, Opcode.EXPONENTIAL) or not is_op(e.operands[0], Opcode.NEGATE):
        return None
    return b.add(Opcode.LOGISTIC, e.operands[0].operands[0])


@RULES.on(Opcode.DIVIDE)
def _tangent(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite sin(x) / cos(x) -> tan(x)."""
    x, y = i.operands
    if not (is_op(x, Opcode.SINE) and is_op(y, Opcode.COSINE)) or x.operands[0] is not y.operands[0]:
        return None
    return b.add(Opcode.TAN, x.operands[0]) if single_use(x) and single_use(y) else None


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _expm1(i: HloInstruction, b: Builder) -> HloInstruction | None:
    e, c = operands_with_constant_right(i) if i.opcode is Opcode.ADD else i.operands
    minus_one = is_splat(c, -1) if i.opcode is Opcode.ADD else is_splat(c, 1)
    if not minus_one or not is_op(e, Opcode.EXPONENTIAL) or not single_use(e) or not is_real_float(i.shape):
        return None
    return b.add(Opcode.EXPONENTIAL_MINUS_ONE, e.operands[0])


@RULES.on(Opcode.LOG)
def _log1p(i: HloInstruction, b: Builder) -> HloInstruction | None:
    total = i.operands[0]
    if not is_op(total, Opcode.ADD) or not single_use(total) or not is_real_float(i.shape):
        return None
    x, c = operands_with_constant_right(total)
    return b.add(Opcode.LOG_PLUS_ONE, x) if is_splat(c, 1) else None


@RULES.on(Opcode.MAXIMUM)
def _abs(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if is_op(x, Opcode.NEGATE) and x.operands[0] is y:
        x, y = y, x
    signed = is_real_float(i.shape) or i.shape.element_type.is_signed
    return b.add(Opcode.ABS, x) if is_op(y, Opcode.NEGATE) and y.operands[0] is x and signed else None


@RULES.on(Opcode.SELECT)
def _abs_by_select(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite select(x < 0, -x, x) -> |x| and select(x > 0, x, -x) -> |x|, ignoring the sign of zero."""
    p, x, y = i.operands
    if not is_op(p, Opcode.COMPARE) or not is_splat(p.operands[1], 0):
        return None
    direction, of = p.attributes["direction"], p.operands[0]
    if direction in ("GT", "GE"):
        x, y = y, x
    elif direction not in ("LT", "LE"):
        return None
    signed = is_real_float(i.shape) or i.shape.element_type.is_signed
    if not signed or of is not y or not is_op(x, Opcode.NEGATE) or x.operands[0] is not y:
        return None
    return b.add(Opcode.ABS, y)


RULES.on(Opcode.SELECT)(cheaper_erfc)


@RULES.on(Opcode.SQRT)
def _root_of_square(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    square = is_op(x, Opcode.MULTIPLY) and x.operands[0] is x.operands[1] and is_real_float(i.shape)
    return b.add(Opcode.ABS, x.operands[0]) if square else None
