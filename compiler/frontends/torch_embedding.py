"""Lowerings of ATen ops that look up rows in tables: embeddings and embedding bags."""

from __future__ import annotations

from typing import Any

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, lowest
from compiler.frontends.torch_indexing import take
from compiler.ir import HloInstruction, Opcode, Shape

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("embedding")
def _embedding(b: TorchBuilder, weight: H, index: H, *_: Any, **__: Any) -> H:
    return take(b, weight, index, 0)


@LOWERINGS.op("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    b: TorchBuilder, weight: H, index: H, offsets: H, _scale: bool = False, mode: int = 0, _sparse: bool = False,
    scales: H | None = None, include_last: bool = False, padding: int = -1,
) -> list[H]:  # fmt: skip
    """Combine rows by bag: sum (mode 0), average (1) or maximum (2); a bag starts at each offset.

    Rows with the padding index are ignored; an empty bag is zero.
    """
    t, rows = weight.shape.element_type, index.shape.dimensions[0]
    bags = offsets.shape.dimensions[0] - int(include_last)
    bag = bag_of_each_row(b, offsets, rows)
    found = take(b, weight, index, 0)
    if scales is not None:
        found = b.binary(Opcode.MULTIPLY, found, b.reshape(scales, (rows, 1)), t)
    ones = b.full(1, Shape(T.S64, (rows, 1)))
    if padding >= 0:
        counts = b.compare(b.reshape(index, (rows, 1)), padding, "NE")
        found = b.select(counts, found, 0 if mode < 2 else lowest(t), t)
        ones = b.convert(counts, T.S64)
    sizes = _combined(b, b.full(0, Shape(T.S64, (bags, 1))), bag, ones, Opcode.ADD)
    shape = Shape(t, (bags, weight.shape.dimensions[1]))
    maxima = b.full(0, Shape(T.S64, (bags,)))
    if mode == 2:
        top = _combined(b, b.full(lowest(t), shape), bag, found, Opcode.MAXIMUM)
        if 3 in b.used:
            maxima = _rows_of_maxima(b, index, bag, found, top)
        total = b.select(b.compare(sizes, 0, "GT"), top, 0, t)
    else:
        total = _combined(b, b.full(0, shape), bag, found, Opcode.ADD)
    if mode == 1:
        total = b.binary(Opcode.DIVIDE, total, b.binary(Opcode.MAXIMUM, sizes, 1, T.S64), t)
    # PyTorch does not return the bag of each row where it did not need it, and the backward op computes it again.
    kept = bag if b.out_at(1).num_elements else b.full(0, Shape(T.S64, (0,)))
    return [total, kept, b.reshape(sizes, (bags,)), maxima]


def _rows_of_maxima(b: TorchBuilder, index: H, bag: H, found: H, top: H) -> H:
    """Return for each element of each bag the index of the first row that has the maximum."""
    rows = index.shape.dimensions[0]
    place = b.add(Opcode.IOTA, shape=found.shape.with_type(T.S64), iota_dimension=0)
    place = b.select(b.compare(found, take(b, top, bag, 0), "EQ"), place, rows, T.S64)
    first = _combined(b, b.full(rows, top.shape.with_type(T.S64)), bag, place, Opcode.MINIMUM)
    first = b.binary(Opcode.MINIMUM, first, rows - 1, T.S64)
    return b.convert(take(b, index, first, 0), T.S64)


def bag_of_each_row(b: TorchBuilder, offsets: H, rows: int) -> H:
    """Return the bag of each row: the number of bags that start at or before it, minus one."""
    n = offsets.shape.dimensions[0]
    places = b.add(Opcode.IOTA, shape=Shape(offsets.shape.element_type, (rows, n)), iota_dimension=0)
    begun = b.compare(b.broadcast(b.reshape(offsets, (1, n)), (rows, n)), places, "LE")
    return b.binary(Opcode.SUBTRACT, b.reduce(Opcode.ADD, b.convert(begun, T.S64), (1,), 0), 1, T.S64)


def _combined(b: TorchBuilder, x: H, index: H, rows: H, opcode: Opcode) -> H:
    """Combine rows of `x` with the rows that `index` maps to them."""
    return b.add(
        Opcode.SCATTER, x, b.reshape(index, (*index.shape.dimensions, 1)), rows,
        to_apply=b.function(opcode, x.shape.element_type), update_window_dims=(1,), inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip
