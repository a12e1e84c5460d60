"""The dimension of features in the operands and the result of an op, and ops with the features moved to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compiler.analysis.reshapes import reshape_groups
from compiler.ir import HloInstruction, Opcode, Trait
from compiler.ir.attributes import ConvDimLabels, Window
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import inverse_permutation

_FIRST_ONLY = frozenset({Opcode.PAD, Opcode.REDUCE_WINDOW, Opcode.SLICE, Opcode.REVERSE})
_ALL = frozenset({Opcode.CONCATENATE})


def moved_order(rank: int, d: int) -> tuple[int, ...]:
    """Return the permutation of a transpose that moves dimension `d` to the end."""
    return tuple(sorted(range(rank), key=lambda k: k == d))


def restored_order(rank: int, d: int) -> tuple[int, ...]:
    """Return the permutation of the transpose that undoes `moved_order`."""
    return inverse_permutation(moved_order(rank, d))


def _place(k: int, rank: int, d: int) -> int:
    """Return where dimension `k` is after dimension `d` has moved to the end."""
    return rank - 1 if k == d else k - (k > d)


def is_movable(i: HloInstruction, d: int) -> bool:
    """Check whether `with_features_last` can build an op with dimension `d` of its result at the end."""
    if i.shape.is_tuple or i.shape.is_dynamic:
        return False
    if i.opcode is Opcode.RESHAPE:
        return operand_dimension(i, 0, d) is not None
    if i.opcode in _REBUILT:
        return True
    return i.opcode.has(Trait.ELEMENTWISE) and i.opcode is not Opcode.MAP


def dimension_map(i: HloInstruction, n: int) -> Mapping[int, int]:
    """Return which dimension of the result of a movable op each dimension of operand `n` becomes.

    Dimensions that are reduced, split or merged are absent. Of a convolution only features are present.
    """
    x = i.operands[n].shape
    if i.opcode is Opcode.BROADCAST:
        return dict(enumerate(i.dimensions))
    if i.opcode is Opcode.TRANSPOSE:
        return {d: k for k, d in enumerate(i.dimensions)}
    if i.opcode is Opcode.RESHAPE:
        return _reshape_map(x.dimensions, i.shape.dimensions)
    if i.opcode is Opcode.REDUCE:
        kept = [d for d in range(x.rank) if d not in i.dimensions] if n == 0 else []
        return {d: k for k, d in enumerate(kept)}
    if i.opcode is Opcode.CONVOLUTION:
        labels: ConvDimLabels = i.attributes["dim_labels"]
        return {labels.lhs.index("f"): labels.out.index("f")} if n == 0 else {}
    same = n == 0 if i.opcode in _FIRST_ONLY else i.opcode in _ALL or x.dimensions == i.shape.dimensions
    return {d: d for d in range(x.rank)} if same else {}


def _reshape_map(source: Sequence[int], target: Sequence[int]) -> dict[int, int]:
    found = {}
    for group in reshape_groups(source, target):
        before, after = ([d for d in g if n[d] != 1] for g, n in ((group.source, source), (group.target, target)))
        if len(before) == len(after) == 1:
            found[before[0]] = after[0]
    return found


def operand_dimension(i: HloInstruction, n: int, d: int) -> int | None:
    """Return the dimension of operand `n` that becomes dimension `d` of the result, or None."""
    return next((source for source, target in dimension_map(i, n).items() if target == d), None)


def with_features_last(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    """Build an op whose operands and result have one dimension moved to the end.

    Args:
        i: the original op.
        operands: its operands, moved.
        features: for each operand the dimension that has moved, or None.
        d: the dimension of the result to move; the last one to move none.
        b: builds the instructions.
    """
    build = _REBUILT.get(i.opcode)
    if build is not None:
        return build(i, operands, features, d, b)
    sizes = _moved_sizes(i, d)
    return b.with_operands(i, operands, i.shape.with_dimensions(sizes))


def _moved_sizes(i: HloInstruction, d: int) -> tuple[int, ...]:
    """Return the sizes of an op's result with dimension `d` at the end."""
    return tuple(i.shape.dimensions[k] for k in moved_order(i.shape.rank, d))


_Build = Callable[[HloInstruction, Sequence[HloInstruction], Sequence[int | None], int, Builder], HloInstruction]


def _with(
    i: HloInstruction, operands: Sequence[HloInstruction], d: int, b: Builder, **changed: object
) -> HloInstruction:
    """Build a copy with other operands and attributes, and with dimension `d` of the result moved."""
    sizes = _moved_sizes(i, d)
    attributes = {k: v for k, v in i.attributes.items() if k != "control-predecessors"}
    return b.add(i.opcode, *operands, shape=i.shape.with_dimensions(sizes), **{**attributes, **changed})


def _broadcast(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    (x,), rank = operands, i.shape.rank
    moved = moved_order(x.shape.rank, features[0]) if features[0] is not None else range(x.shape.rank)
    dims = [_place(i.dimensions[k], rank, d) for k in moved]
    order = sorted(range(len(dims)), key=dims.__getitem__)
    sizes = _moved_sizes(i, d)
    return b.broadcast(b.transpose(x, order), sizes, sorted(dims))


def _transpose(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    rank = i.shape.rank
    old = [i.dimensions[k] for k in moved_order(rank, d)]
    return b.transpose(operands[0], old if features[0] is None else [_place(k, rank, features[0]) for k in old])


def _reshape(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    return b.reshape(operands[0], _moved_sizes(i, d))


def _by_dimension(name: str) -> _Build:
    """Return the builder of ops with an attribute that has one entry per dimension."""

    def build(
        i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
    ) -> HloInstruction:
        given = i.attributes[name]
        order = moved_order(i.shape.rank, d)
        if isinstance(given, Window):
            return _with(i, operands, d, b, **{name: Window(tuple(given.dims[k] for k in order))})
        return _with(i, operands, d, b, **{name: tuple(given[k] for k in order)})

    return build


def _with_dimensions(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    """Build an op whose attribute `dimensions` lists dimensions of its first operand."""
    rank, moved = i.operands[0].shape.rank, features[0]
    dims = i.dimensions if moved is None else sorted(_place(k, rank, moved) for k in i.dimensions)
    return _with(i, operands, d, b, dimensions=tuple(dims))


def _iota(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    return _with(i, (), d, b, iota_dimension=_place(i.attributes["iota_dimension"], i.shape.rank, d))


def _convolution(
    i: HloInstruction, operands: Sequence[HloInstruction], features: Sequence[int | None], d: int, b: Builder
) -> HloInstruction:
    labels: ConvDimLabels = i.attributes["dim_labels"]

    def moved(text: str, at: int | None) -> str:
        return text if at is None else "".join(text[k] for k in moved_order(len(text), at))

    changed = replace(
        labels, lhs=moved(labels.lhs, features[0]), rhs=moved(labels.rhs, features[1]), out=moved(labels.out, d)
    )
    return _with(i, operands, d, b, dim_labels=changed)


_REBUILT: Mapping[Opcode, _Build] = {
    Opcode.BROADCAST: _broadcast,
    Opcode.TRANSPOSE: _transpose,
    Opcode.RESHAPE: _reshape,
    Opcode.REDUCE: _with_dimensions,
    Opcode.REVERSE: _with_dimensions,
    Opcode.CONCATENATE: _with_dimensions,
    Opcode.PAD: _by_dimension("padding"),
    Opcode.SLICE: _by_dimension("slice"),
    Opcode.REDUCE_WINDOW: _by_dimension("window"),
    Opcode.IOTA: _iota,
    Opcode.CONVOLUTION: _convolution,
}
