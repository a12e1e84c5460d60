"""Distribution: factors out a common factor or divisor, A*C + B*C -> (A + B)*C.

Exact for integers. For floats the error is within rounding of the terms (not of their sum, if they cancel); neither
form is more accurate. `float_terms=false` restricts it to integers and to factors that are powers of two, like XLA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import has_room, is_integral, is_numeric, is_op, single_use, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

RULES = RuleSet()
EXACT = RuleSet()


@register
@dataclass(frozen=True)
class Distribution(RewritePass):
    """Rewrite A*C + B*C -> (A+B)*C, A/C + B/C -> (A+B)/C, x*c + x -> x*(c+1); differences and bit masks likewise.

    Only if the products have no other users, so that the number of ops decreases.
    """

    name: ClassVar[str] = "distribution"
    rules: ClassVar[RuleSet] = RULES
    float_terms: bool = True

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""
        return (RULES if self.float_terms else EXACT).of


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _common_factor(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return _factored(i, b) if has_room(i.shape) else None


@EXACT.on(Opcode.ADD, Opcode.SUBTRACT)
def _exact_common_factor(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return _factored(i, b, exact=not is_integral(i.shape)) if has_room(i.shape) else None


def _factored(i: HloInstruction, b: Builder, exact: bool = False) -> HloInstruction | None:
    """Factor out a common factor; with `exact`, only a power of two."""
    x, y = i.operands
    if x is y or not (is_op(x, Opcode.MULTIPLY) and is_op(y, Opcode.MULTIPLY)):
        return None
    if not (single_use(x) and single_use(y)):
        return None
    for k, factor in enumerate(x.operands):
        value = splat_value(factor)
        if exact and not (value is not None and _power_of_two(float(value))):
            continue
        for m, other in enumerate(y.operands):
            if factor is other or _same_splat(factor, other):
                return b.add(Opcode.MULTIPLY, b.add(i.opcode, x.operands[1 - k], y.operands[1 - m]), factor)
    return None


def _power_of_two(value: float) -> bool:
    return value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5


def _same_splat(x: HloInstruction, y: HloInstruction) -> bool:
    value, other = splat_value(x), splat_value(y)
    return value is not None and other is not None and bool(value == other)


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _common_divisor(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if x is y or not (is_op(x, Opcode.DIVIDE) and is_op(y, Opcode.DIVIDE)) or is_integral(i.shape):
        return None
    if not (single_use(x) and single_use(y) and has_room(i.shape)):
        return None
    divisor = x.operands[1]
    if divisor is not y.operands[1] and not _same_splat(divisor, y.operands[1]):
        return None
    return b.add(Opcode.DIVIDE, b.add(i.opcode, x.operands[0], y.operands[0]), divisor)


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _multiple_of_itself(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite x*c + x -> x*(c+1) and x*c - x -> x*(c-1)."""
    x, y = i.operands
    pairs = ((x, y), (y, x)) if i.opcode is Opcode.ADD else ((x, y),)
    for product, plain in pairs:
        if not is_op(product, Opcode.MULTIPLY) or not single_use(product) or product.operands[0] is not plain:
            continue
        c = splat_value(product.operands[1])
        if c is None or not is_numeric(i.shape):
            continue
        step = c.dtype.type(1)
        return b.add(Opcode.MULTIPLY, plain, b.splat(c + step if i.opcode is Opcode.ADD else c - step, i.shape))
    return None


@RULES.on(Opcode.OR, Opcode.AND)
@EXACT.on(Opcode.OR, Opcode.AND)
def _bit_distribution(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (a & c) | (b & c) -> (a | b) & c, and its dual."""
    x, y = i.operands
    inner = Opcode.AND if i.opcode is Opcode.OR else Opcode.OR
    if x is y or not (is_op(x, inner) and is_op(y, inner) and single_use(x) and single_use(y)):
        return None
    for k, factor in enumerate(x.operands):
        if factor in y.operands:
            rest = y.operands[1] if y.operands[0] is factor else y.operands[0]
            return b.add(inner, b.add(i.opcode, x.operands[1 - k], rest), factor)
    return None


@RULES.on(Opcode.MAXIMUM, Opcode.MINIMUM)
@EXACT.on(Opcode.MAXIMUM, Opcode.MINIMUM)
def _extremum_of_shifted(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite max(-a, -b) -> -min(a, b), which has one negation less; both propagate NaN."""
    x, y = i.operands
    if x is y or not (is_op(x, Opcode.NEGATE) and is_op(y, Opcode.NEGATE) and single_use(x) and single_use(y)):
        return None
    if not i.shape.element_type.is_float:
        return None
    dual = Opcode.MINIMUM if i.opcode is Opcode.MAXIMUM else Opcode.MAXIMUM
    return b.add(Opcode.NEGATE, b.add(dual, x.operands[0], y.operands[0]))
