"""Sorts by ranks: for each element, the number of elements that come before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.passes.expanders.topk_by_rank import picked, reduced
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

_S32 = PrimitiveType.S32


@register
@dataclass(frozen=True)
class SortByRank(RewritePass):
    """Replace sorts by comparisons of all pairs of a row, which any kernel language can compute.

    The rank of an element is the number of elements that the comparator puts before it, or that it puts neither before
    nor after it and that are earlier; the result is stable. A row of n elements takes n * n comparisons.

    Sorts that compare floating-point numbers by size are kept, because NaN is neither before nor after any of them.

    Attributes:
        max_length: maximum length of a row.
        max_pairs: maximum number of comparisons of all rows.
    """

    name: ClassVar[str] = "sort-by-rank"
    rules: ClassVar[RuleSet] = RuleSet()
    max_length: int = number_option(1 << 15, 1, 1 << 20)
    max_pairs: int = number_option(1 << 32, 1, 1 << 40)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def by_rank(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return self._rewrite(i, b)

        return lambda op: (by_rank,) if op is Opcode.SORT else ()

    def _rewrite(self, i: HloInstruction, b: Builder) -> HloInstruction | None:
        module, shape = b.computation.parent, i.operand(0).shape
        if module is None or any(o.shape.is_dynamic or 0 in o.shape.dimensions for o in i.operands):
            return None
        if not all(_is_picked(o.shape.element_type) for o in i.operands):
            return None
        if not _is_transitive(i.attributes["to_apply"]):
            return None
        (along,) = i.attributes["dimensions"]
        length = shape.dimensions[along]
        if length > self.max_length or shape.num_elements * length > self.max_pairs:
            return None
        ranks = _ranks(i, along, b, module)
        # [..., element, ...] beside [..., element, ..., position]; the row of the result is the last dimension.
        pairs, rank = (*shape.dimensions, length), shape.rank
        chosen = b.add(
            Opcode.COMPARE, b.broadcast(ranks, pairs, tuple(range(rank))),
            b.add(Opcode.IOTA, shape=Shape(_S32, pairs), iota_dimension=rank), direction="EQ",
        )  # fmt: skip
        back = [*range(along), rank - 1, *range(along, rank - 1)]
        sorted_rows = [
            b.transpose(picked(b, chosen, b.broadcast(o, pairs, tuple(range(rank))), along, module), back)
            for o in i.operands
        ]
        return sorted_rows[0] if len(sorted_rows) == 1 else b.add(Opcode.TUPLE, *sorted_rows)


def _is_transitive(comparator: HloComputation) -> bool:
    """Check whether elements that precede neither of each other are equal: comparisons of NaN by size are not so."""
    compared = [i for i in comparator.post_order() if i.opcode is Opcode.COMPARE]
    calls = any(i.called_computations() for i in comparator.post_order())
    return not calls and all(
        not i.operand(0).shape.element_type.is_float or i.attr("type") == "TOTALORDER" for i in compared
    )


def _is_picked(t: PrimitiveType) -> bool:
    """Check whether one of several values of a type can be picked by a maximum or a disjunction."""
    return t is PrimitiveType.PRED or (t.is_float and t.bits >= 16) or (t.is_integer and t.bits >= 8)


def _ranks(i: HloInstruction, along: int, b: Builder, module: HloModule) -> HloInstruction:
    """Return the number of elements before each element of its row, s32 of the shape of the operands."""
    shape = i.operand(0).shape
    rank, length = shape.rank, shape.dimensions[along]
    pairs = (*shape.dimensions, length)  # [..., element, ..., other element]
    rest = [d for d in range(rank) if d != along]
    mine = [b.broadcast(o, pairs, tuple(range(rank))) for o in i.operands]
    others = [b.broadcast(b.transpose(o, [*rest, along]), pairs, (*rest, rank)) for o in i.operands]

    def precedes(first: Sequence[HloInstruction], second: Sequence[HloInstruction]) -> HloInstruction:
        arguments = [x for two in zip(first, second, strict=True) for x in two]
        return b.add(
            Opcode.MAP, *arguments, shape=Shape(PrimitiveType.PRED, pairs), dimensions=tuple(range(rank + 1)),
            to_apply=i.attributes["to_apply"],
        )  # fmt: skip

    numbers = Shape(_S32, pairs)
    earlier = b.add(
        Opcode.COMPARE, b.add(Opcode.IOTA, shape=numbers, iota_dimension=rank),
        b.add(Opcode.IOTA, shape=numbers, iota_dimension=along), direction="LT",
    )  # fmt: skip
    equal = b.add(Opcode.NOT, precedes(mine, others))
    counted = b.add(Opcode.OR, precedes(others, mine), b.add(Opcode.AND, equal, earlier))
    return reduced(b, b.convert(counted, _S32), Opcode.ADD, 0, rank, module)
