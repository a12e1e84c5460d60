"""Layouts of loop-invariant matrices: products in loops read their right operand along its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.trip_count import trip_count_of
from compiler.analysis.while_loop import LoopView, invariant_elements
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, make_dot
from compiler.passes.infrastructure.base import Options
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
        loops = Loops(module)
        changed = False
        for view in loops.views():
            trips = trip_count_of(view.instruction)
            dots = [d for d in _transposed_products(view) if wanted(d)] if trips is None or trips > 1 else []
            if not dots:
                continue
            where = {i: n for n, i in enumerate(view.body.instructions)}
            positions = [where[d] for d in dots]
            view = loops.owned(view)
            body = view.body.instructions
            _transpose_outside(view, [body[n] for n in positions])
            changed = True
        if changed:
            module.remove_unreachable()
        return changed


def _transposed_products(view: LoopView) -> list[HloInstruction]:
    invariant = {g for n in invariant_elements(view) for g in view.body_reads[n]}
    fixed = pinned(view.body)
    return [i for i in view.body.post_order() if i not in fixed and is_plain_dot(i) and _is_transposed(i, invariant)]


def _is_transposed(dot: HloInstruction, invariant: set[HloInstruction]) -> bool:
    """Check for a product of matrices whose right operand is invariant and contracted along its last dimensions."""
    lhs, rhs = dot.operands
    if rhs not in invariant or not rhs.shape.element_type.is_float:
        return False
    dims = DotDims.of(dot)
    rows = math.prod(lhs.shape.dimensions[d] for d in dims.lhs_free(lhs.shape.rank))
    free = dims.rhs_free(rhs.shape.rank)
    columns = math.prod(rhs.shape.dimensions[d] for d in free)
    depth = math.prod(rhs.shape.dimensions[d] for d in dims.rhs_contracting)
    return min(rows, columns, depth) > 1 and min(dims.rhs_contracting) > max(free)


def _transpose_outside(view: LoopView, dots: list[HloInstruction]) -> None:
    """Carry the transposed right operands of `dots`, one per operand and order of dimensions."""
    outside = view.instruction.parent
    assert outside is not None  # noqa: S101 - the loop was found in it
    found: dict[tuple[int, tuple[int, ...]], list[HloInstruction]] = {}
    for dot in dots:
        rhs, dims = dot.operands[1], DotDims.of(dot)
        order = (*dims.rhs_batch, *dims.rhs_contracting, *dims.rhs_free(rhs.shape.rank))
        index = view.index_of(rhs)
        assert index is not None  # noqa: S101 - it is a read of an invariant element
        found.setdefault((index, order), []).append(dot)
    carried = [_transposed(view.init[index], order, Builder(outside)) for index, order in found]
    edit = LoopEdit.begin(view, [*view.init, *carried], {n: n for n in range(view.size)})
    outputs, body = list(view.outputs), Builder(view.body)
    for n, ((_, order), users) in enumerate(found.items()):
        read = edit.body_read(view.size + n)
        at = {d: k for k, d in enumerate(order)}
        for dot in users:
            old = DotDims.of(dot)
            new = DotDims(
                old.lhs_contracting,
                tuple(at[d] for d in old.rhs_contracting),
                old.lhs_batch,
                tuple(at[d] for d in old.rhs_batch),
            )
            replacement = make_dot(body, dot, dot.operands[0], read, new)
            view.body.replace_uses(dot, replacement)
            outputs = [replacement if o is dot else o for o in outputs]
        outputs.append(read)
    edit.finish(outputs)
    edit.discard()
    view.body.remove_dead(dots)


def _transposed(x: HloInstruction, order: tuple[int, ...], b: Builder) -> HloInstruction:
    """Return the transpose of `x`, which is the operand of `x` if that is the inverse transpose."""
    if x.opcode is Opcode.TRANSPOSE:
        combined = tuple(x.dimensions[d] for d in order)
        return b.transpose(x.operands[0], combined)
    return b.transpose(x, order)
