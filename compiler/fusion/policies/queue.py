"""Policies driven by a heap of producers, whose priorities are updated after every fusion."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Hashable

from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.rewriting import consumers_of, is_result, producers_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction

LEAST_LOSS = 1e-9
"""Seconds per run of the sequence that a fusion may lose as long as it counts as free."""


class ProducerQueue(ABC):
    """Takes producers in order of priority and applies the action of `action_for` to each.

    The priority of a producer is computed again only when the producer or one of its users has changed, so a run takes
    time proportional to the number of fusions and the edges they touch.
    """

    def __init__(self) -> None:
        self._state: FusionState | None = None
        self._undone = 0
        self._seen: dict[str, int] = {}
        self._heap: list[tuple[float, int, int, str, SequenceState, HloInstruction]] = []
        self._version: dict[HloInstruction, int] = {}
        self._known: dict[HloInstruction, tuple[Hashable, float | None]] = {}
        self._steps = -1

    @abstractmethod
    def priority(self, sequence: SequenceState, producer: HloInstruction) -> float | None:
        """Return the benefit of fusing this producer (the greatest is taken first), or None not to fuse it.

        It must depend on the producer, its users and the constants that only they read, and on nothing else: it is
        asked for again only when one of these has changed. Whether there are kernels is asked when the producer is
        taken, because most producers change before.
        """

    def action_for(self, sequence: SequenceState, producer: HloInstruction) -> FusionAction | None:
        """Return the fusion of a producer into all its users, or None if it has no priority any more or is illegal."""
        if self._priority(sequence, producer) is None:
            return None
        legal = sequence.can_go_into_all_users(producer, sequence.consumers(producer))
        return all_users_action(sequence, producer) if legal else None

    def _priority(self, sequence: SequenceState, producer: HloInstruction) -> float | None:
        """Return `priority`, which is computed again only if what it depends on has changed."""
        users, revision = sequence.consumers(producer), sequence.nodes.revision
        unused = sequence.estimates.unused_constants((producer, *users))
        around = revision(producer), is_result(producer), unused, *map(revision, users)
        known = self._known.get(producer)
        if known is None or known[0] != around:
            known = self._known[producer] = around, self.priority(sequence, producer)
        return known[1]

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the action of the producer of highest priority."""
        self._update(state)
        while self._heap:
            _, _, version, _, sequence, producer = heapq.heappop(self._heap)
            if producer.parent is None or self._version.get(producer) != version:
                continue
            action = self.action_for(sequence, producer)
            if action is not None:
                return action
        return None

    def _update(self, state: FusionState) -> None:
        if state is not self._state or state.undone != self._undone:
            self._state, self._undone, self._seen, self._heap, self._version = state, state.undone, {}, [], {}
            self._known = {}
            for name, sequence in state.sequences.items():
                self._seen[name] = len(sequence.touched)
                self._queue(sequence, sequence.instructions())
            return
        for name, sequence in state.sequences.items():
            start = self._seen[name]
            if start == len(sequence.touched):
                continue
            changed = [i for i in dict.fromkeys(sequence.touched[start:]) if i.parent is not None]
            self._seen[name] = len(sequence.touched)
            around = dict.fromkeys(changed)
            for i in changed:
                around.update(dict.fromkeys(producers_of(i)))
            self._queue(sequence, list(around))

    def _queue(self, sequence: SequenceState, producers: list[HloInstruction]) -> None:
        for p in producers:
            version = self._version[p] = self._version.get(p, 0) + 1
            if sequence.legality.refusal_of(p) is not None:
                continue
            value = self._priority(sequence, p)
            if value is not None:
                # Several computations may have an instruction of that name.
                name = f"{sequence.computation.name}/{p.name}"
                entry = (-value * sequence.weight, -sequence.order.rank(p), version, name, sequence, p)
                heapq.heappush(self._heap, entry)


def all_users_action(sequence: SequenceState, producer: HloInstruction) -> FusionAction:
    """Return the action that fuses a producer into each of its users."""
    names = tuple(u.name for u in sequence.nodes.sorted(consumers_of(producer)))
    kind: FusionKind = "producer-into-all-users" if len(names) > 1 else "producer-consumer"
    return FusionAction(kind, sequence.computation.name, producer.name, names)


class PriorityFusion(ProducerQueue):
    """Fuses a producer into all of its users or not at all, first the one that saves most (XLA's priority fusion).

    The priority is the time saved by the cost model: the producer's own time, and what its users gain or lose by
    computing it. Only producers that save time are fused.
    """

    def priority(self, sequence: SequenceState, producer: HloInstruction) -> float | None:
        """Return the seconds saved per run of the sequence, or None when there are none or the fusion is illegal."""
        users = sequence.consumers(producer)
        if not users or not sequence.may_go_into_all_users(producer, users):
            return None
        saved = sequence.estimates.into_all(producer, users)
        return saved if saved > 0 else None


class ReshapeFusion(ProducerQueue):
    """Fuses producers that take no time by themselves, such as reshapes, into all of their users.

    Policies that ask what one fusion saves leave them alone, so that the kernels before and after them stay apart.
    `reshapes,default` runs it before the default policy.
    """

    def priority(self, sequence: SequenceState, producer: HloInstruction) -> float | None:
        """Return the seconds saved, at least 0; None where the producer takes time, or the fusion would lose some."""
        users = sequence.consumers(producer)
        if not users or sequence.time_of(producer) or not sequence.may_go_into_all_users(producer, users):
            return None
        saved = sequence.estimates.into_all(producer, users)
        return max(0.0, saved) if saved >= -LEAST_LOSS else None


class GreedyFusion(ProducerQueue):
    """Fusion of producers that save memory traffic, the most bytes first, until none does.

    A producer is fused into all its users where that is legal, and where its copies in the users read fewer bytes than
    writing and reading its result would take.
    """

    def priority(self, sequence: SequenceState, producer: HloInstruction) -> float | None:
        """Return the bytes that are no longer written and read, or None when there are none."""
        users = sequence.consumers(producer)
        if not users or not sequence.may_go_into_all_users(producer, users):
            return None
        own = sequence.legality.facts(producer).summary
        size = sum(s.byte_size for s in producer.shape.leaves())
        saved = size + own.bytes_read + size * len(users) - own.bytes_read * len(users)
        if saved <= 0:
            return None
        facts = sequence.legality.facts
        if any(facts(i).template for i in (producer, *users)) and sequence.estimates.into_all(producer, users) <= 0:
            return None  # a generated product may take longer than that of a library
        return float(saved)
