"""Products with known matrices that are mostly zeros, such as those that resize an image, as sums of a few elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError
from compiler.ir import HloInstruction, Opcode, Shape, Trait
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot
from compiler.passes.dots.outlining import is_fused
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder

Array = npt.NDArray[Any]
_TYPES = frozenset({T.F32, T.F64, T.F16, T.BF16})
_NEVER = Trait.SIDE_EFFECT | Trait.RANDOM | Trait.CONTROL | Trait.COLLECTIVE | Trait.ASYNC | Trait.HOST
_UNKNOWN = frozenset({Opcode.PARAMETER, Opcode.CUSTOM_CALL, Opcode.FUSION})
MOST_ELEMENTS = 1 << 22
"""Elements of a value up to which it is evaluated."""
MOST_VALUES = 100
"""Instructions from which a matrix is computed up to which it is evaluated."""
SPARSE = 4
"""Elements per element that is not zero from which on a sum of these takes less time than a product."""
LEAST_WORK = 1 << 14
"""Multiplications of a product below which it stays."""


@dataclass(frozen=True)
class SparseMatrices(InstructionPass):
    """Rewrite dot(x, w) -> the sum of w[i, j] * x[.., i, ..] over the few elements of a column of w that are not zero.

    The matrix w has to be known: computed from constants and iotas alone, as by `jax.image.resize`. Elements of x that
    only zeros multiply are skipped, which is visible where they are infinite or NaN.

    Attributes:
        terms: maximum number of elements of a column that are not zero.
    """

    name: ClassVar[str] = "sparse-matrices"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.DOT})
    terms: int = number_option(8, 1, 64)

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a dot; return whether anything changed."""
        dot, computation = instruction, instruction.parent
        if computation is None or dot.control_predecessors or is_fused(computation) or not _is_suitable(dot):
            return False
        dims = DotDims.of(dot)
        for n, contracted in ((0, dims.lhs_contracting[0]), (1, dims.rhs_contracting[0])):
            x = dot.operands[1 - n]
            if dot.operands[n].shape.rank != 2:
                continue
            if x.shape.num_elements * dot.operands[n].shape.dimensions[1 - contracted] < LEAST_WORK:
                continue
            w = _known_matrix(dot.operands[n])
            terms = None if w is None else _terms(w if contracted == 0 else w.T, self.terms)
            if terms is not None:
                along = dims.rhs_contracting[0] if n == 0 else dims.lhs_contracting[0]
                computation.replace(dot, _summed(dot, x, along, n == 0, terms, Builder(computation)))
                return True
        return False


def _is_suitable(dot: HloInstruction) -> bool:
    """Check for a product of floats with a matrix, over one dimension."""
    if not is_plain_dot(dot) or any(x.shape.is_dynamic for x in (dot, *dot.operands)):
        return False
    if any(x.shape.element_type not in _TYPES for x in (dot, *dot.operands)):
        return False
    dims = DotDims.of(dot)
    return len(dims.lhs_contracting) == 1 and not dims.lhs_batch and any(o.shape.rank == 2 for o in dot.operands)


def _known_matrix(w: HloInstruction) -> Array | None:
    """Return the value of a matrix that is computed from constants alone, or None if it is not known."""
    if w.shape.rank != 2:
        return None
    order: list[HloInstruction] = []
    seen: set[HloInstruction] = set()
    stack = [(w, False)]
    while stack:
        i, is_done = stack.pop()
        if is_done:
            order.append(i)
            continue
        if i in seen:
            continue
        seen.add(i)
        unknown = i.opcode in _UNKNOWN or i.opcode.has(_NEVER) or i.control_predecessors or not i.shape.is_array
        if unknown or i.shape.is_dynamic or i.shape.num_elements > MOST_ELEMENTS or len(seen) > MOST_VALUES:
            return None
        stack.append((i, True))
        stack += [(o, False) for o in i.operands]
    from compiler.interpreter import evaluate_op

    values: dict[HloInstruction, Any] = {}
    try:
        for i in order:
            values[i] = evaluate_op(i, [values[o] for o in i.operands])
    except HlogymError:
        return None
    found = np.asarray(values[w])
    return found if bool(np.all(np.isfinite(found.astype(np.float64)))) else None


def _terms(w: Array, most: int) -> tuple[Array, Array] | None:
    """Return rows and weights, each [terms, columns], of the elements of each column that are not zero.

    Columns with fewer such elements than others have further rows with the weight 0. None if there are too many.
    """
    counts = np.count_nonzero(w, axis=0)
    terms = max(1, int(counts.max(initial=0)))
    if terms > most or terms * SPARSE > w.shape[0]:
        return None
    # A stable sort by whether an element is zero puts the others first, in order.
    rows = np.argsort(w == 0, axis=0, kind="stable")[:terms]
    first = np.where(counts > 0, rows[0], 0)
    rows = np.where(np.arange(terms)[:, None] < counts, rows, first)
    weights = np.where(np.arange(terms)[:, None] < counts, np.take_along_axis(w, rows, 0), 0)
    return rows.astype(np.int32), weights.astype(w.dtype)


def _summed(
    dot: HloInstruction, x: HloInstruction, along: int, columns_first: bool, terms: tuple[Array, Array], b: Builder
) -> HloInstruction:
    """Return the sum of weighted elements of an operand, in the order of dimensions of the dot.

    Args:
        dot: the product.
        x: the operand that is not the matrix.
        along: its contracted dimension.
        columns_first: whether the columns of the matrix are the first dimension of the result, rather than the last.
        terms: the rows and weights of `_terms`.
        b: adds instructions.
    """
    rank, sizes = x.shape.rank, x.shape.dimensions
    at = 0 if columns_first else rank - 1
    result = dot.shape.dimensions
    wide = T.F64 if T.F64 in (dot.shape.element_type, x.shape.element_type) else T.F32
    total: HloInstruction | None = None
    for rows, weights in zip(*terms, strict=True):
        part = b.add(
            Opcode.GATHER, x, b.constant(rows[:, None]), shape=Shape(x.shape.element_type, result),
            offset_dims=tuple(d for d in range(rank) if d != at), collapsed_slice_dims=(along,),
            start_index_map=(along,), index_vector_dim=1,
            slice_sizes=tuple(1 if d == along else n for d, n in enumerate(sizes)),
        )  # fmt: skip
        factor = b.broadcast(b.constant(weights.astype(wide.dtype)), result, (at,))
        product = b.add(Opcode.MULTIPLY, b.convert(part, wide), factor)
        total = product if total is None else b.add(Opcode.ADD, total, product)
    assert total is not None  # noqa: S101 - there is at least one term
    return b.convert(total, dot.shape.element_type)
