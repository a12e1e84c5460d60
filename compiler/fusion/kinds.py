"""The kinds of fusion actions: for each which candidates there are, why one is refused, what it saves, how it is done.

A new kind is a class here, a name in `actions.FusionKind` and a place in `KINDS`. Nothing says how an action is
undone: what `apply` changes, it changes through the functions of `steps`, which keep the inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.anatomy import Anatomy
from compiler.fusion.moving import Moving
from compiler.fusion.rewriting import (
    consumers_of,
    fuse_multi_output,
    fuse_side_by_side,
    producers_of,
)
from compiler.fusion.steps import FEW, fuse, merge, move, split
from compiler.ir import HloInstruction, Opcode

if TYPE_CHECKING:
    from compiler.fusion.sequence import SequenceState


@dataclass(slots=True, eq=False)
class Entry:
    """An action with its kind and its nodes.

    Attributes:
        cut: the number of the value that a fission or a move computes elsewhere; -1 for other kinds.
        reads: nodes that the value of a move reads besides the kernel that takes it, if that is read by the fusion.
        saving: what it saves, if it has been computed, see `ActionTable.savings`.
        features: what a policy sees of it apart from its nodes, if it has been computed.
        varies: whether the saving may change although its nodes do not, because they read constants.
        copies: how often the consumer would compute each element of the producer, if it has been computed.
        is_wide: whether it may make constants superfluous that many nodes read, so that its saving may change always.
        built: whether there is a kernel, if that is known and depends on its nodes alone.
    """

    action: FusionAction
    kind: ActionKind
    producer: HloInstruction
    consumers: tuple[HloInstruction, ...]
    cut: int = -1
    reads: tuple[HloInstruction, ...] = ()
    saving: float | None = None
    features: Any = None
    varies: bool = True
    copies: int | None = None
    is_wide: bool = False
    built: bool | None = None

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
        has_pair: whether `has_kernel` depends on the revisions of two nodes alone.
    """

    name: ClassVar[FusionKind]
    needs_path: ClassVar[bool] = False
    has_pair: ClassVar[bool] = False

    @abstractmethod
    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """Yield the candidates that are listed at a fusible node, in a fixed order, unless a quick reason is known."""

    def path_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """Return the reason against a candidate that depends on the paths between its nodes, or None."""
        del s, entry
        return None

    def is_blocked(self, s: SequenceState, entry: Entry) -> bool:
        """Check whether `path_reason` is not None, without finding the reason."""
        return self.path_reason(s, entry) is not None

    def watched(self, entry: Entry) -> Sequence[HloInstruction]:
        """Return nodes such that `is_blocked` stays as it is while what depends on them does, and who reads them."""
        del entry
        return ()

    @abstractmethod
    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """Return the reason against a candidate that only making its kernel shows, or None."""

    def has_kernel(self, s: SequenceState, entry: Entry) -> bool:
        """Check whether `kernel_reason` is None; kinds may answer faster when the reason is not asked for."""
        return self.kernel_reason(s, entry) is None

    @abstractmethod
    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """Return the reason against an action on any nodes of the sequence, or None when that is legal."""

    def is_possible(self, s: SequenceState, e: Entry) -> bool:
        """Check for an action on any nodes that at most its kernels speak against it, so that `saving` has an answer.

        Kinds may answer without making kernels.
        """
        return self.reason(s, e) is None

    @abstractmethod
    def saving(self, s: SequenceState, e: Entry) -> float:
        """Return the seconds that a legal action saves per run of the sequence; negative when it loses time."""

    @abstractmethod
    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """Carry out a legal action; return the fusions that it made or changed, in order."""

    def resolve(self, s: SequenceState, action: FusionAction) -> Entry | str:
        """Return an action with the nodes that it names, or why there are none."""
        found = [s.computation.find(n) for n in (action.producer, *action.consumers)]
        for name, node in zip((action.producer, *action.consumers), found, strict=True):
            if node is None:
                return f"there is no instruction %{name} in computation %{s.computation.name}"
        producer, *consumers = (n for n in found if n is not None)
        return Entry(action, self, producer, tuple(consumers))

    def entry(self, s: SequenceState, producer: HloInstruction, *consumers: HloInstruction) -> Entry:
        """Return an entry of this kind."""
        names = tuple([c.name for c in consumers])
        return Entry(FusionAction(self.name, s.computation.name, producer.name, names), self, producer, consumers)

    def known_entry(
        self, s: SequenceState, key: Hashable, producer: HloInstruction, *consumers: HloInstruction
    ) -> Entry:
        """Return an entry of this kind, with what is known of it from an earlier list.

        Args:
            s: the sequence.
            key: the revisions of the nodes, and what else the saving depends on besides constants.
            producer: see `Entry`.
            consumers: the same.
        """
        known = s.listed
        found = known.get(key)
        if found is not None and found.producer is producer and found.consumers == consumers:
            if found.varies:
                found.saving = None
            return found
        made = known[key] = self.entry(s, producer, *consumers)
        if found is None:
            made.varies = s.estimates.reads_constants((producer, *consumers))
        else:  # the same nodes were made again
            made.varies, made.copies, made.built = found.varies, found.copies, found.built
            made.saving = None if found.varies else found.saving
        made.is_wide = made.varies and len(consumers) >= FEW
        return made


class ProducerConsumer(ActionKind):
    """Compute a producer within one consumer; it remains where others use it. Listed at the consumer."""

    name = "producer-consumer"
    has_pair = True

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        may, revision = s.legality.may_fuse, s.nodes.revision
        for p in s.producers(node):
            if may(self.name, p, node):
                yield self.known_entry(s, (self.name, revision(p), revision(node), s.has_other_use(p)), p, node)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.legality.pair_reason(self.name, entry.producer, entry.consumer)

    def has_kernel(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.has_kernel`."""
        return not s.legality.is_refused(self.name, entry.producer, entry.consumer)

    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.reason`."""
        return s.legality.pair_reason(self.name, e.producer, e.consumer)

    def is_possible(self, s: SequenceState, e: Entry) -> bool:
        """See `ActionKind.is_possible`."""
        return s.legality.may_fuse(self.name, e.producer, e.consumer)

    def saving(self, s: SequenceState, e: Entry) -> float:
        """See `ActionKind.saving`."""
        if not s.has_other_use(e.producer):
            return s.estimates.into_all(e.producer, e.consumers)
        return s.estimates.edge(e.producer, e.consumer) + s.estimates.unused_constants(e.consumers)

    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [fuse(s, e.producer, e.consumer)]


class ProducerIntoAllUsers(ActionKind):
    """Compute a producer within each of its users, and remove it. Listed at the producer."""

    name = "producer-into-all-users"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        users = s.consumers(node)
        if len(users) > 1 and s.may_go_into_all_users(node, users):
            users = s.nodes.sorted(users)
            yield self.known_entry(s, (self.name, *map(s.nodes.revision, (node, *users))), node, *users)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.into_all_users(entry.producer, entry.consumers).reason

    def has_kernel(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.has_kernel`."""
        return s.can_go_into_all_users(entry.producer, entry.consumers)

    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.reason`."""
        users = consumers_of(e.producer)
        if set(users) != set(e.consumers):
            named = ", ".join("%" + u.name for u in s.order.sorted(users))
            return f"the users of %{e.producer.name} are {named or 'none'}"
        return s.into_all_users(e.producer, users).reason

    def is_possible(self, s: SequenceState, e: Entry) -> bool:
        """See `ActionKind.is_possible`."""
        return set(consumers_of(e.producer)) == set(e.consumers) and s.may_go_into_all_users(e.producer, e.consumers)

    def saving(self, s: SequenceState, e: Entry) -> float:
        """See `ActionKind.saving`."""
        return s.estimates.into_all(e.producer, e.consumers)

    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [fuse(s, e.producer, c) for c in s.nodes.sorted(e.consumers)]


class MultiOutput(ActionKind):
    """Compute a producer within a consumer, which yields its value for the other users as well. At the consumer."""

    name = "multi-output"
    needs_path = has_pair = True

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        may, revision = s.legality.may_fuse, s.nodes.revision
        for p in s.producers(node):
            if s.has_other_use(p) and may(self.name, p, node):
                yield self.known_entry(s, (self.name, revision(p), revision(node)), p, node)

    def path_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.path_reason`."""
        return s.legality.path_reason(self.name, entry.producer, entry.consumer)

    def is_blocked(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.is_blocked`."""
        return s.has_path_around(entry.producer, entry.consumer)

    def watched(self, entry: Entry) -> Sequence[HloInstruction]:
        """See `ActionKind.watched`."""
        return (entry.producer,)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.legality.pair_reason(self.name, entry.producer, entry.consumer)

    def has_kernel(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.has_kernel`."""
        return not s.legality.is_refused(self.name, entry.producer, entry.consumer)

    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.reason`."""
        return s.legality.multi_output(e.producer, e.consumer).reason

    def is_possible(self, s: SequenceState, e: Entry) -> bool:
        """See `ActionKind.is_possible`."""
        return s.legality.may_fuse(self.name, e.producer, e.consumer) and self.path_reason(s, e) is None

    def saving(self, s: SequenceState, e: Entry) -> float:
        """See `ActionKind.saving`."""
        saved = s.estimates.pair(self.name, e.producer, e.consumer)
        return saved + s.time_of(e.producer) + s.estimates.unused_constants([e.producer, e.consumer])

    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [merge(s, e.producer, e.consumer, fuse_multi_output)]


class SideBySide(ActionKind):
    """Make two independent nodes one kernel with the outputs of both. Listed at the one with the smaller key."""

    needs_path = has_pair = True

    def path_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.path_reason`."""
        return s.legality.path_reason("sibling", entry.producer, entry.consumer)

    def is_blocked(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.is_blocked`."""
        return s.is_ordered(entry.producer, entry.consumer)

    def watched(self, entry: Entry) -> Sequence[HloInstruction]:
        """See `ActionKind.watched`."""
        return (entry.producer, entry.consumer)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.legality.pair_reason("sibling", entry.producer, entry.consumer)

    def has_kernel(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.has_kernel`."""
        return not s.legality.is_refused("sibling", *s.nodes.sorted([entry.producer, entry.consumer]))

    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.reason`."""
        return s.legality.side_by_side(e.producer, e.consumer).reason

    def is_possible(self, s: SequenceState, e: Entry) -> bool:
        """See `ActionKind.is_possible`."""
        first, second = s.nodes.sorted([e.producer, e.consumer])
        return s.legality.may_fuse("sibling", first, second) and self.path_reason(s, e) is None

    def saving(self, s: SequenceState, e: Entry) -> float:
        """See `ActionKind.saving`."""
        first, second = s.nodes.sorted([e.producer, e.consumer])
        saved = s.estimates.pair("sibling", first, second)
        return saved + s.time_of(first) + s.estimates.unused_constants([first, second])

    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        first, second = s.nodes.sorted([e.producer, e.consumer])
        return [merge(s, first, second, fuse_side_by_side)]

    def _entries(self, s: SequenceState, node: HloInstruction, other: HloInstruction | None) -> Iterator[Entry]:
        if other is not None and s.legality.may_fuse("sibling", node, other):
            revision = s.nodes.revision
            yield self.known_entry(s, (self.name, revision(node), revision(other)), node, other)


class Sibling(SideBySide):
    """`SideBySide` for two users of one value: of the pairs, those of a node and the next reader of a value of its."""

    name = "sibling"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        return self._entries(s, node, s.table.next_reader(node))


class Horizontal(SideBySide):
    """`SideBySide` for any two nodes: of the pairs, those of a node and the next one of its shape, and the next one."""

    name = "horizontal"

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        reader = s.table.next_reader(node)
        for other in (s.table.next_alike(node), s.table.next_unlike(node)):
            if other is not reader:
                yield from self._entries(s, node, other)


class Fission(ActionKind):
    """Compute one value of a fusion in a kernel of its own, which the fusion then reads. Listed at the fusion.

    The inverse of every other kind: as the cuts that are listed include the values that need nothing else of the
    fusion, fissions lead from every state to the one without fusions. If a node yields the value already, as when a
    producer was fused into some of its users only, the fusion reads it from there.
    """

    name = "fission"
    needs_path = True

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        if node.opcode is Opcode.FUSION:
            cuts = s.divisions.cuts(node)
            if s.divisions.constant_reason(node) is None:
                for cut in cuts:
                    yield self._entry(s, node, cut)

    def path_reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.path_reason`."""
        if e.consumer is e.producer or not s.depends(e.producer, e.consumer):
            return None
        return f"%{e.consumer.name}, which yields %{e.action.consumer}, needs %{e.producer.name}"

    def watched(self, entry: Entry) -> Sequence[HloInstruction]:
        """See `ActionKind.watched`."""
        return (entry.producer, entry.consumer)

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.divisions.parts(entry.producer, entry.cut).reason

    def resolve(self, s: SequenceState, action: FusionAction) -> Entry | str:
        """See `ActionKind.resolve`."""
        fusion, cut = s.computation.find(action.producer), s.nodes.origins.number_of(action.consumer)
        if fusion is None:
            return f"there is no instruction %{action.producer} in computation %{s.computation.name}"
        if cut is None:
            return f"there was no instruction %{action.consumer} in %{s.computation.name} when fusion began"
        if fusion.opcode is not Opcode.FUSION:
            return f"%{fusion.name} is no fusion"
        return self._entry(s, fusion, cut)

    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.reason`."""
        refusal = s.legality.refusal_of(e.producer) or Anatomy(e.producer, s.nodes).refusal(e.cut)
        return refusal or s.divisions.constant_reason(e.producer) or self.path_reason(s, e) or self.kernel_reason(s, e)

    def saving(self, s: SequenceState, e: Entry) -> float:
        """See `ActionKind.saving`."""
        parts = s.divisions.parts(e.producer, e.cut)
        return s.time_of(e.producer) - parts.rest - (parts.own if e.consumer is e.producer else 0.0)

    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return [split(s, e.producer, e.cut)]

    def _entry(self, s: SequenceState, fusion: HloInstruction, cut: int) -> Entry:
        """Return the action; its consumer is the node that yields the value, or the fusion itself."""
        action = FusionAction(self.name, s.computation.name, fusion.name, (s.nodes.origins.name(cut),))
        return Entry(action, self, fusion, (s.nodes.yields(cut) or fusion,), cut)


class Move(ActionKind):
    """Compute a value of a fusion in a neighboring kernel. Listed at the fusion.

    Upstream, a value that needs nothing else of the fusion goes to a kernel that it reads, which yields it from then
    on. Downstream, an output that one other kernel reads goes to that kernel, and the fusion yields what it needs.
    """

    name = "move"
    needs_path = True

    def entries(self, s: SequenceState, node: HloInstruction) -> Iterator[Entry]:
        """See `ActionKind.entries`."""
        if node.opcode is not Opcode.FUSION or s.divisions.constant_reason(node) is not None:
            return
        for value, target, reads in s.divisions.moves(node):
            if s.legality.refusal_of(target) is None:
                yield self._entry(s, node, value, target, reads)

    def path_reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.path_reason`."""
        for other in e.reads:
            if s.order.reaches(e.consumer, other):
                return f"%{other.name}, which %{e.action.consumer} reads, needs %{e.consumer.name}"
        return None

    def watched(self, entry: Entry) -> Sequence[HloInstruction]:
        """See `ActionKind.watched`."""
        return (entry.consumer, *entry.reads) if entry.reads else ()

    def kernel_reason(self, s: SequenceState, entry: Entry) -> str | None:
        """See `ActionKind.kernel_reason`."""
        return s.divisions.move_facts(entry.producer, entry.cut, entry.consumer).reason

    def resolve(self, s: SequenceState, action: FusionAction) -> Entry | str:
        """See `ActionKind.resolve`."""
        value, target = s.nodes.origins.number_of(action.consumer), s.computation.find(action.consumers[1])
        fusion = s.computation.find(action.producer)
        if fusion is None or target is None:
            missing = action.producer if fusion is None else action.consumers[1]
            return f"there is no instruction %{missing} in computation %{s.computation.name}"
        if value is None:
            return f"there was no instruction %{action.consumer} in %{s.computation.name} when fusion began"
        if fusion.opcode is not Opcode.FUSION:
            return f"%{fusion.name} is no fusion"
        refusal = s.legality.refusal_of(fusion) or s.legality.refusal_of(target)
        if refusal is not None:
            return refusal
        if target not in (*producers_of(fusion), *consumers_of(fusion)):
            return f"%{target.name} neither reads %{fusion.name} nor is read by it"
        moving = Moving(Anatomy(fusion, s.nodes), value, target)
        reason = moving.reason()
        return reason or self._entry(s, fusion, value, target, moving.others_read())

    def reason(self, s: SequenceState, e: Entry) -> str | None:
        """See `ActionKind.reason`."""
        reason = s.divisions.constant_reason(e.producer) or self.path_reason(s, e)
        return reason or s.divisions.moved_rule(e.producer, e.cut, e.consumer) or self.kernel_reason(s, e)

    def has_kernel(self, s: SequenceState, entry: Entry) -> bool:
        """See `ActionKind.has_kernel`."""
        e = entry
        return s.divisions.moved_rule(e.producer, e.cut, e.consumer) is None and self.kernel_reason(s, e) is None

    def saving(self, s: SequenceState, e: Entry) -> float:
        """See `ActionKind.saving`."""
        after = s.divisions.move_facts(e.producer, e.cut, e.consumer).seconds
        return s.time_of(e.producer) + s.time_of(e.consumer) - after

    def apply(self, s: SequenceState, e: Entry) -> list[HloInstruction]:
        """See `ActionKind.apply`."""
        return move(s, e.producer, e.cut, e.consumer)

    def _entry(
        self,
        s: SequenceState,
        fusion: HloInstruction,
        value: int,
        target: HloInstruction,
        reads: tuple[HloInstruction, ...],
    ) -> Entry:
        names = s.nodes.origins.name(value), target.name
        action = FusionAction(self.name, s.computation.name, fusion.name, names)
        return Entry(action, self, fusion, (target,), value, reads)


FUSING: tuple[ActionKind, ...] = (
    ProducerConsumer(),
    MultiOutput(),
    ProducerIntoAllUsers(),
    Sibling(),
    Horizontal(),
)
"""The kinds that make fusions, in the order in which the actions of a node are listed."""
SPLITTING: tuple[ActionKind, ...] = (Fission(), Move())
"""The kinds that take fusions apart or move what they compute."""
KIND_OF: dict[FusionKind, ActionKind] = {k.name: k for k in (*FUSING, *SPLITTING)}
