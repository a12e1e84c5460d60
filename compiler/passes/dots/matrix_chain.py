"""Matrix chain optimization: the order of multiplication with the fewest flops, A(B(Cv)) instead of ((AB)C)v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.dots.dot_chains import best_plan, build, chain_flops, chain_of, is_matrix_product
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, single_use
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import substitute

_LONGEST = 24


@register
@dataclass(frozen=True)
class MatrixChain(ComputationPass):
    """Reorder products of three or more matrices or vectors by cost; products with several users are not split."""

    name: ClassVar[str] = "matrix-chain"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        changed = False
        for i in reversed(computation.of_opcode(Opcode.DOT)):
            if i.parent is computation and is_matrix_product(i) and not i.is_dead and not _within_chain(i):
                changed |= _reorder(computation, i)
        return changed


def _within_chain(i: HloInstruction) -> bool:
    """Check whether the chain of its only user includes this product."""
    while single_use(i):
        (user,) = i.users
        if is_matrix_product(user) and user.operands[0] is not user.operands[1]:
            return i.shape.rank > 0
        if not is_op(user, Opcode.TRANSPOSE):
            return False
        i = user
    return False


def _reorder(computation: HloComputation, i: HloInstruction) -> bool:
    chain = chain_of(i)
    if not 3 <= len(chain) <= _LONGEST or i.control_predecessors:
        return False
    plan = best_plan(chain)
    if plan.flops >= chain_flops(i):
        return False
    b = Builder(computation)
    new = build(chain, plan, i, b)
    if new.shape.dimensions != i.shape.dimensions:
        computation.remove_dead(b.made)
        return False
    return substitute(i, new, fresh=True)
