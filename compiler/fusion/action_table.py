"""The legal actions of one sequence, kept row by row: a step looks again only at what stands near the change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compiler.analysis.order import TopologicalOrder
from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.legality import ALLOW, FusionDecision, Legality, forbid
from compiler.fusion.rewriting import consumers_of, is_multi_output, outputs_of, producers_of
from compiler.ir import HloComputation, HloInstruction


@dataclass(slots=True)
class _Row:
    """What is known of one node, as a consumer and as a producer, until it or a neighbour changes.

    Attributes:
        producers: the nodes it reads.
        shape_key: nodes with equal keys may stand side by side.
        taking: actions that compute one of its producers within it.
        sharing: those that keep the producer's output too; they hang on what lies between.
        leaving: the action that puts it into all its users.
    """

    producers: list[HloInstruction]
    shape_key: object
    taking: list[FusionAction] = field(default_factory=list)
    sharing: list[tuple[FusionAction, HloInstruction]] = field(default_factory=list)
    leaving: FusionAction | None = None


class ActionTable:
    """Lists the legal actions of a sequence in a fixed order.

    Call `invalidate` with the nodes that changed, or whose users changed, after each fusion.
    """

    def __init__(self, computation: HloComputation, order: TopologicalOrder, legality: Legality) -> None:
        self.computation, self.order, self.legality = computation, order, legality
        self._rows: dict[HloInstruction, _Row] = {}
        self._listed: list[FusionAction] | None = None

    def invalidate(self, changed: Iterable[HloInstruction]) -> None:
        """Look again at these and at their neighbours before the next listing."""
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
        """The legal actions: by node in topological order; what it may take in, share, leave for, stand beside."""
        if self._listed is None:
            self._listed = list(self._list())
        return self._listed

    def _list(self) -> Iterator[FusionAction]:
        refusal = self.legality.refusal_of
        nodes = [i for i in self.order.sorted(self.computation.instructions) if refusal(i) is None]
        rows = [self._row(i) for i in nodes]
        siblings, alike = _neighbours(nodes, rows)
        for i, row in zip(nodes, rows, strict=True):
            yield from row.taking
            for action, producer in row.sharing:
                if self.legality.path_reason("multi-output", producer, i) is None:
                    yield action
            if row.leaving is not None:
                yield row.leaving
            sibling, other = siblings.get(i), alike.get(i)
            if sibling is not None and self.legality.side_by_side(i, sibling):
                yield self._action("sibling", i, sibling)
            if other is not None and other is not sibling and self.legality.side_by_side(i, other):
                yield self._action("horizontal", i, other)

    def _row(self, i: HloInstruction) -> _Row:
        found = self._rows.get(i)
        if found is None:
            found = self._rows[i] = self._make_row(i)
        return found

    def _make_row(self, i: HloInstruction) -> _Row:
        row = _Row(producers_of(i), outputs_of(i)[0].shape.dimensions)
        for p in row.producers:
            if self.legality.refusal_of(p) is not None:
                continue
            if self.legality.producer_consumer(p, i):
                row.taking.append(self._action("producer-consumer", p, i))
            if has_other_use(p) and self.legality.pair_reason("multi-output", p, i) is None:
                row.sharing.append((self._action("multi-output", p, i), p))
        users = consumers_of(i)
        if len(users) > 1 and self.may_go_into_all(i, users):
            row.leaving = self._action("producer-into-all-users", i, *self.order.sorted(users))
        return row

    def may_go_into_all(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> FusionDecision:
        """Whether the producer may be computed within each of `users`, which are all it has."""
        if is_result(producer):
            return forbid(f"%{producer.name} is the result of its computation")
        for u in users:
            if not (decision := self.legality.producer_consumer(producer, u)):
                return decision
        return ALLOW

    def _action(self, kind: FusionKind, producer: HloInstruction, *consumers: HloInstruction) -> FusionAction:
        return FusionAction(kind, self.computation.name, producer.name, tuple(c.name for c in consumers))


def is_result(node: HloInstruction) -> bool:
    """Whether the computation yields this node, or one of its outputs."""
    return node.is_root or (is_multi_output(node) and any(g.is_root for g in node.users))


def has_other_use(producer: HloInstruction) -> bool:
    """Whether more than one consumer needs this node (given that one does)."""
    return is_result(producer) or len(consumers_of(producer)) > 1


def _neighbours(
    nodes: list[HloInstruction], rows: list[_Row]
) -> tuple[dict[HloInstruction, HloInstruction], dict[HloInstruction, HloInstruction]]:
    """For each node the next user of a value it reads, and the next node of its shape."""
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
