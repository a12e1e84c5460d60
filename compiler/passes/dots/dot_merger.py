"""Dot merging: dots that share an operand become one dot of their concatenated other operands."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction
from compiler.ir.attributes import SliceDim
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot, make_dot
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import substitute


@register
@dataclass(frozen=True)
class DotMerger(ComputationPass):
    """Rewrite dot(a, b1), dot(a, b2) -> slices of dot(a, concatenate(b1, b2)) for independent dots.

    This makes one large library call of several small ones at the cost of a copy; not in the default pipeline.

    Attributes:
        max_bytes: dots with larger results are not merged, because they utilize the machine on their own.
    """

    name: ClassVar[str] = "dot-merger"
    max_bytes: int = number_option(1 << 22, 0, 1 << 32)

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        depth = _depths(computation)
        changed = False
        for group in _groups(computation, depth, self.max_bytes):
            changed |= _merge(computation, group)
        return changed


def _depths(computation: HloComputation) -> dict[HloInstruction, int]:
    """Return the number of dots on the longest path to each instruction; dots of equal depth are independent."""
    depth: dict[HloInstruction, int] = {}
    for i in computation.post_order():
        own = max((depth[o] for o in (*i.operands, *i.control_predecessors)), default=0)
        depth[i] = own + is_uniform_dot(i)
    return depth


def _groups(
    computation: HloComputation, depth: dict[HloInstruction, int], max_bytes: int
) -> Iterator[list[HloInstruction]]:
    by_key: dict[Hashable, list[HloInstruction]] = {}
    for i in computation.post_order():
        if not is_uniform_dot(i) or i.shape.byte_size > max_bytes or i.control_predecessors:
            continue
        dims, (lhs, rhs) = DotDims.of(i), i.operands
        if len(dims.rhs_free(rhs.shape.rank)) != 1 or dims.lhs_batch or i.attr("algorithm"):
            continue
        (free,) = dims.rhs_free(rhs.shape.rank)
        by_key.setdefault((lhs, dims, free, rhs.shape.rank, depth[i]), []).append(i)
    for group in by_key.values():
        distinct = list({i.operands[1]: i for i in group}.values())
        if len(distinct) > 1:
            yield distinct


def _merge(computation: HloComputation, group: list[HloInstruction]) -> bool:
    if any(i.parent is not computation for i in group):
        return False
    b = Builder(computation)
    first = group[0]
    dims = DotDims.of(first)
    (free,) = dims.rhs_free(first.operands[1].shape.rank)
    joined = b.concatenate([i.operands[1] for i in group], free)
    product = make_dot(b, first, first.operands[0], joined, dims)
    start = 0
    for i in group:
        end = start + i.shape.dimensions[-1]
        cut = [SliceDim(0, n) for n in i.shape.dimensions[:-1]] + [SliceDim(start, end)]
        substitute(i, b.slice(product, cut), fresh=True)
        start = end
    return True
