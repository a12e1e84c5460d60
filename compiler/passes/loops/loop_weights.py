"""Layouts of loop-invariant matrices: products in loops read their right operand along its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.trip_count import trip_count_of
from compiler.analysis.while_loop import LoopView, invariant_elements
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, make_dot
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.loop_editing import LoopEdit, Loops


@register
@dataclass(frozen=True)
class LoopWeightTranspose(Options):
    """Transpose the loop-invariant right operands of products once before the loop.

    dot(x, w) in a loop, where w is an invariant element of n x k and its last dimension is contracted, becomes
    dot(x, transpose(w)), and transpose(w) is carried. The kernel of a product needs the k x n matrix: without the pass
    it transposes w in every iteration. A transpose of a transpose is not computed. Products with a vector are kept,
    because they read the rows of w.

    It runs before products are grouped into kernels, not in the default pipeline, where transpose-folding is its
    inverse.
    """

    name: ClassVar[str] = "loop-weight-transpose"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        return self.run_where(module, lambda dot: True)

    def run_where(self, module: HloModule, wanted: Callable[[HloInstruction], bool]) -> bool:
        """Rewrite only the dots that `wanted` selects; return whether the module changed."""
        return _transpose_where(module, lambda dot: 1 if _is_between_matrices(dot) and wanted(dot) else None)


@register
@dataclass(frozen=True)
class LoopVectorWeights(Options):
    """Transpose the loop-invariant matrices whose rows are multiplied by vectors once before the loop.

    It is meant for products so small that `dot-strength-reduction` makes sums of products of them: vectors then run
    along the rows of the transposed matrix, instead of gathering its columns in every iteration.

    Attributes:
        max_multiplications: maximum number of multiplications per batch element.
    """

    name: ClassVar[str] = "loop-vector-weights"
    max_multiplications: int = number_option(4096, 0, 1 << 28)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        return _transpose_where(module, self._matrix_of)

    def _matrix_of(self, dot: HloInstruction) -> int | None:
        """Return the number of the operand that is a small matrix if the other one is a vector."""
        rows, columns, depth = _sizes(dot)
        if min(rows, columns) != 1 or max(rows, columns) * depth > self.max_multiplications:
            return None
        return 0 if columns == 1 else 1


def _transpose_where(module: HloModule, matrix_of: Callable[[HloInstruction], int | None]) -> bool:
    """Transpose the operands of dots whose number a function returns if they are invariant; return whether any was."""
    loops = Loops(module)
    changed = False
    for view in loops.views():
        trips = trip_count_of(view.instruction)
        found = _transposed_operands(view, matrix_of) if trips is None or trips > 1 else {}
        if not found:
            continue
        where = {i: n for n, i in enumerate(view.body.instructions)}
        positions = {where[dot]: number for dot, number in found.items()}
        view = loops.owned(view)
        body = view.body.instructions
        _transpose_outside(view, {body[n]: number for n, number in positions.items()})
        changed = True
    if changed:
        module.remove_unreachable()
    return changed


def _transposed_operands(
    view: LoopView, matrix_of: Callable[[HloInstruction], int | None]
) -> dict[HloInstruction, int]:
    """Return the dots with an invariant matrix that is contracted along its last dimensions, and its operand number."""
    invariant = {g for n in invariant_elements(view) for g in view.body_reads[n]}
    fixed = pinned(view.body)
    found = {}
    for i in view.body.post_order():
        number = matrix_of(i) if i not in fixed and is_plain_dot(i) else None
        if number is not None and i.operands[number] in invariant and _is_transposed(i, number):
            found[i] = number
    return found


def _is_transposed(dot: HloInstruction, number: int) -> bool:
    """Check whether an operand is a matrix of floats that is contracted along its last dimensions."""
    rows, columns, depth = _sizes(dot)
    operand = dot.operands[number]
    if not operand.shape.element_type.is_float or min((rows, columns)[number], depth) <= 1:
        return False
    _, contracting, free = _dims_of(dot, number)
    return min(contracting) > max(free)


def _is_between_matrices(dot: HloInstruction) -> bool:
    return min(_sizes(dot)) > 1


def _sizes(dot: HloInstruction) -> tuple[int, int, int]:
    """Return the rows, columns and depth of a dot."""
    dims, (lhs, rhs) = DotDims.of(dot), dot.operands
    return (
        math.prod(lhs.shape.dimensions[d] for d in dims.lhs_free(lhs.shape.rank)),
        math.prod(rhs.shape.dimensions[d] for d in dims.rhs_free(rhs.shape.rank)),
        math.prod(lhs.shape.dimensions[d] for d in dims.lhs_contracting),
    )


def _dims_of(dot: HloInstruction, number: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the batch, contracting and free dimensions of an operand."""
    dims = DotDims.of(dot) if number else DotDims.of(dot).swapped()
    return dims.rhs_batch, dims.rhs_contracting, dims.rhs_free(dot.operands[number].shape.rank)


def _transpose_outside(view: LoopView, dots: Mapping[HloInstruction, int]) -> None:
    """Carry the transposed operands of `dots`, one per operand and order of dimensions."""
    outside = view.instruction.parent
    assert outside is not None  # noqa: S101 - the loop was found in it
    found: dict[tuple[int, tuple[int, ...]], list[HloInstruction]] = {}
    for dot, number in dots.items():
        index = view.index_of(dot.operands[number])
        assert index is not None  # noqa: S101 - it is a read of an invariant element
        batch, contracting, free = _dims_of(dot, number)
        found.setdefault((index, (*batch, *contracting, *free)), []).append(dot)
    carried = [_transposed(view.init[index], order, Builder(outside)) for index, order in found]
    edit = LoopEdit.begin(view, [*view.init, *carried], {n: n for n in range(view.size)})
    outputs, body = list(view.outputs), Builder(view.body)
    for n, ((_, order), users) in enumerate(found.items()):
        read = edit.body_read(view.size + n)
        at = {d: k for k, d in enumerate(order)}
        for dot in users:
            replacement = _with_operand(dot, dots[dot], read, at, body)
            view.body.replace_uses(dot, replacement)
            outputs = [replacement if o is dot else o for o in outputs]
        outputs.append(read)
    edit.finish(outputs)
    edit.discard()
    view.body.remove_dead(list(dots))


def _with_operand(
    dot: HloInstruction, number: int, operand: HloInstruction, at: Mapping[int, int], b: Builder
) -> HloInstruction:
    """Return a dot with a transposed operand, whose dimension `at[d]` was dimension `d`."""
    old = DotDims.of(dot) if number else DotDims.of(dot).swapped()
    new = DotDims(
        old.lhs_contracting,
        tuple(at[d] for d in old.rhs_contracting),
        old.lhs_batch,
        tuple(at[d] for d in old.rhs_batch),
    )
    if number:
        return make_dot(b, dot, dot.operands[0], operand, new)
    return make_dot(b, dot, operand, dot.operands[1], new.swapped())


def _transposed(x: HloInstruction, order: tuple[int, ...], b: Builder) -> HloInstruction:
    """Return the transpose of `x`, which is the operand of `x` if that is the inverse transpose."""
    if x.opcode is Opcode.TRANSPOSE:
        combined = tuple(x.dimensions[d] for d in order)
        return b.transpose(x.operands[0], combined)
    return b.transpose(x, order)
