"""Products of sums, both ways by cost: AB + AC -> A(B+C), and (A + UV)x -> Ax + U(Vx) where that is cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.builder import Builder
from compiler.passes.dot_chains import Chain, best_plan, chain_of, chain_sizes, is_matrix_product
from compiler.passes.dots import DotDims, is_uniform_dot, make_dot
from compiler.passes.patterns import is_op, single_use
from compiler.passes.registry import register
from compiler.passes.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DotDistribution(RewritePass):
    """Take a common matrix out of a sum of products, or multiply a sum term by term, whichever needs fewer flops."""

    name: ClassVar[str] = "dot-distribution"
    rules: ClassVar[RuleSet] = RULES


def _flops(chain: Chain) -> int:
    return best_plan(chain_sizes(chain)).flops if 1 < len(chain) <= 24 else 0


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
        if not _factoring_pays(i, k):
            return None
        total = b.add(i.opcode, p, q)
        operands = (x.operands[0], total) if k == 0 else (total, x.operands[1])
        return make_dot(b, x, *operands, DotDims.of(x))
    return None


def _factoring_pays(i: HloInstruction, common: int) -> bool:
    """One product and a sum of operands against two products, which may still be reordered, and a sum of results."""
    x, y = i.operands
    if not (is_matrix_product(x) and is_matrix_product(y)):
        return x.operands[1 - common].shape.num_elements <= 2 * i.shape.num_elements
    apart = _flops(chain_of(x)) + _flops(chain_of(y)) + i.shape.num_elements
    terms = [o.operands[1 - common] for o in (x, y)]
    inner = sum(_flops(chain_of(t, expand=False)) for t in terms) + terms[0].shape.num_elements
    contracted = x.operands[0].shape.dimensions[DotDims.of(x).lhs_contracting[0]]
    shared = _flops(chain_of(x.operands[common], expand=False))
    apart -= shared if shared else 0
    return inner + 2 * i.shape.num_elements * contracted < apart


@RULES.on(Opcode.DOT)
def _multiply_out(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """(P + Q) x -> P x + Q x where P or Q is itself a product that x shortens."""
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
        before = sum(_flops(chain_of(t, expand=False)) for t in terms) + total.shape.num_elements
        before += 2 * i.shape.num_elements * total.shape.dimensions[(dims.lhs_contracting, dims.rhs_contracting)[k][0]]
        parts = [make_dot(b, i, *((t, other) if k == 0 else (other, t)), dims) for t in terms]
        after = sum(_flops(_chain_as_if_alone(p, k)) for p in parts) + i.shape.num_elements
        if after < before:
            return b.add(total.opcode, *parts)
    return None


def _chain_as_if_alone(product: HloInstruction, k: int) -> Chain:
    """The chain of a product whose k-th operand will have no other user once the sum is gone."""
    term = product.operands[k]
    if not is_matrix_product(term) or any(not _goes(u, product) for u in term.users):
        return chain_of(product)
    dims = DotDims.of(product)
    inner = chain_of(term)
    contracted = (dims.lhs_contracting, dims.rhs_contracting)[k][0]
    flip = (term.shape.rank == 1 or contracted == 0) if k == 0 else (term.shape.rank == 2 and contracted == 1)
    if flip:
        inner = tuple(f.flipped() for f in reversed(inner))
    whole = chain_of(product)
    own = len(chain_of(term, expand=False))
    rest = whole[own:] if k == 0 else whole[: len(whole) - own]
    return inner + rest if k == 0 else rest + inner


def _goes(user: HloInstruction, product: HloInstruction) -> bool:
    """Whether a user is the new product, or the sum that the rewrite removes."""
    return user is product or (_is_sum(user) and single_use(user))
