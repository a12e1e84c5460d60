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
from compiler.learned.features.candidates import KIND_COLUMNS, MAX_CANDIDATES, STOP, Candidate, CandidateColumns
from compiler.learned.features.decisions import MAX_EDGES, MAX_NODES, global_row, rounded
from compiler.learned.features.programs import (
    ENDPOINT_NUMBERS,
    NODE_FEATURES,
    SHARE_COLUMN,
    EndpointNumbers,
    log_size,
    node_row,
)
from compiler.learned.pointer_network import DecisionGraph

__all__ = ["FusionFeatures", "WeighedEntry"]

MAX_KNOWN = 20_000
"""Number of nodes whose numbers are kept."""


class WeighedEntry(NamedTuple):
    """A legal action: where it is, what it is, and the seconds of the program that it saves by the cost model."""

    sequence: SequenceState
    entry: Entry
    saving: float


class Offer(NamedTuple):
    """Legal actions in order, and the seconds of the program that each saves by the cost model."""

    entries: list[Entry]
    savings: npt.NDArray[np.float64]


_tokens = itertools.count(1)


class _NodeTable:
    """Numbers of nodes in arrays, by a number that each node gets when it is first met."""

    def __init__(self) -> None:
        self.token = next(_tokens)
        self.number: dict[HloInstruction, int] = {}
        self.nodes: list[HloInstruction] = []
        self.stamps: list[int] = []  # -1 for nodes without numbers so far
        self.producers: list[tuple[int, ...]] = []
        self.near: list[dict[int, None]] = []  # producers, then consumers
        self.rows = np.zeros((256, NODE_FEATURES), np.float32)
        self.own = np.zeros((256, ENDPOINT_NUMBERS))
        self.users = np.zeros(256, np.int64)
        self.is_root = np.zeros(256, np.bool_)
        self.place = np.full(256, -1, np.int64)  # where it is in a graph, while the graph is made

    def of(self, node: HloInstruction) -> int:
        found = self.number.get(node)
        if found is None:
            found = self.number[node] = len(self.nodes)
            self.nodes.append(node)
            self.stamps.append(-1)
            self.producers.append(())
            self.near.append({})
            if found == len(self.rows):
                for name in ("rows", "own", "users", "is_root", "place"):
                    array = getattr(self, name)
                    grown = np.concatenate(
                        [array, np.full_like(array, -1) if name == "place" else np.zeros_like(array)]
                    )
                    setattr(self, name, grown)
        return found


class FusionFeatures:
    """Numbers of a module while it is being fused (see `programs.NodeFacts`), and its candidates.

    Args:
        state: the fusions of the module.
        splits: whether fissions and moves are among the candidates.
    """

    def __init__(self, state: FusionState, splits: bool = False) -> None:
        self.state, self.splits = state, splits
        self._table = _NodeTable()

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
        """Return the same as `entries` in two parts."""
        tables = [(s, t) for s in self.state.sequences.values() for t in s.tables(self.splits)]
        entries = [e for _, t in tables for e in t.entries()]
        savings = np.concatenate([np.array(t.savings()) * s.weight for s, t in tables])
        if len(entries) >= MAX_CANDIDATES:
            kept = np.argsort(-savings, kind="stable")[: MAX_CANDIDATES - 1]
            kept.sort()
            entries, savings = [entries[n] for n in kept.tolist()], savings[kept]
        return Offer(entries, savings)

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
        """Return what `decision_graph` returns for the candidates of these actions, much faster.

        The numbers of nodes and actions that are as before are not computed again, and what depends on the time of the
        whole program is applied to all rows at once.
        """
        if not isinstance(offered, Offer):
            offered = Offer([e.entry for e in offered], np.array([e.saving for e in offered]))
        entries, count = offered.entries, len(offered.entries)
        if len(self._table.nodes) >= MAX_KNOWN:
            self._table = _NodeTable()
        total = max(self.total_seconds(), 1e-12)
        table = self._table
        features = np.array([self._features(e) for e in entries]).reshape(count, _FEATURES)
        ends = features[:, 5:].astype(np.int64)
        numbers = self._neighbourhood(ends)
        nodes = np.array(numbers, dtype=np.int64)
        place = table.place
        place[nodes] = np.arange(len(nodes))
        counts = [len(table.producers[n]) for n in numbers]
        edges = np.empty((sum(counts), 2), np.int64)
        edges[:, 0] = place[[p for n in numbers for p in table.producers[n]]]
        edges[:, 1] = np.repeat(np.arange(len(nodes)), counts)
        endpoints = np.full((count + 1, 2), -1, np.int64)
        endpoints[:-1] = place[ends]
        place[nodes] = -1
        rows = table.rows[nodes] if numbers else np.zeros((1, NODE_FEATURES))
        scale = 1.0 / math.sqrt(total)
        rows[:, SHARE_COLUMN] *= scale
        savings = np.array([*offered.savings, 0.0])
        columns = CandidateColumns(count + 1)
        if entries:
            own = table.own[nodes]
            own[:, 0] *= scale
            columns.set_fusions(
                features[:, 1:5], offered.savings, total, own, endpoints[:-1], table.users[nodes], table.is_root[nodes]
            )
        columns.set_stop()
        return DecisionGraph(
            nodes=rounded(rows),
            edges=edges[edges[:, 0] >= 0][:MAX_EDGES],
            candidates=rounded(columns.rows),
            endpoints=endpoints,
            globals=rounded(np.array(global_row(savings, self, total, "fusion", ()))),
        )

    def _features(self, entry: Entry) -> tuple[float, ...]:
        """Return the numbers of an action that stay, and those of its nodes in the table."""
        found: tuple[float, ...] | None = entry.features
        if found is None or found[0] != self._table.token:
            table, producer, consumer = self._table, entry.producer, entry.consumer
            same = producer.shape.dimensions == consumer.shape.dimensions
            found = entry.features = (
                table.token, KIND_COLUMNS[entry.action.kind], float(same), len(entry.consumers),
                log_size(self._copies(producer, consumer), 4), table.of(producer), table.of(consumer),
            )  # fmt: skip
        return found

    def _neighbourhood(self, ends: npt.NDArray[np.int64]) -> list[int]:
        """Return the nodes of the actions, then their operands and users, up to MAX_NODES, with numbers of now."""
        found: dict[int, None] = dict.fromkeys(ends.reshape(-1).tolist())
        near = self._table.near
        for n in list(found):
            self._look(n)
            if len(found) < MAX_NODES:
                found.update(near[n])
        numbers = list(found)[:MAX_NODES]
        for n in numbers:
            self._look(n)
        return numbers

    def _look(self, n: int) -> None:
        """Compute the numbers of a node, as if the whole program took a second, unless they are known."""
        table = self._table
        node = table.nodes[n]
        stamp = self._sequence(node).stamps.get(node, 0)
        if table.stamps[n] == stamp:
            return
        consumers, producers = consumers_of(node), tuple(map(table.of, producers_of(node)))
        table.producers[n] = producers
        table.near[n] = dict.fromkeys((*producers, *map(table.of, consumers)))
        table.rows[n] = node_row(node, self, 1.0)
        table.own[n] = EndpointNumbers(self, 1.0).of(node)
        table.users[n], table.is_root[n] = len(consumers), node.is_root
        table.stamps[n] = stamp


_FEATURES = 7
