"""The kinds of fusion actions: for each which candidates there are, why one is refused, what it saves, how it is done.

A new kind is a class here, a name in `actions.FusionKind` and a place in `KINDS`. Nothing says how an action is undone:
what `apply` changes, it changes through `SequenceState.fuse`, `SequenceState.merge` or `SequenceState.edit`, which keep
the inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.rewriting import consumers_of, fuse_multi_output, fuse_side_by_side, is_multi_output, producers_of
from compiler.ir import HloInstruction

if TYPE_CHECKING:
    from compiler.fusion.sequence import SequenceState


@dataclass(slots=True, eq=False)
class Entry:
    """An action with its kind and its nodes.

    Attributes:
        saving: what it saves, if it has been computed, see `ActionTable.savings`.
        features: what a policy sees of it apart from its nodes, if it has been computed.
    """

    action: FusionAction
    kind: ActionKind
    producer: HloInstruction
    consumers: tuple[HloInstruction, ...]
    saving: float | None = None
    features: Any = None

    @property
    def consumer(self) -> HloInstruction:
        """The first consumer."""
        return self.consumers[0]


class ActionKind(ABC):
    """One kind of fusion actions.

    The reasons against an action are found in three steps of rising cost. `entries` leaves out what its nodes and their
    neighbours speak against; `path_reason` looks at the paths between the nodes, and `kernel_reason` may make the
    kernel. `reason` gives all of them for any nodes.

    Attributes:
        name: as actions and plans have it.
        needs_path: whether paths between the nodes can speak against an action.
    """

    name: ClassVar[FusionKind]
    needs_path: ClassVar[bool] = False

    @abstractmethod
    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """Yield the candidates that are listed at a fusible node, in a fixed order, unless a quick reason is known."""

    def path_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """Return the reason against a candidate that depends on the paths between its nodes, or None."""
        del s, entry
        return None

    @abstractmethod
    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """Return the reason against a candidate that only making its kernel shows, or None."""

    def has_kernel(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> bool:
        """Check whether `kernel_reason` is None; kinds may answer faster when the reason is not asked for."""
        return self.kernel_reason(s, self.entry(s, producer, *consumers)) is None

    @abstractmethod
    def reason(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> str | None:
        """Return the reason against fusing any nodes of the sequence, or None when that is legal."""

    @abstractmethod
    def saving(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> float:
        """Return the seconds that a legal action saves per run of the sequence; negative when it loses time."""

    @abstractmethod
    def apply(
        self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]
    ) -> list[HloInstruction]:
        """Carry out a legal action; return the fusions that it made or changed, in order."""

    def entry(self, s: SequenceState, producer: HloInstruction, *consumers: HloInstruction) -> Entry:
        """Return an entry of this kind."""
        names = tuple(c.name for c in consumers)
        return Entry(FusionAction(self.name, s.computation.name, producer.name, names), self, producer, consumers)


class ProducerConsumer(ActionKind):
    """Compute a producer within one consumer; it remains where others use it. Listed at the consumer."""

    name = "producer-consumer"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        for p in s.nodes.sorted(producers_of(node)):
            if s.legality.refusal_of(p) is None and s.legality.quick_reason(self.name, p, node) is None:
                yield self.entry(s, p, node)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.legality.pair_reason(self.name, entry.producer, entry.consumer)

    def has_kernel(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> bool:
        """See `ActionKind.has_kernel`."""
        return not s.legality.is_refused(self.name, producer, consumers[0])

    def reason(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> str | None:
        """See `ActionKind.reason`."""
        return s.legality.pair_reason(self.name, producer, consumers[0])

    def saving(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> float:
        """See `ActionKind.saving`."""
        if not has_other_use(producer):
            return s.saving_into_all(producer, consumers)
        return s.edge_saving(producer, consumers[0]) + s.unused_constants_seconds(consumers)

    def apply(
        self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]
    ) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [s.fuse(producer, consumers[0])]


class ProducerIntoAllUsers(ActionKind):
    """Compute a producer within each of its users, and remove it. Listed at the producer."""

    name = "producer-into-all-users"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        users = consumers_of(node)
        if len(users) > 1 and s.may_go_into_all_users(node, users):
            yield self.entry(s, node, *s.nodes.sorted(users))

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.into_all_users(entry.producer, entry.consumers).reason

    def has_kernel(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> bool:
        """See `ActionKind.has_kernel`."""
        return s.can_go_into_all_users(producer, consumers)

    def reason(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> str | None:
        """See `ActionKind.reason`."""
        users = consumers_of(producer)
        if set(users) != set(consumers):
            named = ", ".join("%" + u.name for u in s.order.sorted(users))
            return f"the users of %{producer.name} are {named or 'none'}"
        return s.into_all_users(producer, users).reason

    def saving(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> float:
        """See `ActionKind.saving`."""
        return s.saving_into_all(producer, consumers)

    def apply(
        self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]
    ) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [s.fuse(producer, c) for c in s.nodes.sorted(consumers)]


class MultiOutput(ActionKind):
    """Compute a producer within a consumer, which yields its value for the other users as well. At the consumer."""

    name = "multi-output"
    needs_path = True

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        for p in s.nodes.sorted(producers_of(node)):
            if s.legality.refusal_of(p) is not None or not has_other_use(p):
                continue
            if s.legality.quick_reason(self.name, p, node) is None:
                yield self.entry(s, p, node)

    def path_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.path_reason`."""
        return s.legality.path_reason(self.name, entry.producer, entry.consumer)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.legality.pair_reason(self.name, entry.producer, entry.consumer)

    def has_kernel(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> bool:
        """See `ActionKind.has_kernel`."""
        return not s.legality.is_refused(self.name, producer, consumers[0])

    def reason(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> str | None:
        """See `ActionKind.reason`."""
        return s.legality.multi_output(producer, consumers[0]).reason

    def saving(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> float:
        """See `ActionKind.saving`."""
        saved = s.pair_saving(self.name, producer, consumers[0])
        return saved + s.time_of(producer) + s.unused_constants_seconds([producer, consumers[0]])

    def apply(
        self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]
    ) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [s.merge(producer, consumers[0], fuse_multi_output)]


class SideBySide(ActionKind):
    """Make two independent nodes one kernel with the outputs of both. Listed at the one with the smaller key."""

    needs_path = True

    def path_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.path_reason`."""
        return s.legality.path_reason("sibling", entry.producer, entry.consumer)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.legality.pair_reason("sibling", entry.producer, entry.consumer)

    def has_kernel(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> bool:
        """See `ActionKind.has_kernel`."""
        return not s.legality.is_refused("sibling", *s.nodes.sorted([producer, consumers[0]]))

    def reason(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> str | None:
        """See `ActionKind.reason`."""
        return s.legality.side_by_side(producer, consumers[0]).reason

    def saving(self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]) -> float:
        """See `ActionKind.saving`."""
        first, second = s.nodes.sorted([producer, consumers[0]])
        saved = s.pair_saving("sibling", first, second)
        return saved + s.time_of(first) + s.unused_constants_seconds([first, second])

    def apply(
        self, s: SequenceState, producer: HloInstruction, consumers: Sequence[HloInstruction]
    ) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        first, second = s.nodes.sorted([producer, consumers[0]])
        return [s.merge(first, second, fuse_side_by_side)]

    def _entries(self, s: SequenceState, node: HloInstruction, other: HloInstruction | None) -> Iterator[Entry]:
        if other is not None and s.legality.quick_reason("sibling", node, other) is None:
            yield self.entry(s, node, other)


class Sibling(SideBySide):
    """`SideBySide` for two users of one value: of the pairs, those of a node and the next reader of a value of its."""

    name = "sibling"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        return self._entries(s, node, s.table.next_reader(node))


class Horizontal(SideBySide):
    """`SideBySide` for any two nodes: of the pairs, those of a node and the next one of its shape."""

    name = "horizontal"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        other = s.table.next_alike(node)
        return self._entries(s, node, None if other is s.table.next_reader(node) else other)


KINDS: tuple[ActionKind, ...] = (
    ProducerConsumer(),
    MultiOutput(),
    ProducerIntoAllUsers(),
    Sibling(),
    Horizontal(),
)
"""Every kind, in the order in which the actions of a node are listed."""
KIND_OF: dict[FusionKind, ActionKind] = {k.name: k for k in KINDS}


def is_result(node: HloInstruction) -> bool:
    """Check whether the computation yields this node, or one of its outputs."""
    return node.is_root or (is_multi_output(node) and any(g.is_root for g in node.users))


def has_other_use(producer: HloInstruction) -> bool:
    """Check whether a node that has a consumer is needed by anything else."""
    return is_result(producer) or len(consumers_of(producer)) > 1
