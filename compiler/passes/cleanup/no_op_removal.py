"""Removal of ops without effect: copies, redundant reduce-precision, optimization barriers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()
BARRIERS = RuleSet()
_IEEE = frozenset({PrimitiveType.F8E5M2, PrimitiveType.F16, PrimitiveType.BF16, PrimitiveType.F32, PrimitiveType.F64})


@register
@dataclass(frozen=True)
class NoOpRemoval(RewritePass):
    """Remove copies, and reduce-precision that keeps all bits or repeats an earlier one."""

    name: ClassVar[str] = "no-op-removal"
    rules: ClassVar[RuleSet] = RULES


@register
@dataclass(frozen=True)
class OptimizationBarrierRemoval(RewritePass):
    """Replace opt-barrier(x) by x, which lets passes optimize across it."""

    name: ClassVar[str] = "optimization-barrier-removal"
    rules: ClassVar[RuleSet] = BARRIERS


@RULES.on(Opcode.COPY)
def _copy(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Replace a copy by its operand, converted if the copy changes the floating-point type."""
    return b.convert(i.operands[0], i.shape.element_type) if i.shape.is_array else i.operands[0]


@RULES.on(Opcode.REDUCE_PRECISION)
def _reduce_precision(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    exponent, mantissa = i.attributes["exponent_bits"], i.attributes["mantissa_bits"]
    if _keeps_all_values(i.shape.element_type, exponent, mantissa):
        return x
    if not is_op(x, Opcode.REDUCE_PRECISION):
        return None
    same = x.attributes["exponent_bits"] == exponent and x.attributes["mantissa_bits"] == mantissa
    return x if same else None


def _keeps_all_values(t: PrimitiveType, exponent: int, mantissa: int) -> bool:
    """Check whether a format has all values of a type.

    Formats are those of IEEE 754 without subnormal numbers. XLA makes an exception of types that are such a format
    themselves, whose subnormal numbers stay.
    """
    info = ml_dtypes.finfo(t.dtype)  # type: ignore[no-untyped-call]
    if mantissa < info.nmant:
        return False
    if t in _IEEE:
        return bool(exponent >= info.nexp)
    bias = (1 << (exponent - 1)) - 1
    largest, smallest = (math.frexp(float(v))[1] - 1 for v in (info.max, info.smallest_subnormal))
    return 1 - bias <= smallest and largest <= bias


@BARRIERS.on(Opcode.OPTIMIZATION_BARRIER)
def _barrier(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return i.operands[0]
