"""Dots of slices and blocks: slices of dots, and dots of operands with zero blocks."""

from __future__ import annotations

from collections.abc import Sequence
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
        for i in computation.of_opcode(Opcode.DOT):
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


@RULES.on(Opcode.DOT)
def _of_repeated_batches(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Multiply by each matrix once if an operand repeats its matrices along a batch dimension.

    Groups of heads of queries that share keys are written so: dot(q[h], repeat(k)[h]) -> dot(q[k, g], k[k]), of which
    g is a free dimension.
    """
    if not is_plain_dot(i) or i.shape.is_dynamic:
        return None
    for side in (_Side(i, True), _Side(i, False)):
        for d in side.dims.lhs_batch:
            found = _Repeats.of(side.operand, d)
            if found is not None:
                made = _multiply_once(side, d, found, b)
                if made is not None:
                    return made
    return None


@dataclass(frozen=True)
class _Repeats:
    """A dimension of an operand as dimensions of a broadcast, some of which repeat what it broadcasts.

    Attributes:
        source: the broadcast, of which the operand has the elements in order.
        parts: the dimensions of the broadcast that the dimension of the operand consists of.
    """

    source: HloInstruction
    parts: tuple[int, ...]

    @staticmethod
    def of(x: HloInstruction, d: int) -> _Repeats | None:
        """Return how dimension `d` of an array repeats, or None if it does not."""
        source = x.operands[0] if x.opcode is Opcode.RESHAPE else x
        if not is_op(source, Opcode.BROADCAST) or splat_value(source) is not None:
            return None
        inner, outer = source.shape.dimensions, x.shape.dimensions
        before, after = ([n for n in part if n != 1] for part in (outer[:d], outer[d + 1 :]))
        long = [k for k, n in enumerate(inner) if n != 1]
        parts = tuple(long[len(before) : len(long) - len(after)])
        if [inner[k] for k in long if k not in parts] != [*before, *after]:
            return None
        repeats = any(k not in source.dimensions for k in parts)
        return _Repeats(source, parts) if repeats and list(source.dimensions) == sorted(source.dimensions) else None

    @property
    def sizes(self) -> list[int]:
        """The sizes of the parts."""
        return [self.source.shape.dimensions[k] for k in self.parts]

    @property
    def shared(self) -> list[int]:
        """Which of the parts do not repeat."""
        return [n for n, k in enumerate(self.parts) if k in self.source.dimensions]

    def once(self, b: Builder) -> HloInstruction:
        """Return the broadcast without the parts that repeat."""
        repeated = [k for k in self.parts if k not in self.source.dimensions]
        kept = [k for k in range(self.source.shape.rank) if k not in repeated]
        sizes = [self.source.shape.dimensions[k] for k in kept]
        return b.broadcast(self.source.operands[0], sizes, [kept.index(k) for k in self.source.dimensions])


def _multiply_once(side: _Side, d: int, repeats: _Repeats, b: Builder) -> HloInstruction | None:
    """Return a dot without the repetition of a batch dimension, with its result in the order of the original.

    It is None if more would be transposed than is repeated.
    """
    dims, (mine, other) = side.dims, (side.operand.shape.dimensions, side.other.shape.dimensions)
    partner, shared, sizes = side.partner(d), repeats.shared, repeats.sizes
    assert partner is not None  # noqa: S101 - batch dimensions come in pairs

    made = DotDims(
        _expanded(dims.lhs_contracting, d, (), len(shared)),
        _expanded(dims.rhs_contracting, partner, (), len(sizes)),
        _expanded(dims.lhs_batch, d, range(len(shared)), len(shared)),
        _expanded(dims.rhs_batch, partner, shared, len(sizes)),
    )
    split = (*other[:partner], *sizes, *other[partner + 1 :])
    # Dimensions of the result are named by those of the other operand, and those that it lacks by negative numbers.
    across = list(made.rhs_free(len(split)))
    alone = [-1 - n for n in range(len(made.lhs_free(len(mine) - 1 + len(shared))))]
    batch = list(_expanded(dims.rhs_batch, partner, range(len(sizes)), len(sizes)))
    free = [k for k in across if k not in batch]
    now = [*made.rhs_batch, *(alone + across if side.left else across + alone)]
    wanted = [*batch, *(alone + free if side.left else free + alone)]
    if now != wanted and side.dot.shape.num_elements > side.operand.shape.num_elements:
        return None
    inner = b.reshape(repeats.once(b), (*mine[:d], *(sizes[n] for n in shared), *mine[d + 1 :]))
    turned = b.reshape(side.other, split)
    lhs, rhs = (inner, turned) if side.left else (turned, inner)
    product = make_dot(b, side.dot, lhs, rhs, made if side.left else made.swapped())
    return b.reshape(b.transpose(product, [now.index(k) for k in wanted]), side.dot.shape.dimensions)


def _expanded(of: tuple[int, ...], at: int, places: Sequence[int], count: int) -> tuple[int, ...]:
    """Return dimensions of which the one at `at` has become `count`, of which those at `places` are listed."""
    out: list[int] = []
    for x in of:
        out += [at + n for n in places] if x == at else [x + (count - 1) * (x > at)]
    return tuple(out)
