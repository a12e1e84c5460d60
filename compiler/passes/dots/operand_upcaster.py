"""Operand upcasting: dots of narrow types in f32 or f64, which matrix libraries support."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import ConvDimLabels
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import is_plain_dot
from compiler.passes.dots.product_fusion import ProductSizes
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()
_EXACT_F32, _EXACT_F64 = 24, 53
"""Bits of integers that each type represents exactly."""


@register
@dataclass(frozen=True)
class OperandUpcaster(RewritePass):
    """Convert operands of dots and convolutions that are narrower than 32 bits, and the result back.

    Floats are multiplied and added in f32 and rounded once. Integers use f32 if every sum is exact in it, else f64, and
    wrap around in the result type; products with vectors, which are sums in kernels, use s32.
    """

    name: ClassVar[str] = "operand-upcaster"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DOT)
def _dot(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if not is_plain_dot(i):
        return None
    sizes, types = ProductSizes.of(i), [o.shape.element_type for o in i.operands]
    is_sum = min(sizes.m, sizes.n) == 1 and sizes.k > 0 and i.shape.element_type.bits <= 32
    if is_sum and all(t.is_integer and t.bits <= 16 for t in types) and i.shape.element_type.is_integer:
        # Sums wrap around in s32 as in the result. A kernel reads the matrix as fast as memory delivers it.
        return _rebuilt(i, T.S32, b)
    return _upcast(i, sizes.k, b)


@RULES.on(Opcode.CONVOLUTION)
def _convolution(i: HloInstruction, b: Builder) -> HloInstruction | None:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    kernel = i.operands[1].shape.dimensions
    return _upcast(i, math.prod(n for n, c in zip(kernel, labels.rhs, strict=True) if c != "o"), b)


def _upcast(i: HloInstruction, terms: int, b: Builder) -> HloInstruction | None:
    """Rebuild the op with converted operands; `terms` is the number of products per result element."""
    types = [o.shape.element_type for o in i.operands]
    wide = _wide_type(types, i.shape.element_type, terms)
    return None if wide is None else _rebuilt(i, wide, b)


def _rebuilt(i: HloInstruction, wide: T, b: Builder) -> HloInstruction:
    attributes = {k: v for k, v in i.attributes.items() if k not in ("control-predecessors", "metadata")}
    operands = [b.convert(o, wide) for o in i.operands]
    made = b.add(i.opcode, *operands, shape=Shape(wide, i.shape.dimensions), **attributes)
    if i.shape.element_type.is_integer and wide.is_float:
        made = b.convert(made, T.S32 if wide is T.F32 else T.S64)  # which has room for every sum
    return b.convert(made, i.shape.element_type)


def _wide_type(operands: list[T], result: T, terms: int) -> T | None:
    kinds = (*operands, result)
    if all(t.is_float for t in kinds):
        narrow = any(t.bits < 32 for t in operands) and all(t.bits <= 32 for t in kinds)
        return T.F32 if narrow else None
    if not all(t.is_integer for t in kinds) or any(t.bits > 16 for t in operands) or terms == 0:
        return None
    # Integers up to 2 ** 24 are exact in f32, and a signed one of n bits is at most 2 ** (n - 1).
    bits = sum(t.bits - t.is_signed for t in operands) + math.ceil(math.log2(terms))
    if bits > _EXACT_F64:
        return None
    return T.F32 if bits <= _EXACT_F32 else T.F64
