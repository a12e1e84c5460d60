"""Evenly spaced constants: counters times a step, which kernels compute, in place of arrays, which they load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import ELEMENTWISE, RewritePass, RuleSet

RULES = RuleSet()
_LEAST = 3
"""Elements of the shortest array that is rewritten."""
_MOST = 1 << 30
"""The largest number in it: no product or difference wraps around."""


@register
@dataclass(frozen=True)
class SpacedConstants(RewritePass):
    """Rewrite a constant array a, a + s, a + 2 s... of integers -> iota * s + a if elementwise ops alone read it.

    An index that is computed from a counter is known where a kernel is generated, so that windows that begin
    at every s-th element are loaded without indices. Constant folding makes such arrays, and other passes recognize
    indices by their values: this one runs after them.
    """

    name: ClassVar[str] = "spaced-constants"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.CONSTANT)
def _spaced(i: HloInstruction, b: Builder) -> HloInstruction | None:
    t = i.shape.element_type
    if i.shape.rank != 1 or i.shape.dimensions[0] < _LEAST or not t.is_integer or t.bits < 32:
        return None
    if not i.users or not all(u.opcode is Opcode.BROADCAST or u.opcode in ELEMENTWISE for u in i.users):
        return None
    values = i.value.array
    if values is None or np.abs(values.astype(np.float64)).max() > _MOST:
        return None
    numbers = values.astype(np.int64)
    first, step = int(numbers[0]), int(numbers[1] - numbers[0])
    if step == 0 or not (np.diff(numbers) == step).all():
        return None
    counter = b.add(Opcode.IOTA, shape=i.shape, iota_dimension=0)
    scaled = counter if step == 1 else b.add(Opcode.MULTIPLY, counter, b.splat(step, i.shape))
    return scaled if first == 0 else b.add(Opcode.ADD, scaled, b.splat(first, i.shape))
