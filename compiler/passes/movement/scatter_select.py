"""Scatters of at most one element per row into a constant array, as selections for a GPU.

The gradient of a loss with integer labels adds one number to each row of zeros. A scatter writes the zeros, updates
some of them, and others read them all; a comparison of positions with indices is computed where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.types import PrimitiveType
from compiler.passes.dots.outlining import is_fused
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import COMMUTATIVE, is_splat, scalar_function, splat_value

__all__ = ["ScatterSelect"]


@dataclass(frozen=True)
class ScatterSelect(InstructionPass):
    """Rewrite scatter(broadcast(c), indices, updates) with at most one update of an element -> select.

    `select(iota == indices, f(c, updates), c)`, where `f` replaces the element or is one op. Sums of such rows from
    zeros are the updates whose indices are in range.
    """

    name: ClassVar[str] = "scatter-select"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.SCATTER})

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a scatter; return whether anything changed."""
        i, computation = instruction, instruction.parent
        if computation is None or i.control_predecessors or is_fused(computation):
            return False
        rows = _Rows.of(i)
        if rows is None:
            return False
        b = Builder(computation)
        index, update, chosen = rows.write(b)
        for user in list(i.users):
            if _is_row_sum(user, i, rows.dim):
                computation.replace(user, rows.sum_of_row(index, update, b))
        computation.replace(i, chosen)
        return True


@dataclass(frozen=True)
class _Rows:
    """A scatter into a constant array with one update for each position of all dimensions but one.

    Attributes:
        scatter: the instruction.
        index: the indices along `dim`, as they are or with one element in the dimension of index vectors.
        dim: the dimension of the operand along which an index says which element is updated.
        index_dims: for each dimension of the index, the dimension of the operand; those that have one element
            are omitted.
        update_dims: the same for the updates.
    """

    scatter: HloInstruction
    index: HloInstruction
    dim: int
    index_dims: tuple[tuple[int, int], ...]
    update_dims: tuple[tuple[int, int], ...]

    @staticmethod
    def of(i: HloInstruction) -> _Rows | None:
        """Return the rows of a scatter, or None if it is of another kind."""
        if len(i.operands) != 3 or i.operands[0].opcode is not Opcode.BROADCAST or not i.shape.num_elements:
            return None
        x, indices, updates = i.operands
        if splat_value(x) is None or not _is_simple(i):
            return None
        vector: int = i.attributes["index_vector_dim"]
        windows: Sequence[int] = i.attributes["update_window_dims"]
        batching: Sequence[int] = i.attr("input_batching_dims", ())
        own = dict(zip(i.attr("scatter_indices_batching_dims", ()), batching, strict=True))
        chosen: list[tuple[HloInstruction, int]] = []
        for column, k in zip(_columns(indices, vector), i.attributes["scatter_dims_to_operand_dims"], strict=False):
            along = _counted(column)
            if along is not None and along not in own and column.shape.dimensions[along] == x.shape.dimensions[k]:
                own[along] = k
            else:
                chosen.append((column, k))
        if len(chosen) != 1:
            return None
        ((index, d),) = chosen
        inserted = {*i.attributes["inserted_window_dims"], *own.values()}
        if not {*own.values()} <= {*i.attributes["inserted_window_dims"], *batching}:
            return None
        kept = [k for k in range(x.shape.rank) if k not in inserted]
        places = [k for k in range(indices.shape.rank) if k != vector]  # dimensions of the updates besides windows
        spread = [k for k in range(updates.shape.rank) if k not in windows]
        if any(indices.shape.dimensions[k] != 1 for k in places if k not in own):
            return None
        for w, k in zip(windows, kept, strict=True):
            if updates.shape.dimensions[w] != (1 if k == d else x.shape.dimensions[k]):
                return None
        index_dims = tuple((k, own[k]) for k in places if k in own)
        of_updates = [(u, own[k]) for u, k in zip(spread, places, strict=True) if k in own]
        of_updates += [(w, k) for w, k in zip(windows, kept, strict=True) if k != d]
        return _Rows(i, index, d, index_dims, tuple(sorted(of_updates)))

    def write(self, b: Builder) -> tuple[HloInstruction, HloInstruction, HloInstruction]:
        """Return the indices, the elements that they select, both with the dimensions of the operand, and the result.

        Dimensions along which both have one element are left out of the first two.
        """
        x, _, updates = self.scatter.operands
        indices = self.index
        if indices.shape.element_type.bits < 32:
            indices = b.convert(indices, PrimitiveType.S32)
        index = _in_order(indices, self.index_dims, x.shape, b)
        update = _constant(updates) or _in_order(updates, self.update_dims, x.shape, b)
        combined = scalar_function(self.scatter.attributes["to_apply"])
        if combined is not None and not (combined is Opcode.ADD and is_splat(x, 0)):
            update = b.add(combined, b.broadcast(x.operands[0], update.shape.dimensions, ()), update)
        sizes = x.shape.dimensions
        where = tuple(sorted(k for _, k in self.index_dims))
        position = b.add(Opcode.IOTA, shape=Shape(index.shape.element_type, sizes), iota_dimension=self.dim)
        here = b.compare(position, b.broadcast(index, sizes, where), "EQ")
        given = b.broadcast(update, sizes, self._dims_of(update))
        return index, update, b.add(Opcode.SELECT, here, given, x)

    def sum_of_row(self, index: HloInstruction, update: HloInstruction, b: Builder) -> HloInstruction:
        """Return the sums along `dim`: the updates whose indices are in range, and zeros."""
        zero = b.scalar(0, index.shape.element_type)
        end = b.scalar(self.scatter.shape.dimensions[self.dim] - 1, index.shape.element_type)
        sizes = index.shape.dimensions
        inside = b.compare(index, b.broadcast(zero, sizes, ()), "GE")
        inside = b.add(Opcode.AND, inside, b.compare(index, b.broadcast(end, sizes, ()), "LE"))
        rest = [k for k in range(self.scatter.shape.rank) if k != self.dim]
        whole = tuple(self.scatter.shape.dimensions[k] for k in rest)
        inside = b.broadcast(inside, whole, tuple(rest.index(k) for k in sorted(k for _, k in self.index_dims)))
        given = b.broadcast(update, whole, tuple(rest.index(k) for k in self._dims_of(update)))
        return b.add(Opcode.SELECT, inside, given, b.splat(0, given.shape))

    def _dims_of(self, update: HloInstruction) -> tuple[int, ...]:
        """Return the dimensions of the operand that the updates have; none if all are one constant."""
        return tuple(sorted(k for _, k in self.update_dims)) if update.shape.rank else ()


def _columns(indices: HloInstruction, vector: int) -> Sequence[HloInstruction]:
    """Return the indices of each dimension of the operand apart; none if they are not computed apart."""
    if vector == indices.shape.rank or indices.shape.dimensions[vector] == 1:
        return (indices,)
    apart = indices.opcode is Opcode.CONCATENATE and tuple(indices.dimensions) == (vector,)
    return indices.operands if apart and all(o.shape.dimensions[vector] == 1 for o in indices.operands) else ()


def _counted(column: HloInstruction) -> int | None:
    """Return the dimension along which a column of indices counts from zero, if it has more than one element."""
    long = [k for k, n in enumerate(column.shape.dimensions) if n != 1]
    source = column
    while source.opcode in (Opcode.RESHAPE, Opcode.CONVERT) and len(long) == 1:
        source = source.operands[0]
    if source.opcode is Opcode.IOTA:
        along: int = source.attributes["iota_dimension"]
        if source is column:
            return along if column.shape.dimensions[along] > 1 else None
        return long[0] if source.shape.dimensions[along] == source.shape.num_elements else None
    if len(long) == 1 and source.literal is not None and source.literal.array is not None:
        values = source.literal.array.reshape(-1)
        return long[0] if np.array_equal(values, np.arange(values.size)) else None
    return None


def _constant(x: HloInstruction) -> HloInstruction | None:
    """Return the scalar that all elements are, or None if they differ."""
    return x.operands[0] if x.opcode is Opcode.BROADCAST and not x.operands[0].shape.rank else None


def _is_simple(scatter: HloInstruction) -> bool:
    """Check whether updates replace elements, or are combined with them by one op."""
    root = scatter.attributes["to_apply"].root
    replaces = root.opcode is Opcode.PARAMETER and root.parameter_number == 1
    return replaces or scalar_function(scatter.attributes["to_apply"]) in COMMUTATIVE


def _in_order(x: HloInstruction, dims: Sequence[tuple[int, int]], whole: Shape, b: Builder) -> HloInstruction:
    """Return `x` without its dimensions of one element that `dims` omits, in the order of the operand's dimensions."""
    order = [k for k, _ in sorted(dims, key=lambda pair: pair[1])]
    rest = [k for k in range(x.shape.rank) if k not in order]
    turned = b.transpose(x, (*order, *rest))
    return b.reshape(turned, tuple(whole.dimensions[k] for k in sorted(k for _, k in dims)))


def _is_row_sum(user: HloInstruction, x: HloInstruction, dim: int) -> bool:
    """Check for the sum of `x` from zero along one dimension, if `x` has zeros where it has no updates."""
    if user.opcode is not Opcode.REDUCE or len(user.operands) != 2 or user.operands[0] is not x:
        return False
    is_sum = scalar_function(user.attributes["to_apply"]) is Opcode.ADD and is_splat(user.operands[1], 0)
    return is_sum and tuple(user.dimensions) == (dim,) and is_splat(x.operands[0], 0) and not user.control_predecessors
