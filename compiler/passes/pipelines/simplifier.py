"""The algebraic simplifier: the rules of many rewrite passes in one walk, so that each sees results of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from compiler.errors import UnknownNameError
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
"""Expansions of composite ops, and removal of ops without effect."""

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
    "reduce-window-rewriter{running=false}",
    "reduce-simplifier",
    "reduce-hoisting",
)
"""Rewrites of shapes, slices and reductions."""

PRODUCTS = (
    "convolution-to-dot{images=false}",
    "degenerate-dimensions",
    "dot-simplifier",
    "dot-of-blocks",
    "transpose-folding",
    "dot-distribution",
)
"""Rewrites of matrix products."""

MEMBERS = (*EXPANSION, *ALGEBRA, *MOVEMENT, *PRODUCTS)


@register
@dataclass(frozen=True)
class AlgebraicSimplifier(RewritePass):
    """Apply the rules of the rewrite passes of the default pipeline (`MEMBERS`) together, in this order of preference.

    The individual passes in sequence reach the same forms, but a simplification that takes rules of several passes
    advances by one step per round, whereas here it propagates through the program in one walk.

    Attributes:
        without: members whose rules are left out, separated by `+`.
    """

    name: ClassVar[str] = "algebraic-simplifier"
    rules: ClassVar[RuleSet] = RuleSet()
    without: str = ""

    def __post_init__(self) -> None:
        for name in filter(None, self.without.split("+")):
            if name not in map(_member_name, MEMBERS):
                raise UnknownNameError("member of algebraic-simplifier", name, map(_member_name, MEMBERS))

    def rules_of(self) -> RulesOf:
        """Return the rules of the members."""
        table = _table(self.without)
        return lambda opcode: table.get(opcode, ())


def _member_name(spec: str) -> str:
    return spec.partition("{")[0]


@cache
def _table(without: str) -> dict[Opcode, Sequence[Rule]]:
    """Build the table on first use, when all passes are registered."""
    specs = [spec for spec in MEMBERS if _member_name(spec) not in without.split("+")]
    members = [p for p in map(make_pass, specs) if isinstance(p, RewritePass)]
    if len(members) != len(specs):
        raise TypeError("a member of algebraic-simplifier is not a set of rules")
    found = {op: tuple(r for m in members for r in m.rules_of()(op)) for op in Opcode}
    return {op: rules for op, rules in found.items() if rules}
