"""Dots of slices and blocks: slices of dots, and dots of operands with zero blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, is_uniform_dot, make_dot
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, is_splat, single_use, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, substitute

RULES = RuleSet()


@register
@dataclass(frozen=True)
class DotSlicing(ComputationPass):
    """Rewrite slice(dot(a, b)) -> dot(slice(a), slice(b)), if all users are slices with fewer elements in total."""

    name: ClassVar[str] = "dot-slicing"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        changed = False
        for i in computation.post_order():
            if i.parent is computation and is_plain_dot(i) and not i.is_root and i.users:
                changed |= _slice_operands(computation, i)
        return changed


def _slice_operands(computation: HloComputation, dot: HloInstruction) -> bool:
    users = list(dot.users)
    if any(u.opcode is not Opcode.SLICE or u.control_predecessors for u in users):
        return False
    if sum(u.shape.num_elements for u in users) >= dot.shape.num_elements:
        return False
    for u in users:
        builder = Builder(computation)
        substitute(u, _sliced(dot, u.attributes["slice"], builder), fresh=True)
    return True


def _sliced(dot: HloInstruction, spec: tuple[SliceDim, ...], b: Builder) -> HloInstruction:
    dims = DotDims.of(dot)
    lhs, rhs = dot.operands
    cuts = [[SliceDim(0, n) for n in o.shape.dimensions] for o in dot.operands]
    position = 0
    for left, right in zip(dims.lhs_batch, dims.rhs_batch, strict=True):
        cuts[0][left] = cuts[1][right] = spec[position]
        position += 1
    for d in dims.lhs_free(lhs.shape.rank):
        cuts[0][d] = spec[position]
        position += 1
    for d in dims.rhs_free(rhs.shape.rank):
        cuts[1][d] = spec[position]
        position += 1
    return make_dot(b, dot, b.slice(lhs, cuts[0]), b.slice(rhs, cuts[1]), dims)


@register
@dataclass(frozen=True)
class DotOfBlocks(RewritePass):
    """Remove zero padding of an operand, and split dots of concatenates that contain zero blocks."""

    name: ClassVar[str] = "dot-of-blocks"
    rules: ClassVar[RuleSet] = RULES


@dataclass(frozen=True)
class _Side:
    """One operand of a dot, so that rules are written once for both sides."""

    dot: HloInstruction
    left: bool

    @property
    def operand(self) -> HloInstruction:
        return self.dot.operands[0 if self.left else 1]

    @property
    def other(self) -> HloInstruction:
        return self.dot.operands[1 if self.left else 0]

    @property
    def dims(self) -> DotDims:
        dims = DotDims.of(self.dot)
        return dims if self.left else dims.swapped()

    def partner(self, dimension: int) -> int | None:
        """Return the dimension of the other operand paired with `dimension`; None for a free dimension."""
        own = (*self.dims.lhs_contracting, *self.dims.lhs_batch)
        theirs = (*self.dims.rhs_contracting, *self.dims.rhs_batch)
        return theirs[own.index(dimension)] if dimension in own else None

    def result_dimension(self, dimension: int) -> int | None:
        """Return the result's dimension for a free or batch dimension; None for a contracted one."""
        dims = self.dims
        if dimension in dims.lhs_batch:
            return dims.lhs_batch.index(dimension)
        if dimension in dims.lhs_contracting:
            return None
        free = dims.lhs_free(self.operand.shape.rank).index(dimension)
        skipped = 0 if self.left else len(dims.rhs_free(self.other.shape.rank))
        return len(dims.lhs_batch) + skipped + free

    def with_operands(self, operand: HloInstruction, other: HloInstruction, b: Builder) -> HloInstruction:
        lhs, rhs = (operand, other) if self.left else (other, operand)
        return make_dot(b, self.dot, lhs, rhs, DotDims.of(self.dot))


@RULES.on(Opcode.DOT)
def _padded(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Remove zero padding around (not between) the elements of an operand."""
    if not is_uniform_dot(i):
        return None
    for side in (_Side(i, True), _Side(i, False)):
        x = side.operand
        if not is_op(x, Opcode.PAD) or not is_splat(x.operands[1], 0):
            continue
        spec: tuple[PadDim, ...] = x.attributes["padding"]
        if any(p.low < 0 or p.high < 0 or p.interior for p in spec):
            continue
        return _without_padding(side, spec, b)
    return None


def _without_padding(side: _Side, spec: tuple[PadDim, ...], b: Builder) -> HloInstruction:
    x = side.operand
    core = x.operands[0]
    cut = [SliceDim(0, n) for n in side.other.shape.dimensions]
    around = [PadDim(0, 0)] * side.dot.shape.rank
    for d, p in enumerate(spec):
        partner, result = side.partner(d), side.result_dimension(d)
        if partner is not None:
            cut[partner] = SliceDim(p.low, p.low + core.shape.dimensions[d])
        if result is not None:
            around[result] = p
    product = side.with_operands(core, b.slice(side.other, cut), b)
    return b.pad(product, b.scalar(0, side.dot.shape.element_type), around)


def _is_mostly_zero(i: HloInstruction) -> bool:
    if is_op(i, Opcode.PAD):
        return is_splat(i.operands[1], 0)
    if is_op(i, Opcode.CONCATENATE):
        return any(_is_mostly_zero(o) for o in i.operands)
    return splat_value(i) is not None and is_splat(i, 0)


@RULES.on(Opcode.DOT)
def _blocks(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Split a concatenate with zero blocks: along a free dimension concatenate the dots, along a contracted one add."""
    if not is_uniform_dot(i):
        return None
    for side in (_Side(i, True), _Side(i, False)):
        x = side.operand
        if not is_op(x, Opcode.CONCATENATE) or not _is_mostly_zero(x) or not single_use(x):
            continue
        if side.partner(x.dimensions[0]) is None:
            parts = [side.with_operands(o, side.other, b) for o in x.operands]
            joined = side.result_dimension(x.dimensions[0])
            return None if joined is None else b.concatenate(parts, joined)
        if x.dimensions[0] in side.dims.lhs_contracting:
            return _sum_of_blocks(side, b)
    return None


def _sum_of_blocks(side: _Side, b: Builder) -> HloInstruction | None:
    x = side.operand
    (dim,) = x.dimensions
    partner = side.partner(dim)
    total: HloInstruction | None = None
    start = 0
    for o in x.operands:
        end = start + o.shape.dimensions[dim]
        if partner is not None and not is_splat(o, 0):
            cut = [SliceDim(0, n) for n in side.other.shape.dimensions]
            cut[partner] = SliceDim(start, end)
            product = side.with_operands(o, b.slice(side.other, cut), b)
            total = product if total is None else b.add(Opcode.ADD, total, product)
        start = end
    return b.splat(0, side.dot.shape) if total is None else total


@RULES.on(Opcode.DOT)
def _of_broadcast(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Multiply once and broadcast the result if an operand is broadcast along a free dimension."""
    if not is_uniform_dot(i):
        return None
    for side in (_Side(i, True), _Side(i, False)):
        x = side.operand
        if not is_op(x, Opcode.BROADCAST) or splat_value(x) is not None:
            continue
        repeated = [d for d in range(x.shape.rank) if d not in x.dimensions and side.partner(d) is None]
        if not repeated or list(x.dimensions) != sorted(x.dimensions):
            continue
        return _repeat_result(side, repeated, b)
    return None


def _repeat_result(side: _Side, repeated: list[int], b: Builder) -> HloInstruction:
    x = side.operand
    kept = [d for d in range(x.shape.rank) if d not in repeated]
    number = {d: n for n, d in enumerate(kept)}
    inner = b.broadcast(x.operands[0], [x.shape.dimensions[d] for d in kept], [number[d] for d in x.dimensions])
    dims = side.dims
    new = replace(
        dims,
        lhs_contracting=tuple(number[d] for d in dims.lhs_contracting),
        lhs_batch=tuple(number[d] for d in dims.lhs_batch),
    )
    lhs, rhs = (inner, side.other) if side.left else (side.other, inner)
    product = make_dot(b, side.dot, lhs, rhs, new if side.left else new.swapped())
    gone = {side.result_dimension(d) for d in repeated}
    return b.broadcast(product, side.dot.shape.dimensions, [d for d in range(side.dot.shape.rank) if d not in gone])
