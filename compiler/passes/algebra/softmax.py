"""Softmax and log-sum-exp: cheaper forms that still subtract the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, is_real_float, is_splat, single_use, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()
RECIPROCAL = RuleSet()


@register
@dataclass(frozen=True)
class SoftmaxRewrites(RewritePass):
    """Rewrite log(exp(a) / s) -> a - log(s), so that the logarithm of a softmax is never log(0); and similar.

    If s is a broadcast, its logarithm is computed before the broadcast, once per row.
    """

    name: ClassVar[str] = "softmax-rewrites"
    rules: ClassVar[RuleSet] = RULES


@register
@dataclass(frozen=True)
class BroadcastReciprocal(RewritePass):
    """Rewrite x / broadcast(s) -> x * broadcast(1/s), with one division per row; it rounds twice, and 1/s may overflow.

    Not in the default pipeline, because it adds an op, and only helps kernels that are bound by divisions.
    """

    name: ClassVar[str] = "broadcast-reciprocal"
    rules: ClassVar[RuleSet] = RECIPROCAL


@RULES.on(Opcode.LOG)
def _log_of_quotient(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if not is_real_float(i.shape) or not is_op(x, Opcode.DIVIDE) or not single_use(x):
        return None
    e, total = x.operands
    if not is_op(e, Opcode.EXPONENTIAL):
        return None
    return b.add(Opcode.SUBTRACT, e.operands[0], _log(total, b))


def _log(total: HloInstruction, b: Builder) -> HloInstruction:
    if not is_op(total, Opcode.BROADCAST):
        return b.add(Opcode.LOG, total)
    return b.broadcast(b.add(Opcode.LOG, total.operands[0]), total.shape.dimensions, total.dimensions)


@RULES.on(Opcode.LOG)
def _log_of_product(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite log(exp(a) * broadcast(s)) -> a + broadcast(log(s))."""
    x = i.operands[0]
    if not is_real_float(i.shape) or not is_op(x, Opcode.MULTIPLY) or not single_use(x):
        return None
    for e, other in (x.operands, (x.operands[1], x.operands[0])):
        value = splat_value(other)
        positive = value is not None and bool(value > 0)
        if is_op(e, Opcode.EXPONENTIAL) and (is_op(other, Opcode.EXPONENTIAL) or positive):
            return b.add(Opcode.ADD, e.operands[0], _log(other, b))
    return None


@RECIPROCAL.on(Opcode.DIVIDE)
def _reciprocal(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, s = i.operands
    if not is_real_float(i.shape) or not is_op(s, Opcode.BROADCAST) or splat_value(s) is not None or is_splat(x, 1):
        return None
    source = s.operands[0]
    if source.shape.num_elements * 2 > i.shape.num_elements:
        return None
    inverse = b.add(Opcode.DIVIDE, b.splat(1, source.shape), source)
    return b.add(Opcode.MULTIPLY, x, b.broadcast(inverse, s.shape.dimensions, s.dimensions))
