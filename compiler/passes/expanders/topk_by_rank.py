"""Top-k of short rows by ranks: for each element, the number of elements that come before it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

_S32 = PrimitiveType.S32


@register
@dataclass(frozen=True)
class TopkByRank(RewritePass):
    """Replace topk of short rows, such as those of a router among experts, by comparisons of all pairs.

    The rank of an element is the number of elements that come before it; the results are the elements and positions
    with the ranks from 0 to k - 1. Nothing is sorted, so that any kernel language can compute it. Floats are in total
    order, as in topk.

    Attributes:
        max_length: maximum length of a row.
    """

    name: ClassVar[str] = "topk-by-rank"
    rules: ClassVar[RuleSet] = RuleSet()
    max_length: int = number_option(256, 1, 4096)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def by_rank(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return self._rewrite(i, b)

        return lambda op: (by_rank,) if op is Opcode.TOPK else ()

    def _rewrite(self, i: HloInstruction, b: Builder) -> HloInstruction | None:
        x, module = i.operand(0), b.computation.parent
        t, length = x.shape.element_type, x.shape.dimensions[-1]
        if module is None or x.shape.is_dynamic or 0 in x.shape.dimensions or length > self.max_length:
            return None
        if not (t.is_float and t.bits >= 16) and not (t.is_integer and t.bits >= 8):
            return None
        largest = bool(i.attr("largest", True))
        ranks = _ranks(b, x, largest, module)
        wanted = (*x.shape.dimensions, int(i.attributes["k"]))
        rows = tuple(range(x.shape.rank))
        chosen = b.add(
            Opcode.COMPARE, b.broadcast(ranks, wanted, rows),
            b.add(Opcode.IOTA, shape=Shape(_S32, wanted), iota_dimension=len(rows)), direction="EQ",
        )  # fmt: skip
        at = b.add(Opcode.IOTA, shape=Shape(_S32, wanted), iota_dimension=len(rows) - 1)
        values = picked(b, chosen, b.broadcast(x, wanted, rows), len(rows) - 1, module)
        positions = picked(b, chosen, at, len(rows) - 1, module)
        return b.add(Opcode.TUPLE, values, positions)


def _ranks(b: Builder, x: HloInstruction, largest: bool, module: HloModule) -> HloInstruction:
    """Return the number of elements before each element of its row, s32 of the shape of `x`."""
    rank, length = x.shape.rank, x.shape.dimensions[-1]
    pairs = (*x.shape.dimensions, length)  # [..., element, other element]
    mine = b.broadcast(x, pairs, tuple(range(rank)))
    others = b.broadcast(x, pairs, (*range(rank - 1), rank))
    order: dict[str, Any] = {"type": "TOTALORDER"} if x.shape.element_type.is_float else {}
    before = b.add(Opcode.COMPARE, others, mine, direction="GT" if largest else "LT", **order)
    equal = b.add(Opcode.COMPARE, others, mine, direction="EQ", **order)
    numbers = Shape(_S32, pairs)
    earlier = b.add(
        Opcode.COMPARE, b.add(Opcode.IOTA, shape=numbers, iota_dimension=rank),
        b.add(Opcode.IOTA, shape=numbers, iota_dimension=rank - 1), direction="LT",
    )  # fmt: skip
    counted = b.add(Opcode.OR, before, b.add(Opcode.AND, equal, earlier))
    return reduced(b, b.convert(counted, _S32), Opcode.ADD, 0, rank, module)


def picked(b: Builder, chosen: HloInstruction, values: HloInstruction, dim: int, module: HloModule) -> HloInstruction:
    """Return the only chosen value along a dimension."""
    t = values.shape.element_type
    opcode, other = (Opcode.OR, 0) if t is PrimitiveType.PRED else (Opcode.MAXIMUM, _least(t))
    rest = b.splat(other, Shape(t, values.shape.dimensions))
    return reduced(b, b.add(Opcode.SELECT, chosen, values, rest), opcode, other, dim, module)


def reduced(b: Builder, x: HloInstruction, opcode: Opcode, start: float, dim: int, module: HloModule) -> HloInstruction:
    """Return a reduction along one dimension."""
    scalar = Shape(x.shape.element_type)
    reducer = HloComputation(f"rank_{opcode.text}_{scalar.element_type.text}")
    reducer.root = reducer.add(opcode, [reducer.add_parameter(n, scalar) for n in range(2)])
    made = module.add(reducer)
    return b.add(Opcode.REDUCE, x, b.scalar(start, scalar.element_type), dimensions=(dim,), to_apply=made)


def _least(t: PrimitiveType) -> float:
    """Return the least value of a type, which any other value replaces in a maximum."""
    return -math.inf if t.is_float else int(np.iinfo(t.dtype).min)
