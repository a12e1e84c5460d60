"""Attention fusion: softmax(scores) values, with the dots before and after the softmax, as one fusion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.attention import Attention, match_attention, upstream
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import is_plain_dot, needs_transpose
from compiler.passes.dots.outlining import is_fused, outline
from compiler.passes.dots.product_fusion import ProductSizes, product_region
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.rewrite_limits import pinned

_TYPES = frozenset({T.F32, T.F16, T.BF16})
MAX_HEAD = 256
"""Maximum size of a head: blocks of queries, keys and results stay in the second-level cache."""
LEAST_SLOW = 1 << 22
"""Bytes of keys and values from which on attention of few queries is faster on a GPU as one kernel."""


@dataclass(frozen=True)
class AttentionFusion(ComputationPass):
    """Make a fusion of each attention, whose kernel keeps a block of scores in the cache and never stores them all.

    Attributes:
        min_queries: minimum number of queries; vectors hold queries side by side.
        min_scores: minimum number of scores per head.
        few_queries: whether attention of fewer queries is fused, too, if there are many keys, of f32 or such that a
            library could not read them as they are: on a GPU, copies of them take longer than the attention.
        row_results: whether the largest score and the sum of each row, which gradients need, may be results, too.
    """

    name: ClassVar[str] = "attention-fusion"
    min_queries: int = number_option(12, 1, 1 << 20)
    min_scores: int = number_option(512, 1, 1 << 40)
    few_queries: bool = False
    row_results: bool = False

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        if computation.parent is None or is_fused(computation):
            return False
        changed = False
        fixed = pinned(computation)
        for dot in [i for i in computation.post_order() if i.opcode is Opcode.DOT]:
            found = match_attention(dot) if dot.parent is computation else None
            if found is not None and self._pays(found):
                changed |= _fuse(computation, found, fixed, self.row_results and found.keeps_rows)
        return changed

    def _pays(self, a: Attention) -> bool:
        if not is_plain_dot(a.dot) or not is_plain_dot(a.output):
            return False
        operands = (*a.dot.operands, *a.output.operands, a.dot, a.output)
        if any(x.shape.element_type not in _TYPES for x in operands):
            return False
        first, second = ProductSizes.of(a.dot), ProductSizes.of(a.output)
        keys = a.scores.shape.dimensions[a.axis]
        if second.k != keys or 0 in (first.batch, first.m, first.n, first.k, second.m, second.n):
            return False
        values = math.prod(a.values.shape.dimensions) // max(1, second.batch * keys)
        queries = second.m * second.n // max(1, values)
        if max(first.k, values) > MAX_HEAD or queries * keys < self.min_scores:
            return False
        return queries >= self.min_queries or (self.few_queries and _slow_bytes(a) >= LEAST_SLOW)


def _slow_bytes(a: Attention) -> int:
    """Return the bytes of keys and values that a library would need copied or computed, or multiplies slowly."""
    dots = {o: dot for dot in (a.dot, a.output) for o in dot.operands if o is not a.weights}
    slow = (o for o, dot in dots.items() if _is_plain(o) or needs_transpose(dot, o) or _is_computed(o))
    return sum(o.shape.byte_size for o in slow)


def _is_plain(i: HloInstruction) -> bool:
    """Check for values of f32 that no conversion yields, for which there are no tensor cores."""
    return i.shape.element_type is T.F32 and i.opcode is not Opcode.CONVERT


def _is_computed(i: HloInstruction) -> bool:
    """Check whether elementwise ops, broadcasts or transposes compute an operand."""
    while i.opcode in (Opcode.RESHAPE, Opcode.BITCAST):
        i = i.operands[0]
    return bool(i.operands) and (i.opcode.is_elementwise or i.opcode in (Opcode.BROADCAST, Opcode.TRANSPOSE))


def _fuse(computation: HloComputation, a: Attention, fixed: set[HloInstruction], row_results: bool) -> bool:
    """Make the fusion of an attention unless something else needs its scores or weights."""
    pointwise = set(upstream(a.scores))
    dependent = {a.dot}
    for i in computation.post_order():
        if i in pointwise and not dependent.isdisjoint(i.operands):
            dependent.add(i)
    needed = {*a.inside, *dependent, a.output}
    copied = (pointwise - dependent) | {i for i in needed if _is_shared(i)}
    results = {a.output, a.most, a.total} if row_results else {a.output}
    if row_results:
        _separate_conversions(computation, a, needed)
    if needed & fixed or any(u not in needed for i in needed - copied - results for u in i.users):
        return False
    region = needed | pointwise
    for dot in (a.dot, a.output):
        after_too = dot is a.output and all(u in needed for i in (a.most, a.total) for u in i.users)
        region.update(product_region(computation, dot, fixed, after_too))
    inside = [i for i in computation.post_order() if i in region and not _is_table(i)]
    outline(computation, inside, "attention", copied)
    return True


def _separate_conversions(computation: HloComputation, a: Attention, needed: set[HloInstruction]) -> None:
    """Give others than the attention that use converted results of rows a conversion of their own."""
    for row in (a.most, a.total):
        for i in [u for u in row.users if u in needed and u.opcode is Opcode.CONVERT]:
            others = [u for u in i.users if u not in needed]
            if others:
                alone = computation.clone_instruction(i, i.operands)
                for u in others:
                    u.replace_operands(i, alone)


def _is_table(i: HloInstruction) -> bool:
    """Check for constants of different elements, such as slopes of each head, which a kernel reads from memory."""
    return i.opcode is Opcode.CONSTANT and i.value.common_value is None


def _is_shared(i: HloInstruction) -> bool:
    """Check for constants and broadcasts of them, which are copied where they are used."""
    return i.opcode is Opcode.CONSTANT or (i.opcode is Opcode.BROADCAST and _is_shared(i.operands[0]))
