"""Simplification of chains of conversions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ConvertChains(RewritePass):
    """Simplify convert(convert(x)) if the intermediate type represents every value of x; bitcast-convert likewise."""

    name: ClassVar[str] = "convert-chains"
    rules: ClassVar[RuleSet] = RULES


def is_lossless(source: PrimitiveType, target: PrimitiveType) -> bool:
    """Check whether `target` can represent every value of `source`."""
    if source is target:
        return True
    if target is PrimitiveType.F8E8M0FNU:
        return False  # it has no zero and no negative numbers
    if source is PrimitiveType.PRED:
        return target.is_integer or target.is_float or target.is_complex
    if source.is_integer and target.is_integer:
        if source.is_signed == target.is_signed:
            return target.bits >= source.bits
        return source.is_unsigned and target.bits > source.bits
    digits = source.bits - source.is_signed
    if source.is_integer and target.is_float:
        info = ml_dtypes.finfo(target.dtype)  # type: ignore[no-untyped-call]
        return bool(info.nmant + 1 >= digits and info.maxexp > digits)
    if source.is_float and target.is_float:
        a, b = ml_dtypes.finfo(source.dtype), ml_dtypes.finfo(target.dtype)  # type: ignore[no-untyped-call]
        return (source.bits, target.bits) in _WIDER or bool(
            target in (PrimitiveType.F32, PrimitiveType.F64) and source.bits < target.bits and a.nmant <= b.nmant
        )
    if source.is_float and target.is_complex:
        return source.bits * 2 <= target.bits
    return source.is_complex and target.is_complex and source.bits <= target.bits


_WIDER = frozenset({(16, 32), (16, 64), (32, 64)})


@RULES.on(Opcode.CONVERT)
def _convert(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if x.shape.element_type is i.shape.element_type:
        return x
    if not is_op(x, Opcode.CONVERT):
        return None
    first = x.operands[0].shape.element_type
    if not is_lossless(first, x.shape.element_type):
        return _through_integers(i, x, b)
    # A negative integer saturates when a float is converted to unsigned, but wraps when converted directly.
    if first.is_integer and x.shape.element_type.is_float and i.shape.element_type.is_integer:
        return x.operands[0] if first is i.shape.element_type else None
    if i.shape.element_type is PrimitiveType.PRED or x.shape.element_type.is_complex != first.is_complex:
        return None if first is not i.shape.element_type else x.operands[0]
    return b.convert(x.operands[0], i.shape.element_type)


def _through_integers(i: HloInstruction, x: HloInstruction, b: Builder) -> HloInstruction | None:
    """Skip the middle one of three integer types if the last has no more bits: the low bits are the same."""
    first, middle, last = x.operands[0].shape.element_type, x.shape.element_type, i.shape.element_type
    if not (first.is_integer and middle.is_integer and last.is_integer and last.bits <= middle.bits):
        return None
    return b.convert(x.operands[0], last)


@RULES.on(Opcode.BITCAST_CONVERT)
def _bitcast_convert(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if x.shape.element_type is i.shape.element_type:
        return x
    if not is_op(x, Opcode.BITCAST_CONVERT):
        return None
    y = x.operands[0]
    if y.shape.element_type is i.shape.element_type and y.shape.dimensions == i.shape.dimensions:
        return y
    if y.shape.element_type.bits == x.shape.element_type.bits == i.shape.element_type.bits:
        return b.add(Opcode.BITCAST_CONVERT, y, shape=i.shape)
    return None
