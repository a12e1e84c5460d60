"""Layouts of activations: convolutions that a library computes, and the ops between them, with the features last."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.convolutions import is_weights_gradient
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.attributes import ConvDimLabels
from compiler.passes.dots.convolution_simplifier import is_pointwise
from compiler.passes.dots.feature_dimensions import (
    dimension_map,
    is_movable,
    moved_order,
    operand_dimension,
    restored_order,
    with_features_last,
)  # fmt: skip
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable
from compiler.passes.infrastructure.sparing import Keeps

KERNEL_COST = 2
"""Cost of a byte that a kernel transposes, relative to one that is reordered for the library."""
POINTWISE_SHARE = 0.25
"""What a convolution that is not moved in any case gains by features at the end, as a share of its bytes."""


@dataclass(frozen=True)
class FeaturesLast:
    """Move the features of convolutions, and of the ops between them, to the end where that saves transposes.

    Libraries compute convolutions with the features last, and reorder activations that are in another order before and
    after. Groups of ops that are connected with convolutions are computed with the features last if fewer bytes are
    transposed then: those between two convolutions, for example, or between one and a reduction over positions. The
    convolutions beside them follow. Weights stay as they are, and so does a convolution alone.

    It is no pass of the registry, because `library` depends on the backend.

    Attributes:
        library: says of a convolution whether a library computes it.
        launch_bytes: bytes that a kernel transposes in the time that its launch takes; it is charged for transposes
            that no other kernel can make, those of reductions.
    """

    name: ClassVar[str] = "features-last"
    library: Keeps
    launch_bytes: int = 0

    def run(self, module: HloModule) -> bool:
        """Rewrite every computation; return whether any changed."""
        changed = False
        for computation in treatable(module):
            if any(i.opcode is Opcode.CONVOLUTION for i in computation.instructions):
                changed |= self._run_on(computation)
        return changed

    def _run_on(self, computation: HloComputation) -> bool:
        order = computation.post_order()
        fixed = pinned(computation)
        moves = {}
        for i in order:
            if i.opcode is Opcode.CONVOLUTION and i not in fixed:
                found = ConvolutionMoves.of(i)
                if found is not None and self.library(i) and not is_pointwise(i):
                    moves[i] = found
        if not moves:
            return False
        region = _Region(moves, fixed)
        chosen = {i for group in region.groups() if region.saved_bytes(group, self.launch_bytes) > 0 for i in group}
        chosen |= region.convolutions_beside(chosen)
        if chosen:
            _Rewrite(region, chosen, Builder(computation)).run([i for i in order if i in chosen])
        return bool(chosen)


@dataclass(frozen=True)
class ConvolutionMoves:
    """Which dimensions of a convolution's activations have to move to the end, so that a library computes it as it is.

    Attributes:
        operands: for each operand the dimension, or None if nothing moves.
        result: the dimension of the result; the last one if nothing moves.
    """

    operands: tuple[int | None, ...]
    result: int

    @staticmethod
    def of(i: HloInstruction) -> ConvolutionMoves | None:
        """Return the moves, or None if there are none: all is in order, or no move of one dimension is enough."""
        labels: ConvDimLabels = i.attributes["dim_labels"]
        x, kernel, out = (_dimension(labels.lhs, "bf"), None, _dimension(labels.out, "bf"))
        if is_weights_gradient(i):
            # The input's batch is contracted like features, and the kernel is the gradient of the output.
            x, kernel, out = (_dimension(labels.lhs, "fb"), _dimension(labels.rhs, "io"), len(labels.out) - 1)
        if x is None and kernel is None and (out is None or out == len(labels.out) - 1):
            return None
        return ConvolutionMoves((x, kernel), len(labels.out) - 1 if out is None else out)


def _dimension(labels: str, ends: str) -> int | None:
    """Return the dimension whose move to the end makes the order batch, space, features; None if none does.

    Args:
        labels: the labels of an array.
        ends: the labels of the dimensions that are the batch and the features.
    """
    batch, features = ends[0], ends[1]
    d = labels.index(features)
    wanted = batch + "".join(sorted(c for c in labels if c.isdigit())) + features
    moved = "".join(labels[k] for k in moved_order(len(labels), d))
    return d if moved == wanted and d != len(labels) - 1 else None


class _Region:
    """The values around some convolutions that can have their features last.

    Args:
        moves: the convolutions that are moved in any case.
        fixed: instructions that must stay.

    Attributes:
        features: for each value the dimension of its features; the last one means that its layout does not change.
    """

    def __init__(self, moves: Mapping[HloInstruction, ConvolutionMoves], fixed: set[HloInstruction]) -> None:
        self.moves = moves
        self.features: dict[HloInstruction, int] = {i: m.result for i, m in moves.items()}
        self._reduced: dict[HloInstruction, int] = {}  # the dimension in the operand of a reduction
        self._fixed = fixed
        self._spread()

    def operand_features(self, i: HloInstruction, n: int) -> int | None:
        """Return the dimension that moves in operand `n` of a value's op; None if the operand stays as it is."""
        if i in self.moves:
            return self.moves[i].operands[n]
        d = self._reduced.get(i) if n == 0 else None
        if d is None:
            d = operand_dimension(i, n, self.features[i])
        return None if d is None or d == i.operands[n].shape.rank - 1 else d

    def _spread(self) -> None:
        work = list(self.moves)
        while work:
            i = work.pop()
            for n, o in enumerate(i.operands):
                d = self.operand_features(i, n)
                if d is not None and self._add(o, d):
                    work.append(o)
            d = self.features[i]
            if d == i.shape.rank - 1:
                continue
            for user in i.users:
                if user in self.features:
                    continue
                passed = {dimension_map(user, n).get(d) for n, o in enumerate(user.operands) if o is i}
                to = passed.pop()
                reduced = user.opcode is Opcode.REDUCE and user.operands[0] is i
                if reduced and to is None:
                    to = user.shape.rank - 1
                if to is None or passed or not self._add(user, to):
                    continue
                work.append(user)
                if reduced:
                    self._reduced[user] = d

    def _add(self, i: HloInstruction, d: int) -> bool:
        """Give a value a dimension of features; return whether it was none of the region."""
        if i in self.features or i in self._fixed or not is_movable(i, d):
            return False
        self.features[i] = d
        return True

    def users_in_order(self, i: HloInstruction) -> Iterator[tuple[HloInstruction, int | None]]:
        """Iterate over the uses of a value: each user with the dimension that moves for it, or None."""
        for user in i.users:
            for n, o in enumerate(user.operands):
                if o is i:
                    yield user, self.operand_features(user, n) if user in self.features else None

    def groups(self) -> list[list[HloInstruction]]:
        """Return the connected groups of values other than convolutions that move in any case."""
        left = {i: None for i in self.features if i not in self.moves}
        found = []
        while left:
            first = next(iter(left))
            del left[first]
            group, work = [first], [first]
            while work:
                i = work.pop()
                near = [o for n, o in enumerate(i.operands) if self.features.get(o) == self.operand_features(i, n)]
                near += [u for u, d in self.users_in_order(i) if d is not None and d == self.features[i]]
                for other in near:
                    if other in left:
                        del left[other]
                        group.append(other)
                        work.append(other)
            found.append(group)
        return found

    def convolutions_beside(self, chosen: set[HloInstruction]) -> set[HloInstruction]:
        """Return the convolutions that exchange an activation with chosen values or with each other."""
        found = set()
        for i in self.moves:
            for n, o in enumerate(i.operands):
                if (d := self.moves[i].operands[n]) is None or self.features.get(o) != d:
                    continue
                if o in chosen or o in self.moves:
                    found.add(i)
                if o in self.moves:
                    found.add(o)
            if self.features[i] != i.shape.rank - 1:
                beside = (u for u, d in self.users_in_order(i) if d == self.features[i])
                if any(u in chosen for u in beside):
                    found.add(i)
        return found

    def saved_bytes(self, group: list[HloInstruction], launch_bytes: int) -> float:
        """Return how many fewer bytes are transposed if a group moves than if it stays, weighted by what they cost.

        Args:
            group: the values.
            launch_bytes: see `FeaturesLast`.
        """
        members = set(group)
        inside, outside = set[HloInstruction](), set[HloInstruction]()
        gain = 0.0
        for i in group:
            for n, o in enumerate(i.operands):
                d = self.operand_features(i, n)
                if d is None or o in members or o.opcode is Opcode.CONSTANT:
                    continue
                (inside if o in self.moves and self.features[o] == d else outside).add(o)
            if self.features[i] != i.shape.rank - 1:
                for user, d in self.users_in_order(i):
                    if user not in members:
                        (inside if user in self.moves and d == self.features[i] else outside).add(i)
                if i.is_root:
                    outside.add(i)
            if i.opcode is Opcode.CONVOLUTION:
                gain += POINTWISE_SHARE * (i.shape.byte_size + i.operands[0].shape.byte_size)
        gain -= KERNEL_COST * launch_bytes * sum(_is_reduced(i, members) for i in outside)
        return gain + sum(i.shape.byte_size for i in inside) - KERNEL_COST * sum(i.shape.byte_size for i in outside)


class _Rewrite:
    """Builds the chosen values of a region with their features last."""

    def __init__(self, region: _Region, chosen: set[HloInstruction], b: Builder) -> None:
        self._region = region
        self._chosen = chosen
        self._b = b
        self._new: dict[HloInstruction, HloInstruction] = {}
        self._transposed: dict[tuple[HloInstruction, int], HloInstruction] = {}
        self._restored: dict[HloInstruction, HloInstruction] = {}

    def run(self, order: list[HloInstruction]) -> None:
        """Build the chosen values, operands first, and let all others use them in the original layout."""
        for i in order:
            features = [self._region.operand_features(i, n) for n in range(len(i.operands))]
            operands = [self._operand(o, d) for o, d in zip(i.operands, features, strict=True)]
            self._new[i] = with_features_last(i, operands, features, self._region.features[i], self._b)
        for i in order:
            others = [u for u in i.users if u not in self._chosen]
            if not others and not i.is_root:
                continue
            original = self._original(i)
            for user in others:
                user.replace_operands(i, original)
            if i.is_root:
                self._b.computation.root = original
        for i in reversed(order):
            if not i.users and not i.is_root:
                self._b.computation.remove(i)

    def _operand(self, x: HloInstruction, d: int | None) -> HloInstruction:
        """Return a value with dimension `d` at the end."""
        if d is None:
            return self._original(x)
        if x in self._new and self._region.features[x] == d:
            return self._new[x]
        key = (x, d)
        if key not in self._transposed:
            self._transposed[key] = self._b.transpose(self._original(x), moved_order(x.shape.rank, d))
        return self._transposed[key]

    def _original(self, x: HloInstruction) -> HloInstruction:
        """Return a value in its original layout."""
        if x not in self._new:
            return x
        if x not in self._restored:
            new, order = self._new[x], restored_order(x.shape.rank, self._region.features[x])
            if order != tuple(range(len(order))) and _is_reduced(x, self._chosen, self._region.moves):
                new = self._b.add(Opcode.OPTIMIZATION_BARRIER, new)
            self._restored[x] = self._b.transpose(new, order)
        return self._restored[x]


def _is_reduced(x: HloInstruction, values: Container[HloInstruction], ends: Container[HloInstruction] = ()) -> bool:
    """Check whether a value depends on a reduction of some values, such as pooling, without `ends` between them.

    Its transpose is a kernel of its own, because a kernel that reduces in the order of the transpose reads every
    cache line several times.
    """
    seen, work = {x}, [x]
    while work:
        i = work.pop()
        if i.opcode in (Opcode.REDUCE, Opcode.REDUCE_WINDOW):
            return True
        if i not in ends:
            work += (near := {o for o in i.operands if o in values} - seen)
            seen |= near
    return False
