"""Shape movement: merges chains of reshape, transpose, broadcast, reverse and iota; drops what moves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.reshapes import kept_dimensions, reshape_groups
from compiler.ir import HloInstruction, Opcode
from compiler.ir.shape import default_layout
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ShapeMovement(RewritePass):
    """Simplify chains of reshapes, transposes, broadcasts and reverses, reshapes of broadcasts, and moved iotas."""

    name: ClassVar[str] = "shape-movement"
    rules: ClassVar[RuleSet] = RULES


# ---- reshape


@RULES.on(Opcode.RESHAPE)
def _reshape(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if x.shape.dimensions == i.shape.dimensions:
        return x
    if is_op(x, Opcode.RESHAPE):
        return b.reshape(x.operands[0], i.shape.dimensions)
    if is_op(x, Opcode.BROADCAST):
        return _reshape_of_broadcast(i, x, b)
    return None


def _reshape_of_broadcast(i: HloInstruction, x: HloInstruction, b: Builder) -> HloInstruction | None:
    """Reshape the smaller array instead, if no group of dimensions mixes broadcast ones with the operand's."""
    y, dims = x.operands[0], x.dimensions
    sizes: list[int] = []
    positions: list[int] = []
    for group in reshape_groups(x.shape.dimensions, i.shape.dimensions):
        own = [d for d in group.source if d in dims and x.shape.dimensions[d] != 1]
        repeated = [d for d in group.source if d not in dims and x.shape.dimensions[d] != 1]
        if own and repeated:
            return None
        if own:
            targets = [t for t in group.target if i.shape.dimensions[t] != 1]
            positions += targets
            sizes += [i.shape.dimensions[t] for t in targets]
    if list(dims) != sorted(dims) or 0 in i.shape.dimensions:
        return None
    return b.broadcast(b.reshape(y, sizes), i.shape.dimensions, positions)


@RULES.on(Opcode.BITCAST)
def _bitcast(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a bitcast between row-major arrays of the same type -> reshape."""
    x = i.operands[0]
    if not (i.shape.is_array and x.shape.is_array) or i.shape.element_type is not x.shape.element_type:
        return None
    if any(s.layout is not None and s.layout != default_layout(s.rank) for s in (i.shape, x.shape)):
        return None
    return b.reshape(x, i.shape.dimensions)


# ---- transpose


@RULES.on(Opcode.TRANSPOSE)
def _transpose(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, dims = i.operands[0], i.dimensions
    if dims == tuple(range(len(dims))):
        return x
    if is_op(x, Opcode.TRANSPOSE):
        return b.transpose(x.operands[0], [x.dimensions[d] for d in dims])
    if is_op(x, Opcode.BROADCAST):
        return b.broadcast(x.operands[0], i.shape.dimensions, [dims.index(d) for d in x.dimensions])
    big = [d for d in dims if x.shape.dimensions[d] != 1]
    if big == sorted(big):
        return b.reshape(x, i.shape.dimensions)
    if is_op(x, Opcode.IOTA):
        return _iota(i, dims.index(x.attributes["iota_dimension"]), b)
    return None


@RULES.on(Opcode.TRANSPOSE)
def _transpose_of_degenerate_reshape(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite transpose(reshape(x)) -> reshape(transpose(x)), if the reshape only adds dimensions of size 1."""
    x, dims = i.operands[0], i.dimensions
    if not is_op(x, Opcode.RESHAPE):
        return None
    y = x.operands[0]
    kept = kept_dimensions(y.shape.dimensions, x.shape.dimensions)
    if kept is None or len(kept) != y.shape.rank or len(x.users) > 1:
        return None
    source_of = {target: source for source, target in kept.items()}
    return b.reshape(b.transpose(y, [source_of[d] for d in dims if d in source_of]), i.shape.dimensions)


# ---- broadcast


@RULES.on(Opcode.BROADCAST)
def _broadcast(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, dims = i.operands[0], i.dimensions
    if x.shape.dimensions == i.shape.dimensions and dims == tuple(range(len(dims))):
        return x
    if is_op(x, Opcode.BROADCAST):
        return b.broadcast(x.operands[0], i.shape.dimensions, [dims[d] for d in x.dimensions])
    if x.shape.rank == i.shape.rank:  # every dimension comes from the operand: a permutation
        order = [dims.index(d) for d in range(len(dims))]
        return b.transpose(x, order)
    if x.shape.num_elements == i.shape.num_elements and list(dims) == sorted(dims):
        return b.reshape(x, i.shape.dimensions)
    if is_op(x, Opcode.IOTA):
        return _iota(i, dims[x.attributes["iota_dimension"]], b)
    return None


@RULES.on(Opcode.BROADCAST)
def _broadcast_of_reshape(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Drop a transpose, or a reshape that only adds dimensions of size 1, before a broadcast."""
    x, dims = i.operands[0], i.dimensions
    if is_op(x, Opcode.TRANSPOSE):
        order = x.dimensions
        return b.broadcast(x.operands[0], i.shape.dimensions, [dims[order.index(d)] for d in range(len(order))])
    if not is_op(x, Opcode.RESHAPE):
        return None
    y = x.operands[0]
    kept = kept_dimensions(y.shape.dimensions, x.shape.dimensions)
    if kept is None or len(kept) != y.shape.rank:
        return None
    return b.broadcast(y, i.shape.dimensions, [dims[kept[d]] for d in range(y.shape.rank)])


# ---- reverse, iota


@RULES.on(Opcode.REVERSE)
def _reverse(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, dims = i.operands[0], i.dimensions
    repeated: set[int] = set()
    if is_op(x, Opcode.BROADCAST):
        repeated = set(range(x.shape.rank)) - set(x.dimensions)
    needed = tuple(d for d in dims if x.shape.dimensions[d] > 1 and d not in repeated)
    if not needed:
        return x
    if is_op(x, Opcode.REVERSE):
        both = tuple(sorted(set(needed) ^ set(x.dimensions)))
        return b.add(Opcode.REVERSE, x.operands[0], dimensions=both) if both else x.operands[0]
    return b.add(Opcode.REVERSE, x, dimensions=needed) if needed != dims else None


@RULES.on(Opcode.RESHAPE)
def _reshape_of_iota(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if not is_op(x, Opcode.IOTA):
        return None
    kept = kept_dimensions(x.shape.dimensions, i.shape.dimensions)
    dim = None if kept is None else kept.get(x.attributes["iota_dimension"])
    return None if dim is None else _iota(i, dim, b)


@RULES.on(Opcode.IOTA)
def _iota_of_one(i: HloInstruction, b: Builder) -> HloInstruction | None:
    return b.splat(0, i.shape) if i.shape.dimensions[i.attributes["iota_dimension"]] == 1 else None


def _iota(like: HloInstruction, dim: int, b: Builder) -> HloInstruction:
    shape = like.shape.with_dimensions(like.shape.dimensions)
    return b.add(Opcode.IOTA, shape=shape, iota_dimension=dim)


# ---- constants


@RULES.on(Opcode.CONSTANT)
def _uniform_constant(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Canonicalize a constant array of equal elements to a broadcast scalar, so that rules match a single form.

    Single elements are kept: their broadcast would become a reshape, which constant folding turns back into an array.
    """
    if i.literal is None or i.literal.array is None or i.shape.num_elements <= 1:
        return None
    a = i.literal.array
    first = a.flat[0]
    if a.flat[-1] != first or a.tobytes() != first.tobytes() * a.size:
        return None
    return b.broadcast(b.scalar(first, i.shape.element_type), i.shape.dimensions, ())
