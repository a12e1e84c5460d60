"""Policies driven by a heap of candidates with priorities that follow the state as fusions happen."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod

from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.rewriting import consumers_of, producers_of
from compiler.fusion.sequence import Sequence
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction


class ProducerQueue(ABC):
    """Takes producers in order of priority and fuses each as `action_for` says.

    A producer is looked at again when it, or one of its users, has changed; nothing is looked at twice without a
    reason, so a run takes time in proportion to the fusions made and the edges they touch.
    """

    def __init__(self) -> None:
        self._state: FusionState | None = None
        self._seen: dict[str, int] = {}
        self._heap: list[tuple[float, int, int, str, Sequence, HloInstruction]] = []
        self._version: dict[HloInstruction, int] = {}
        self._steps = -1

    @abstractmethod
    def priority(self, sequence: Sequence, producer: HloInstruction) -> float | None:
        """Seconds to gain by fusing this producer (greatest first), or None to leave it alone."""

    @abstractmethod
    def action_for(self, sequence: Sequence, producer: HloInstruction) -> FusionAction | None:
        """What to do with the producer whose turn it is; None: nothing."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """The action of the best producer."""
        self._follow(state)
        while self._heap:
            _, _, version, _, sequence, producer = heapq.heappop(self._heap)
            if producer.parent is None or self._version.get(producer) != version:
                continue
            action = self.action_for(sequence, producer)
            if action is not None:
                return action
        return None

    def _follow(self, state: FusionState) -> None:
        if state is not self._state:
            self._state, self._seen, self._heap, self._version = state, {}, [], {}
            for name, sequence in state.sequences.items():
                self._seen[name] = len(sequence.touched)
                self._queue(sequence, sequence.nodes())
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

    def _queue(self, sequence: Sequence, producers: list[HloInstruction]) -> None:
        for p in producers:
            version = self._version[p] = self._version.get(p, 0) + 1
            if sequence.legality.refusal_of(p) is not None:
                continue
            value = self.priority(sequence, p)
            if value is not None:
                # Computations may each have an instruction of that name.
                name = f"{sequence.computation.name}/{p.name}"
                entry = (-value * sequence.weight, -sequence.order.rank(p), version, name, sequence, p)
                heapq.heappush(self._heap, entry)


def all_users_action(sequence: Sequence, producer: HloInstruction) -> FusionAction:
    """The action that puts a producer into each of its users."""
    names = tuple(u.name for u in sequence.order.sorted(consumers_of(producer)))
    kind: FusionKind = "producer-into-all-users" if len(names) > 1 else "producer-consumer"
    return FusionAction(kind, sequence.computation.name, producer.name, names)


class PriorityFusion(ProducerQueue):
    """A producer goes into all of its users or stays; first the one that saves most (XLA's priority fusion).

    The priority is the time saved by the cost model: the producer's own, and what its users gain or lose by computing
    it. Only producers that save time are fused.
    """

    def priority(self, sequence: Sequence, producer: HloInstruction) -> float | None:
        """Seconds saved in one run of the sequence, if positive and legal."""
        users = consumers_of(producer)
        if not users or not sequence.table.may_go_into_all(producer, users):
            return None
        saved = sequence.saving_into_all(producer, users)
        return saved if saved > 0 else None

    def action_for(self, sequence: Sequence, producer: HloInstruction) -> FusionAction | None:
        """Into all users, if that still pays."""
        if self.priority(sequence, producer) is None:
            return None
        return all_users_action(sequence, producer)


class GreedyFusion(ProducerQueue):
    """Fuse whatever saves memory traffic, the most bytes first, until nothing does.

    A producer goes into all its users where that is legal and none of them computes more than the bytes are worth:
    each copy may read no more than the producer's result would have cost to write and read.
    """

    def priority(self, sequence: Sequence, producer: HloInstruction) -> float | None:
        """Bytes that no longer go through memory."""
        users = consumers_of(producer)
        if not users or not sequence.table.may_go_into_all(producer, users):
            return None
        own = sequence.legality.facts(producer).summary
        size = sum(s.byte_size for s in producer.shape.leaves())
        saved = size + own.bytes_read + size * len(users) - own.bytes_read * len(users)
        return float(saved) if saved > 0 else None

    def action_for(self, sequence: Sequence, producer: HloInstruction) -> FusionAction | None:
        """Into all users."""
        if self.priority(sequence, producer) is None:
            return None
        return all_users_action(sequence, producer)
