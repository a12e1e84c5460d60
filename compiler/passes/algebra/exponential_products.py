"""Products, quotients and logarithms of exponentials: fewer transcendental functions.

If a single exponential overflows or underflows but the product would not, the rewritten form returns the finite value.
Otherwise both agree within rounding of the exponent. XLA does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, is_real_float, is_splat, single_use
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ExponentialProducts(RewritePass):
    """Rewrite exp(a)*exp(b) -> exp(a+b), exp(a)/exp(b) -> exp(a-b), x/exp(-b) -> x*exp(b), log(exp(x)) -> x."""

    name: ClassVar[str] = "exponential-products"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.MULTIPLY)
def _product(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if not (is_op(x, Opcode.EXPONENTIAL) and is_op(y, Opcode.EXPONENTIAL) and is_real_float(i.shape)):
        return None
    if not (single_use(x) and single_use(y)):
        return None
    return b.add(Opcode.EXPONENTIAL, b.add(Opcode.ADD, x.operands[0], y.operands[0]))


@RULES.on(Opcode.DIVIDE)
def _quotient(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if not is_op(y, Opcode.EXPONENTIAL) or not single_use(y) or not is_real_float(i.shape):
        return None
    if is_op(x, Opcode.EXPONENTIAL) and single_use(x):
        return b.add(Opcode.EXPONENTIAL, b.add(Opcode.SUBTRACT, x.operands[0], y.operands[0]))
    exponent = y.operands[0]
    if is_op(exponent, Opcode.NEGATE):
        inverse = b.add(Opcode.EXPONENTIAL, exponent.operands[0])
        return inverse if is_splat(x, 1) else b.add(Opcode.MULTIPLY, x, inverse)
    return b.add(Opcode.EXPONENTIAL, b.add(Opcode.NEGATE, exponent)) if is_splat(x, 1) else None


@RULES.on(Opcode.LOG)
def _log(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if not is_real_float(i.shape):
        return None
    if is_op(x, Opcode.EXPONENTIAL):
        return x.operands[0]
    if is_op(x, Opcode.POWER) and is_op(x.operands[0], Opcode.EXPONENTIAL) and single_use(x):
        return b.add(Opcode.MULTIPLY, x.operands[0].operands[0], x.operands[1])
    return None


@RULES.on(Opcode.LOG)
def _log_of_root(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite log(sqrt(x)) -> log(x)*0.5 and log(rsqrt(x)) -> log(x)*(-0.5)."""
    x = i.operands[0]
    if not is_op(x, Opcode.SQRT, Opcode.RSQRT) or not single_use(x) or not is_real_float(i.shape):
        return None
    factor = 0.5 if x.opcode is Opcode.SQRT else -0.5
    return b.add(Opcode.MULTIPLY, b.add(Opcode.LOG, x.operands[0]), b.splat(factor, i.shape))
