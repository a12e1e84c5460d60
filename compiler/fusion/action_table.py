"""The legal actions of one sequence, cached by node: after a fusion only the nodes near the change are examined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.analysis.order import TopologicalOrder
from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.legality import ALLOW, FusionDecision, Legality, forbid
from compiler.fusion.rewriting import consumers_of, is_multi_output, outputs_of, producers_of
from compiler.ir import HloComputation, HloInstruction


@dataclass(slots=True)
class _Row:
    """The candidates of one node as consumer and as producer, valid until the node or a neighbour changes.

    Candidates are actions without an obvious reason against them; whether a kernel can be made is not known yet.

    Attributes:
        producers: the nodes it reads.
        shape_key: nodes with equal keys may be fused side by side.
        as_consumer: candidates that compute one of its producers within it, each with the producer.
        multi_output: candidates that yield the producer's output too, each with the producer. They are legal only if
            no other path leads from the producer to the node.
        into_all_users: the candidate that fuses it into all its users, with these.
    """

    producers: list[HloInstruction]
    shape_key: object
    as_consumer: list[tuple[FusionAction, HloInstruction]] = field(default_factory=list)
    multi_output: list[tuple[FusionAction, HloInstruction]] = field(default_factory=list)
    into_all_users: tuple[FusionAction, list[HloInstruction]] | None = None


_Reason: TypeAlias = Callable[[str, HloInstruction, HloInstruction], str | None]
"""Returns the reason against a pair of nodes, or None: a method of `Legality`."""


class ActionTable:
    """The legal actions of a sequence in a fixed order.

    After each fusion, call `invalidate` with the nodes that changed or whose users changed.
    """

    def __init__(self, computation: HloComputation, order: TopologicalOrder, legality: Legality) -> None:
        self.computation, self.order, self.legality = computation, order, legality
        self._rows: dict[HloInstruction, _Row] = {}
        self._listed: list[FusionAction] | None = None

    def invalidate(self, changed: Iterable[HloInstruction]) -> None:
        """Forget the actions of these nodes and of their neighbours."""
        self._listed = None
        for i in changed:
            self._rows.pop(i, None)
            if i.parent is None:
                continue
            for p in producers_of(i):
                self._rows.pop(p, None)
            if self.legality.refusal_of(i) is None:
                for u in consumers_of(i):
                    self._rows.pop(u, None)

    def actions(self) -> list[FusionAction]:
        """Return the legal actions by node in topological order, and for each node by kind."""
        if self._listed is None:
            self._listed = list(self._list(judge=True))
        return self._listed

    def candidates(self) -> list[FusionAction]:
        """Return the legal actions, in the same order, and others that fail only when their kernel is made."""
        return list(self._list(judge=False))

    def _list(self, judge: bool) -> Iterator[FusionAction]:
        """Yield the candidates; with `judge` only the legal ones."""
        refusal, path_reason = self.legality.refusal_of, self.legality.path_reason
        reason = self.legality.pair_reason if judge else self.legality.quick_reason
        nodes = [i for i in self.order.sorted(self.computation.instructions) if refusal(i) is None]
        rows = [self._row(i) for i in nodes]
        siblings, alike = _neighbours(nodes, rows)
        for i, row in zip(nodes, rows, strict=True):
            for action, p in row.as_consumer:
                if not judge or reason("producer-consumer", p, i) is None:
                    yield action
            for action, p in row.multi_output:
                if path_reason("multi-output", p, i) is None and (not judge or reason("multi-output", p, i) is None):
                    yield action
            if row.into_all_users is not None:
                action, users = row.into_all_users
                if not judge or all(reason("producer-consumer", i, u) is None for u in users):
                    yield action
            sibling, other = siblings.get(i), alike.get(i)
            if sibling is not None and self._side_by_side(i, sibling, reason):
                yield self._action("sibling", i, sibling)
            if other is not None and other is not sibling and self._side_by_side(i, other, reason):
                yield self._action("horizontal", i, other)

    def _side_by_side(self, first: HloInstruction, second: HloInstruction, reason: _Reason) -> bool:
        first, second = self.order.sorted([first, second])
        if reason("sibling", first, second) is not None:
            return False
        return self.legality.path_reason("sibling", first, second) is None

    def _row(self, i: HloInstruction) -> _Row:
        found = self._rows.get(i)
        if found is None:
            found = self._rows[i] = self._make_row(i)
        return found

    def _make_row(self, i: HloInstruction) -> _Row:
        reason = self.legality.quick_reason
        row = _Row(producers_of(i), outputs_of(i)[0].shape.dimensions)
        for p in row.producers:
            if self.legality.refusal_of(p) is not None:
                continue
            if reason("producer-consumer", p, i) is None:
                row.as_consumer.append((self._action("producer-consumer", p, i), p))
            if has_other_use(p) and reason("multi-output", p, i) is None:
                row.multi_output.append((self._action("multi-output", p, i), p))
        users = consumers_of(i)
        if len(users) > 1 and self.may_go_into_all_users(i, users):
            row.into_all_users = self._action("producer-into-all-users", i, *self.order.sorted(users)), users
        return row

    def may_go_into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> bool:
        """Check whether nothing is known against fusing the producer into all its users without making kernels."""
        quick = self.legality.quick_reason
        return not is_result(producer) and all(quick("producer-consumer", producer, u) is None for u in users)

    def into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> FusionDecision:
        """Return whether the producer may be computed within each of `users`, which are all its users."""
        if is_result(producer):
            return forbid(f"%{producer.name} is the result of its computation")
        for u in users:
            if not (decision := self.legality.producer_consumer(producer, u)):
                return decision
        return ALLOW

    def _action(self, kind: FusionKind, producer: HloInstruction, *consumers: HloInstruction) -> FusionAction:
        return FusionAction(kind, self.computation.name, producer.name, tuple(c.name for c in consumers))


def is_result(node: HloInstruction) -> bool:
    """Check whether the computation yields this node, or one of its outputs."""
    return node.is_root or (is_multi_output(node) and any(g.is_root for g in node.users))


def has_other_use(producer: HloInstruction) -> bool:
    """Check whether a node that has a consumer is needed by anything else."""
    return is_result(producer) or len(consumers_of(producer)) > 1


def _neighbours(
    nodes: list[HloInstruction], rows: list[_Row]
) -> tuple[dict[HloInstruction, HloInstruction], dict[HloInstruction, HloInstruction]]:
    """Return for each node the next user of a value it reads, and the next node of its shape."""
    siblings: dict[HloInstruction, HloInstruction] = {}
    alike: dict[HloInstruction, HloInstruction] = {}
    last_user: dict[HloInstruction, HloInstruction] = {}
    last_alike: dict[object, HloInstruction] = {}
    for i, row in zip(nodes, rows, strict=True):
        for p in row.producers:
            before = last_user.get(p)
            if before is not None:
                siblings.setdefault(before, i)
            last_user[p] = i
        before = last_alike.get(row.shape_key)
        if before is not None:
            alike[before] = i
        last_alike[row.shape_key] = i
    return siblings, alike
