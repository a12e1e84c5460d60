"""Chains of matrix products: their factors, and the cheapest order of multiplication."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from compiler.ir import HloInstruction, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot, make_dot
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, single_use


@dataclass(frozen=True)
class Factor:
    """A matrix or vector of a chain; a vector is a column, or a row if transposed."""

    value: HloInstruction
    transposed: bool

    @property
    def rows(self) -> int:
        """Number of rows in the chain."""
        return self._size(1 if self.transposed else 0)

    @property
    def columns(self) -> int:
        """Number of columns in the chain."""
        return self._size(0 if self.transposed else 1)

    def _size(self, d: int) -> int:
        dims = self.value.shape.dimensions
        return dims[d] if d < len(dims) else 1

    def flipped(self) -> Factor:
        """Return the transpose of the factor."""
        return Factor(self.value, not self.transposed)


Chain = tuple[Factor, ...]


def is_matrix_product(i: HloInstruction) -> bool:
    """Check for a dot of matrices or vectors over one dimension, without batch dimensions, of one element type."""
    if not is_uniform_dot(i):
        return False
    dims = DotDims.of(i)
    ranks = [o.shape.rank for o in i.operands]
    return not dims.lhs_batch and len(dims.lhs_contracting) == 1 and all(1 <= r <= 2 for r in ranks)


def chain_of(i: HloInstruction, expand: bool = True) -> Chain:
    """Return the factors of `i` from left to right, splitting nested products that have no other users.

    A result of rank 1 is a column; a result of rank 0 is the product of a row and a column.

    Args:
        i: a matrix product, a transpose, or any other instruction (a chain of one factor).
        expand: split `i` itself, even if it has several users.
    """
    if is_op(i, Opcode.TRANSPOSE) and i.shape.rank == 2 and (expand or single_use(i)):
        return transposed(chain_of(i.operands[0], expand=False))
    if not is_matrix_product(i) or not (expand or single_use(i)) or (i.shape.rank == 0 and not expand):
        return (Factor(i, False),)
    dims = DotDims.of(i)
    lhs, rhs = i.operands
    left = chain_of(lhs, expand=False)
    right = chain_of(rhs, expand=False)
    if lhs.shape.rank == 1 or dims.lhs_contracting == (0,):
        left = transposed(left)
    if rhs.shape.rank == 2 and dims.rhs_contracting == (1,):
        right = transposed(right)
    whole = left + right
    # row * matrix yields a vector, which the chain so far treats as a column
    return transposed(whole) if i.shape.rank == 1 and lhs.shape.rank == 1 else whole


def transposed(chain: Chain) -> Chain:
    """Return the factors of the transposed product."""
    return tuple(f.flipped() for f in reversed(chain))


@dataclass(frozen=True)
class Plan:
    """An order of multiplication: flops (2 per multiply-add), and the split of the last product of each subchain."""

    flops: int
    splits: tuple[tuple[int, ...], ...]


def best_plan(chain: Chain) -> Plan:
    """Return the cheapest order of multiplication; a half equal to the other, or to its transpose, costs nothing.

    This is the textbook dynamic program, cubic in the number of factors.
    """
    numbers: dict[HloInstruction, int] = {}
    names = tuple((numbers.setdefault(f.value, len(numbers)), f.transposed) for f in chain)
    return _plan(chain_sizes(chain), names)


Names = tuple[tuple[int, bool], ...]


@lru_cache(maxsize=1024)
def _plan(sizes: tuple[int, ...], names: Names) -> Plan:
    n = len(names)
    cost = [[0] * n for _ in range(n)]
    split = [[0] * n for _ in range(n)]
    for length in range(2, n + 1):
        for a in range(n - length + 1):
            z = a + length - 1
            options = (
                (
                    cost[a][k]
                    + (0 if repeats(names[a : k + 1], names[k + 1 : z + 1]) is not None else cost[k + 1][z])
                    + 2 * sizes[a] * sizes[k + 1] * sizes[z + 1],
                    k,
                )
                for k in range(a, z)
            )
            cost[a][z], split[a][z] = min(options)
    return Plan(cost[0][n - 1] if n else 0, tuple(tuple(row) for row in split))


def repeats(left: Names, right: Names) -> bool | None:
    """Return whether the right half equals the left one: False if equal, True if its transpose, None if neither."""
    if len(left) != len(right):
        return None
    if left == right:
        return False
    return True if right == tuple((name, not flipped) for name, flipped in reversed(left)) else None


def chain_sizes(chain: Chain) -> tuple[int, ...]:
    """Return the rows of the first factor, then the columns of each."""
    return (chain[0].rows, *(f.columns for f in chain))


def chain_flops(i: HloInstruction) -> int:
    """Return the flops of the products within `i` in their current order, except those with other users."""
    return _current(i, True)


def _current(i: HloInstruction, expand: bool) -> int:
    if is_op(i, Opcode.TRANSPOSE) and (expand or single_use(i)):
        return _current(i.operands[0], False)
    if not is_matrix_product(i) or not (expand or single_use(i)):
        return 0
    contracted = i.operands[0].shape.dimensions[DotDims.of(i).lhs_contracting[0]]
    return 2 * i.shape.num_elements * contracted + sum(_current(o, False) for o in dict.fromkeys(i.operands))


def build(chain: Chain, plan: Plan, like: HloInstruction, b: Builder) -> HloInstruction:
    """Build the product in the planned order; transposed factors are contracted along their other dimension."""
    names = tuple((id(f.value), f.transposed) for f in chain)

    def part(a: int, z: int) -> Factor:
        if a == z:
            return chain[a]
        k = plan.splits[a][z]
        left = part(a, k)
        repeated = repeats(names[a : k + 1], names[k + 1 : z + 1])
        right = part(k + 1, z) if repeated is None else Factor(left.value, left.transposed != repeated)
        dims = DotDims((_contracted(left, as_left=True),), (_contracted(right, as_left=False),))
        product = make_dot(b, like, left.value, right.value, dims)
        row = left.value.shape.rank == 1
        return Factor(product, row and product.shape.rank == 1)

    return part(0, len(chain) - 1).value


def _contracted(f: Factor, as_left: bool) -> int:
    if f.value.shape.rank == 1:
        return 0
    return int(as_left != f.transposed)
