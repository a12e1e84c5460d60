"""What a policy sees of a module while it is being fused: facts of its nodes, and the legal fusions as candidates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compiler.analysis.kernel_summary import KernelSummary
from compiler.fusion.actions import FusionAction
from compiler.fusion.kinds import Entry
from compiler.fusion.rewriting import consumers_of, producers_of, source_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction
from compiler.learned.features.candidates import (
    CANDIDATE_FEATURES,
    KIND_COLUMNS,
    MAX_CANDIDATES,
    STOP,
    Candidate,
    CandidateColumns,
)
from compiler.learned.features.compact import CompactGraph
from compiler.learned.features.decisions import MAX_EDGES, MAX_NODES, global_row, halved
from compiler.learned.features.programs import (
    ENDPOINT_NUMBERS,
    NODE_FEATURES,
    ROOT_COLUMN,
    SHARE_COLUMN,
    USERS_COLUMN,
    USERS_NUMBER,
    EndpointNumbers,
    log_size,
    node_row,
    users_feature,
)
from compiler.learned.pointer_network import DecisionGraph

__all__ = ["FusionFeatures", "WeighedEntry"]

MAX_NODES_KNOWN = 1_000
"""Number of nodes whose numbers are kept, if the program has few: removed ones stay alive with their bodies."""
MAX_ACTIONS = 20_000
"""Number of actions whose numbers are kept, if the program has few nodes."""
MAX_ROWS = 5_000
"""Number of revisions of nodes whose numbers are kept."""


class WeighedEntry(NamedTuple):
    """A legal action: where it is, what it is, and the seconds of the program that it saves by the cost model."""

    sequence: SequenceState
    entry: Entry
    saving: float


class Offer(NamedTuple):
    """Legal actions in order.

    Attributes:
        entries: the actions.
        savings: [c] the seconds of the program that each saves by the cost model.
        facts: [c, 6] the numbers of its nodes, and what else a policy sees of it; valid until the next offer.
    """

    entries: list[Entry]
    savings: npt.NDArray[np.float64]
    facts: npt.NDArray[np.float64]


_tokens = itertools.count(1)


class _Slots:
    """Numbers of actions in arrays, by a number that each action gets when it is first met."""

    def __init__(self) -> None:
        self.token = next(_tokens)
        self.count = 0
        self.facts = np.zeros((1024, _FEATURES))
        self.savings = np.zeros(1024)

    def add(self, facts: Sequence[float], saving: float) -> int:
        n = self.count
        if n == len(self.facts):
            self.facts = np.concatenate([self.facts, np.zeros_like(self.facts)])
            self.savings = np.concatenate([self.savings, np.zeros_like(self.savings)])
        self.facts[n], self.savings[n] = facts, saving
        self.count = n + 1
        return n


class _NodeTable:
    """Numbers of nodes in arrays, by a number that each node gets when it is first met."""

    def __init__(self) -> None:
        self.number: dict[HloInstruction, int] = {}
        self.nodes: list[HloInstruction] = []
        self.sequences: list[SequenceState] = []
        self.is_known = bytearray()
        self.producers: list[tuple[int, ...]] = []
        self.near: list[dict[int, None]] = []  # producers, then consumers
        self.rows = np.zeros((256, NODE_FEATURES), np.float16)
        self.share = np.zeros(256, np.float32)
        self.own = np.zeros((256, ENDPOINT_NUMBERS))
        self.users = np.zeros(256, np.int64)
        self.is_root = np.zeros(256, np.bool_)
        self.place = np.full(256, -1, np.int64)  # where it is in a graph, while the graph is made
        self.slots = _Slots()

    def add(self, node: HloInstruction, sequence: SequenceState) -> int:
        found = self.number[node] = len(self.nodes)
        self.nodes.append(node)
        self.sequences.append(sequence)
        self.is_known.append(0)
        self.producers.append(())
        self.near.append({})
        if found == len(self.rows):
            for name in ("rows", "share", "own", "users", "is_root", "place"):
                array = getattr(self, name)
                grown = np.concatenate([array, np.full_like(array, -1) if name == "place" else np.zeros_like(array)])
                setattr(self, name, grown)
        return found


class _OwnNumbers(NamedTuple):
    """The numbers of a node that follow from its revision, as if the whole program took a second."""

    row: npt.NDArray[np.float16]
    share: np.float32
    own: tuple[float, ...]


class FusionFeatures:
    """Numbers of a module while it is being fused (see `programs.NodeFacts`), and its candidates.

    Args:
        state: the fusions of the module.
        splits: whether fissions and moves are among the candidates.
    """

    def __init__(self, state: FusionState, splits: bool = False) -> None:
        self.state, self.splits = state, splits
        self._table = _NodeTable()
        self._changes = [s.listen() for s in state.sequences.values()]
        self._own: dict[int, _OwnNumbers] = {}
        count = sum(len(s.nodes.values) for s in state.sequences.values())
        self._most_nodes, self._most_actions = max(MAX_NODES_KNOWN, 4 * count), max(MAX_ACTIONS, 40 * count)

    # ---- facts of nodes

    def seconds(self, node: HloInstruction) -> float:
        """Return the estimated time of one execution."""
        return self._sequence(node).time_of(node)

    def weight(self, node: HloInstruction) -> float:
        """Return how often the instruction runs per run of the program."""
        return self._sequence(node).weight

    def summary(self, node: HloInstruction) -> KernelSummary | None:
        """Return what the instruction's kernel reads and computes, or None when it cannot be fused."""
        facts = self._sequence(node).legality.facts(node)
        return facts.summary if facts.refusal is None else None

    def total_seconds(self) -> float:
        """Return the estimated time of the program with the fusions made so far."""
        return self.state.seconds()

    def counts(self) -> tuple[int, int]:
        """Return the number of instructions in all sequences, and the number of fusions."""
        sequences = self.state.sequences.values()
        return sum(len(s.computation) for s in sequences), sum(s.fusion_count() for s in sequences)

    def row(self, node: HloInstruction, total: float) -> list[float]:
        """Return `node_row`."""
        return node_row(node, self, total)

    def _sequence(self, node: HloInstruction) -> SequenceState:
        assert node.parent is not None  # noqa: S101 - callers ask about instructions of the module only
        return self.state.sequences[node.parent.name]

    # ---- candidates

    def choices(self) -> tuple[list[FusionAction], list[Candidate]]:
        """Return the legal actions in order, as many as fit besides stopping, and their candidates.

        The list of candidates has one more entry at its end: to stop.
        """
        entries = self.entries()
        candidates = [self._candidate(e.entry, e.saving) for e in entries]
        return [e.entry.action for e in entries], [*candidates, STOP]

    def entries(self) -> list[WeighedEntry]:
        """Return the legal actions in order, as many as fit besides stopping: those that save most."""
        offer = self.offer()
        sequences = self.state.sequences
        return [
            WeighedEntry(sequences[e.action.computation], e, v)
            for e, v in zip(offer.entries, offer.savings.tolist(), strict=True)
        ]

    def offer(self) -> Offer:
        """Return the same as `entries`, with the numbers of the actions in arrays."""
        if len(self._table.nodes) >= self._most_nodes or self._table.slots.count >= self._most_actions:
            self._table = _NodeTable()
        entries = [e for s in self.state.sequences.values() for t in s.tables(self.splits) for e in t.entries()]
        slots = self._slots(entries)
        savings = self._table.slots.savings[slots]
        if len(entries) >= MAX_CANDIDATES:
            kept = np.argsort(-savings, kind="stable")[: MAX_CANDIDATES - 1]
            kept.sort()
            entries, slots, savings = [entries[n] for n in kept.tolist()], slots[kept], savings[kept]
        return Offer(entries, savings, self._table.slots.facts[slots])

    def _slots(self, entries: Sequence[Entry]) -> npt.NDArray[np.int64]:
        """Return the numbers of actions in the table."""
        token = self._table.slots.token
        known = [
            f[1] if (f := e.features) and f[0] == token and e.saving is not None and not e.is_wide else self._add(e)
            for e in entries
        ]
        return np.array(known, dtype=np.int64)

    def _add(self, entry: Entry) -> int:
        """Add the numbers of an action to the table; they stay as they are as long as it is legal."""
        producer, consumer = entry.producer, entry.consumer
        sequence, slots = self._sequence(producer), self._table.slots
        if entry.saving is None or entry.is_wide:
            entry.saving = entry.kind.saving(sequence, entry)
        known = entry.features
        if known is not None and known[0] == slots.token:
            slots.savings[known[1]] = entry.saving * sequence.weight
            found: int = known[1]
            return found
        if entry.copies is None:
            entry.copies = self._copies(producer, consumer)
        same = producer.shape.dimensions == consumer.shape.dimensions
        facts = (
            self._number(producer), self._number(consumer), KIND_COLUMNS[entry.kind.name], float(same),
            len(entry.consumers), log_size(entry.copies, 4),
        )  # fmt: skip
        n = slots.add(facts, entry.saving * sequence.weight)
        entry.features = slots.token, n
        return n

    def _number(self, node: HloInstruction) -> int:
        found = self._table.number.get(node)
        return self._table.add(node, self._sequence(node)) if found is None else found

    def _candidate(self, entry: Entry, saving: float) -> Candidate:
        action, producer, consumer = entry.action, entry.producer, entry.consumer
        others = len(consumers_of(producer)) - len(action.consumers)
        return Candidate(
            action.kind,
            producer,
            consumer,
            saving,
            consumers=len(action.consumers),
            stays=others > 0 or producer.is_root,
            copies=self._copies(producer, consumer),
        )

    def _copies(self, producer: HloInstruction, consumer: HloInstruction) -> int:
        """Return how often the consumer would compute each element of the producer."""
        facts = self._sequence(consumer).legality.facts(consumer)
        inputs = dict(zip(consumer.operands, facts.summary.inputs, strict=False))
        return sum(i.copies for o, i in inputs.items() if source_of(o) is producer)

    # ---- the decision in numbers

    def graph(self, offered: Sequence[WeighedEntry] | Offer) -> DecisionGraph:
        """Return what `decision_graph` returns for the candidates of these actions, much faster."""
        if not isinstance(offered, Offer):
            entries = [e.entry for e in offered]
            savings = np.array([e.saving for e in offered])
            offered = Offer(entries, savings, self._table.slots.facts[self._slots(entries)])
        return self.compact_graph(offered).expanded(CANDIDATE_FEATURES)

    def compact_graph(self, offer: Offer) -> CompactGraph:
        """Return `graph` in the types of observations.

        The numbers of nodes and actions that are as before are not computed again, and what depends on the time of the
        whole program is applied to all rows at once.
        """
        count = len(offer.entries)
        total = max(self.total_seconds(), 1e-12)
        table = self._table
        ends = offer.facts[:, :2].astype(np.int64)
        numbers = self._neighbourhood(ends)
        nodes = np.array(numbers, dtype=np.int64)
        place = table.place
        place[nodes] = np.arange(len(nodes))
        producers = [table.producers[n] for n in numbers]
        counts = [len(p) for p in producers]
        edges = np.empty((sum(counts), 2), np.int16)
        edges[:, 0] = place[list(itertools.chain.from_iterable(producers))]
        edges[:, 1] = np.repeat(np.arange(len(nodes)), counts)
        endpoints = np.full((count + 1, 2), -1, np.int64)
        endpoints[:-1] = place[ends]
        place[nodes] = -1
        rows = table.rows[nodes] if numbers else np.zeros((1, NODE_FEATURES), np.float16)
        scale = 1.0 / math.sqrt(total)
        if numbers:
            rows[:, SHARE_COLUMN] = halved(table.share[nodes] * scale)
        savings = np.append(offer.savings, 0.0)
        columns = CandidateColumns(count + 1)
        if count:
            own = table.own[nodes]
            own[:, 0] *= scale
            columns.set_fusions(
                offer.facts[:, 2:], offer.savings, total, own, endpoints[:-1], table.users[nodes], table.is_root[nodes]
            )
        columns.set_stop()
        candidates = halved(columns.rows)
        used = np.flatnonzero(candidates.any(axis=0))
        return CompactGraph(
            nodes=rows,
            edges=edges[edges[:, 0] >= 0][:MAX_EDGES],
            columns=used.astype(np.int16),
            candidates=candidates[:, used],
            endpoints=endpoints.astype(np.int16),
            globals=halved(np.array(global_row(savings, self, total, "fusion", ()))),
        )

    def _neighbourhood(self, ends: npt.NDArray[np.int64]) -> list[int]:
        """Return the nodes of the actions, then their operands and users, up to MAX_NODES, with numbers of now."""
        table = self._table
        for changes in self._changes:
            for node in changes.nodes:
                n = table.number.get(node)
                if n is not None:
                    table.is_known[n] = 0
            changes.nodes.clear()
        found: dict[int, None] = dict.fromkeys(ends.reshape(-1).tolist())
        known, near = table.is_known, table.near
        for n in list(found):
            if not known[n]:
                self._look(n)
            if len(found) < MAX_NODES:
                found.update(near[n])
        numbers = list(found)[:MAX_NODES]
        for n in numbers:
            if not known[n]:
                self._look(n)
        return numbers

    def _look(self, n: int) -> None:
        """Compute the numbers of a node, as if the whole program took a second."""
        table = self._table
        node, sequence = table.nodes[n], table.sequences[n]
        consumers, producers = consumers_of(node), tuple(map(self._number, producers_of(node)))
        table.producers[n] = producers
        table.near[n] = dict.fromkeys((*producers, *map(self._number, consumers)))
        numbers = self._own_numbers(node, sequence)
        users = users_feature(len(consumers))
        table.rows[n], table.share[n], table.own[n] = numbers
        table.rows[n, USERS_COLUMN], table.own[n, USERS_NUMBER] = np.float32(users), users
        table.rows[n, ROOT_COLUMN] = node.is_root
        table.users[n], table.is_root[n] = len(consumers), node.is_root
        table.is_known[n] = 1

    def _own_numbers(self, node: HloInstruction, sequence: SequenceState) -> _OwnNumbers:
        revision = sequence.nodes.revision(node)
        found = self._own.get(revision)
        if found is None:
            if len(self._own) >= MAX_ROWS:
                self._own.clear()
            row = np.array(node_row(node, self, 1.0), dtype=np.float32)
            own = EndpointNumbers(self, 1.0).of(node)
            found = self._own[revision] = _OwnNumbers(halved(row), row[SHARE_COLUMN], own)
        return found


_FEATURES = 6
