"""The rules of many rewrite passes in one walk, as an algebraic simplifier has them: what one makes the others see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from compiler.ir import Opcode
from compiler.passes.infrastructure.registry import make_pass, register
from compiler.passes.infrastructure.rewriting import RewritePass, Rule, RuleSet, RulesOf

EXPANSION = (
    "map-inliner",
    "batch-norm-expander",
    "select-and-scatter-expander",
    "scan-expander",
    "dynamic-index-splitter",
    "zero-sized-elimination",
    "no-op-removal",
)
"""Ops that others are made of, and what does nothing."""

ALGEBRA = (
    "arithmetic-identities",
    "reassociation",
    "compare-select-logic",
    "convert-chains",
    "division-power",
    "exponential-products",
    "softmax-rewrites",
    "function-recognition",
    "distribution",
)
"""Elementwise rewrites."""

MOVEMENT = (
    "shape-movement",
    "broadcast-sinking",
    "reshape-mover",
    "slice-concat-pad",
    "dynamic-slice-simplifier",
    "gather-simplifier",
    "reduce-window-rewriter",
    "reduce-simplifier",
    "reduce-hoisting",
)
"""Shapes, slices and reductions."""

PRODUCTS = (
    "convolution-to-dot",
    "degenerate-dimensions",
    "dot-simplifier",
    "dot-of-blocks",
    "transpose-folding",
    "dot-distribution",
)
"""Matrix products."""

MEMBERS = (*EXPANSION, *ALGEBRA, *MOVEMENT, *PRODUCTS)


@register
@dataclass(frozen=True)
class AlgebraicSimplifier(RewritePass):
    """The rules of the rewrite passes of the default pipeline (`MEMBERS`) together, in that order of preference.

    The passes one after the other come to the same forms, but a fact that has to pass through rules of several of them
    moves by one step a round; here it runs through the program in one walk.
    """

    name: ClassVar[str] = "algebraic-simplifier"
    rules: ClassVar[RuleSet] = RuleSet()

    def rules_of(self) -> RulesOf:
        """See the class."""
        table = _table()
        return lambda opcode: table.get(opcode, ())


@cache
def _table() -> dict[Opcode, Sequence[Rule]]:
    """Built at the first use, when every pass is registered."""
    members = [p for p in map(make_pass, MEMBERS) if isinstance(p, RewritePass)]
    if len(members) != len(MEMBERS):
        raise TypeError("a member of algebraic-simplifier is no set of rules")
    found = {op: tuple(r for m in members for r in m.rules_of()(op)) for op in Opcode}
    return {op: rules for op, rules in found.items() if rules}
