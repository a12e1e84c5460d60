"""Blocks of dimensions that ops treat position by position, and the same ops where a block is one dimension.

A block is a run of neighbouring dimensions with the sizes that the positions of a loop have, for example the last two
of `f32[3,64,64]`. An op keeps it if each position of the result depends on that position of the operands alone. In
row-major order the positions of a block are numbered in a row, so that a reshape makes one dimension of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import PadDim, SliceDim
from compiler.ir.shape import tuple_shape

Block: TypeAlias = tuple[int, ...]


class BlockError(Exception):
    """An op does not treat the block position by position, or there is no rule for it."""


@dataclass(frozen=True)
class Placed:
    """Where an op has a block, and what changes when the block becomes one dimension.

    Attributes:
        at: the first dimension of the block in the result; None if the result has no positions.
        needs: by operand, the first dimension of its block; None for an operand that has none.
        attributes: what changes when the block becomes one dimension.
        dropped: operands that are then superfluous: the start indices of all dimensions of the block but the first.
    """

    at: int | None
    needs: tuple[int | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()


Rule: TypeAlias = Callable[[HloInstruction, "list[int | None]", Block], Placed]


def place(i: HloInstruction, at: Sequence[int | None], block: Block) -> Placed:
    """Return where an op has the block, if some of its operands have it.

    Args:
        i: the op.
        at: by operand, the first dimension of its block; None for an operand without positions.
        block: the sizes of the dimensions of the block.

    Raises:
        BlockError: the op does not keep the block.
    """
    rule = _RULES.get(i.opcode)
    if rule is None and i.opcode.is_elementwise and i.opcode is not Opcode.MAP:
        rule = _elementwise
    if rule is None:
        raise BlockError(f"%{i.name}: no rule for {i.opcode.text}")
    found = rule(i, list(at), block)
    for operand, need in zip(i.operands, found.needs, strict=True):
        if need is not None and not has_block(operand.shape, need, block):
            raise BlockError(f"%{i.name}: %{operand.name} does not have the block")
    return found


def has_block(shape: Shape, at: int, block: Block) -> bool:
    """Check whether the dimensions of a shape from `at` on are those of the block."""
    return shape.is_array and shape.dimensions[at : at + len(block)] == block


def flat_shape(shape: Shape, at: int, block: Block) -> Shape:
    """Return a shape with one dimension instead of the block; of a tuple, the tuple of such shapes."""
    if shape.is_tuple:
        return tuple_shape(*(flat_shape(s, at, block) for s in shape.tuple_shapes))
    dims = shape.dimensions
    return shape.with_dimensions((*dims[:at], math.prod(block), *dims[at + len(block) :]))


def _only(at: Sequence[int | None]) -> int:
    found = {o for o in at if o is not None}
    if len(found) != 1:
        raise BlockError("operands have the block in different dimensions")
    return found.pop()


def _moved(dims: Sequence[int], at: int, block: Block) -> tuple[int, ...]:
    """Return the numbers of dimensions outside of the block after it has become one."""
    last = at + len(block) - 1
    if any(at <= d <= last for d in dims):
        raise BlockError("an op along a dimension of the block")
    return tuple(d if d < at else d - len(block) + 1 for d in dims)


def _merged(values: Sequence[Any], one: Any, at: int, block: Block) -> tuple[Any, ...]:
    return (*values[:at], one, *values[at + len(block) :])


def _elementwise(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    del block
    place = _only(at)
    if any(o.shape.rank and o.shape.dimensions != i.shape.dimensions for o in i.operands):
        raise BlockError(f"%{i.name}: operands of different sizes")
    return Placed(place, tuple(place if o.shape.rank else None for o in i.operands))


def _broadcast(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place, dims = _only(at), tuple(i.dimensions)
    first = dims[place]
    if dims[place : place + len(block)] != tuple(range(first, first + len(block))):
        raise BlockError(f"%{i.name}: the block is divided")
    outer = [d if d < first else d - len(block) + 1 for d in dims]
    return Placed(first, (place,), {"dimensions": _merged(outer, first, place, block)})


def _reduce(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place, dims, count = _only(at), tuple(i.dimensions), len(i.operands) // 2
    inside = [d for d in dims if place <= d < place + len(block)]
    needs = (*[place] * count, *[None] * count)
    if len(inside) == len(block):
        others = _moved([d for d in dims if d not in inside], place, block)
        return Placed(None, needs, {"dimensions": tuple(sorted((*others, place)))})
    if any(o is not None for o in at[count:]):
        raise BlockError(f"%{i.name}: its initial value depends on the position")
    after = place - sum(d < place for d in dims)
    return Placed(after, needs, {"dimensions": _moved(dims, place, block)})


def _transpose(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place, dims = _only(at), tuple(i.dimensions)
    first = dims.index(place)
    if dims[first : first + len(block)] != tuple(range(place, place + len(block))):
        raise BlockError(f"%{i.name}: the block is transposed")
    inner = [d if d < place else d - len(block) + 1 for d in dims]
    return Placed(first, (place,), {"dimensions": _merged(inner, place, first, block)})


def _reshape(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place = _only(at)
    before = math.prod(i.operands[0].shape.dimensions[:place])
    for first in range(i.shape.rank - len(block) + 1):
        if has_block(i.shape, first, block) and math.prod(i.shape.dimensions[:first]) == before:
            return Placed(first, (place,))
    raise BlockError(f"%{i.name}: the block is reshaped")


def _slice(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place, spec = _only(at), i.attributes["slice"]
    if any(s != SliceDim(0, n) for s, n in zip(spec[place : place + len(block)], block, strict=True)):
        raise BlockError(f"%{i.name}: a part of the block")
    return Placed(place, (place,), {"slice": _merged(spec, SliceDim(0, math.prod(block)), place, block)})


def _pad(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place, spec = _only(at[:1]), i.attributes["padding"]
    if at[1] is not None or any(p != PadDim(0, 0) for p in spec[place : place + len(block)]):
        raise BlockError(f"%{i.name}: the block is padded")
    return Placed(place, (place, None), {"padding": _merged(spec, PadDim(0, 0), place, block)})


def _along(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place = _only(at)
    return Placed(place, (place,) * len(at), {"dimensions": _moved(tuple(i.dimensions), place, block)})


def _dynamic_slice(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    sizes, place = i.attributes["dynamic_slice_sizes"], _starts_inside(i, at, 1, block)
    if tuple(sizes[place : place + len(block)]) != block:
        raise BlockError(f"%{i.name}: a part of the block")
    merged = _merged(sizes, math.prod(block), place, block)
    return Placed(
        place, (place, *[None] * (len(at) - 1)), {"dynamic_slice_sizes": merged}, _superfluous(1, place, block)
    )


def _dynamic_update_slice(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    place = _starts_inside(i, at, 2, block)
    return Placed(place, (place, place, *[None] * (len(at) - 2)), {}, _superfluous(2, place, block))


def _starts_inside(i: HloInstruction, at: list[int | None], first: int, block: Block) -> int:
    """Return the first dimension of the block of an op with one start index for each dimension."""
    if any(o is not None for o in at[first:]) or len(at) - first != i.shape.rank:
        raise BlockError(f"%{i.name}: its indices depend on the position")
    return _only(at[:first])


def _superfluous(first: int, place: int, block: Block) -> tuple[int, ...]:
    # A slice of the whole dimension starts at 0 whatever its index is.
    return tuple(range(first + place + 1, first + place + len(block)))


def _element(i: HloInstruction, at: list[int | None], block: Block) -> Placed:
    del i, block
    return Placed(_only(at), tuple(at))


_RULES: dict[Opcode, Rule] = {
    Opcode.COPY: _elementwise,
    Opcode.BITCAST_CONVERT: _elementwise,
    Opcode.BROADCAST: _broadcast,
    Opcode.REDUCE: _reduce,
    Opcode.TRANSPOSE: _transpose,
    Opcode.RESHAPE: _reshape,
    Opcode.BITCAST: _reshape,
    Opcode.SLICE: _slice,
    Opcode.PAD: _pad,
    Opcode.CONCATENATE: _along,
    Opcode.REVERSE: _along,
    Opcode.SORT: _along,
    Opcode.DYNAMIC_SLICE: _dynamic_slice,
    Opcode.DYNAMIC_UPDATE_SLICE: _dynamic_update_slice,
    Opcode.GET_TUPLE_ELEMENT: _element,
}
