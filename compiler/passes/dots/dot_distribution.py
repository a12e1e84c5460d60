"""Distribution of matrix products over sums: AB + AC -> A(B+C), or (A + UV)x -> Ax + U(Vx) if that is cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.dots.dot_chains import (
    Chain,
    Factor,
    best_plan,
    build,
    chain_of,
    is_matrix_product,
    transposed,
)
from compiler.passes.dots.dot_properties import DotDims, dot_flops, is_uniform_dot, make_dot
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, single_use
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DotDistribution(RewritePass):
    """Factor out a common matrix of a sum of products, or distribute a product over a sum, whichever has fewer flops.

    Each rewrite decreases the program's flops, so the two directions cannot undo each other.
    """

    name: ClassVar[str] = "dot-distribution"
    rules: ClassVar[RuleSet] = RULES


def _flops(chain: Chain) -> int:
    return best_plan(chain).flops if 1 < len(chain) <= 24 else 0


def _is_sum(i: HloInstruction) -> bool:
    return is_op(i, Opcode.ADD, Opcode.SUBTRACT)


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _common_operand(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    if x is y or not (is_uniform_dot(x) and is_uniform_dot(y) and single_use(x) and single_use(y)):
        return None
    if DotDims.of(x) != DotDims.of(y):
        return None
    for k in (0, 1):
        p, q = x.operands[1 - k], y.operands[1 - k]
        if x.operands[k] is not y.operands[k] or p.shape.dimensions != q.shape.dimensions:
            continue
        if p.shape.num_elements >= dot_flops(x) + i.shape.num_elements:
            return None
        total = b.add(i.opcode, p, q)
        operands = (x.operands[0], total) if k == 0 else (total, x.operands[1])
        return make_dot(b, x, *operands, DotDims.of(x))
    return None


@RULES.on(Opcode.DOT)
def _multiply_out(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (P + Q) x -> P x + Q x, if P or Q is a product that is cheaper to multiply with x."""
    if not is_matrix_product(i):
        return None
    dims = DotDims.of(i)
    for k in (0, 1):
        total, other = i.operands[k], i.operands[1 - k]
        if not _is_sum(total) or not single_use(total) or total.operands[0] is total.operands[1]:
            continue
        terms = total.operands
        if not any(is_matrix_product(t) and single_use(t) for t in terms):
            continue
        before = sum(_flops(chain_of(t, expand=False)) for t in terms) + total.shape.num_elements + dot_flops(i)
        chains = [_term_chain(t, other, k, dims) for t in terms]
        if max(map(len, chains)) > 24 or sum(map(_flops, chains)) + i.shape.num_elements >= before:
            continue
        parts = [build(c, best_plan(c), i, b) for c in chains]
        return b.add(total.opcode, *parts)
    return None


def _term_chain(term: HloInstruction, other: HloInstruction, k: int, dims: DotDims) -> Chain:
    """Return the factors of one term times the other operand, which both terms use and is therefore not split."""
    chains = [chain_of(term, expand=False), (Factor(other, False),)]
    operands = [term, other]
    if k == 1:
        chains.reverse()
        operands.reverse()
    lhs, rhs = operands
    left = transposed(chains[0]) if lhs.shape.rank == 1 or dims.lhs_contracting == (0,) else chains[0]
    right = transposed(chains[1]) if rhs.shape.rank == 2 and dims.rhs_contracting == (1,) else chains[1]
    whole = left + right
    return transposed(whole) if lhs.shape.rank == 1 and rhs.shape.rank == 2 else whole
