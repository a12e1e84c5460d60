"""What a policy sees of a module while it is being fused: facts of its nodes, and the legal fusions as candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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
from compiler.learned.features.programs import NODE_FEATURES, SHARE_COLUMN, EndpointNumbers, log_size, node_row
from compiler.learned.pointer_network import DecisionGraph

__all__ = ["FusionFeatures", "WeighedEntry"]

MAX_KNOWN = 20_000
"""Number of nodes whose numbers are kept."""


class WeighedEntry(NamedTuple):
    """A legal action: where it is, what it is, and the seconds of the program that it saves by the cost model."""

    sequence: SequenceState
    entry: Entry
    saving: float


class _NodeNumbers(NamedTuple):
    stamp: int
    producers: tuple[HloInstruction, ...]
    users: int
    is_root: bool
    row: npt.NDArray[np.float32]
    own: tuple[float, ...]


class FusionFeatures:
    """Numbers of a module while it is being fused (see `programs.NodeFacts`), and its candidates.

    Args:
        state: the fusions of the module.
        splits: whether fissions and moves are among the candidates.
    """

    def __init__(self, state: FusionState, splits: bool = False) -> None:
        self.state, self.splits = state, splits
        self._known: dict[HloInstruction, _NodeNumbers] = {}

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
        tables = [(s, t) for s in self.state.sequences.values() for t in s.tables(self.splits)]
        parts = [(s, t.entries(), np.array(t.savings()) * s.weight) for s, t in tables]
        savings = np.concatenate([p[2] for p in parts])
        kept: npt.NDArray[Any] = np.arange(len(savings))
        if len(savings) >= MAX_CANDIDATES:
            kept = np.argsort(-savings, kind="stable")[: MAX_CANDIDATES - 1]
            kept.sort()
        found, start = list[WeighedEntry](), 0
        for s, entries, seconds in parts:
            here = kept[(kept >= start) & (kept < start + len(entries))] - start
            found += [
                WeighedEntry(s, entries[n], v) for n, v in zip(here.tolist(), seconds[here].tolist(), strict=True)
            ]
            start += len(entries)
        return found

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

    def graph(self, entries: Sequence[WeighedEntry]) -> DecisionGraph:
        """Return what `decision_graph` returns for the candidates of these actions, much faster.

        The numbers of nodes and actions that are as before are not computed again, and what depends on the time of the
        whole program is applied to all rows at once.
        """
        total = max(self.total_seconds(), 1e-12)
        nodes = self._neighbourhood(entries)
        index = {i: n for n, i in enumerate(nodes)}
        numbers = [self._numbers(i) for i in nodes]
        edges = [(index[p], n) for n, f in enumerate(numbers) for p in f.producers if p in index][:MAX_EDGES]
        rows = (
            np.concatenate([f.row for f in numbers]).reshape(-1, NODE_FEATURES)
            if nodes
            else np.zeros((1, NODE_FEATURES))
        )
        scale = 1.0 / math.sqrt(total)
        rows[:, SHARE_COLUMN] *= scale
        ends = [(index.get(e.entry.producer, -1), index.get(e.entry.consumer, -1)) for e in entries]
        endpoints = np.array([*ends, (-1, -1)], dtype=np.int64)
        savings = np.array([*(e.saving for e in entries), 0.0])
        columns = CandidateColumns(len(entries) + 1)
        if entries:
            own = np.array([f.own for f in numbers])
            own[:, 0] *= scale
            columns.set_fusions(
                np.array([self._features(e.entry) for e in entries]), savings[:-1], total, own, endpoints[:-1],
                np.array([f.users for f in numbers]), np.array([f.is_root for f in numbers]),
            )  # fmt: skip
        columns.set_stop()
        return DecisionGraph(
            nodes=rounded(rows),
            edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
            candidates=rounded(columns.rows),
            endpoints=endpoints,
            globals=rounded(np.array(global_row(savings, self, total, "fusion", ()))),
        )

    def _features(self, entry: Entry) -> tuple[float, ...]:
        if entry.features is None:
            same = entry.producer.shape.dimensions == entry.consumer.shape.dimensions
            copies = self._copies(entry.producer, entry.consumer)
            kind = KIND_COLUMNS[entry.action.kind]
            entry.features = kind, float(same), len(entry.consumers), log_size(copies, 4)
        found: tuple[float, ...] = entry.features
        return found

    def _neighbourhood(self, entries: Sequence[WeighedEntry]) -> list[HloInstruction]:
        """Return the instructions of the actions, then their operands and users, up to MAX_NODES."""
        found: dict[HloInstruction, None] = {}
        for e in entries:
            found[e.entry.producer] = None
            found[e.entry.consumer] = None
        for node in list(found):
            if len(found) >= MAX_NODES:
                break
            numbers = self._numbers(node)
            found.update(dict.fromkeys(numbers.producers))
            found.update(dict.fromkeys(consumers_of(node)))
        return list(found)[:MAX_NODES]

    def _numbers(self, node: HloInstruction) -> _NodeNumbers:
        """Return the numbers of a node, as if the whole program took a second."""
        sequence = self._sequence(node)
        stamp = sequence.stamps.get(node, 0)
        found = self._known.get(node)
        if found is None or found.stamp != stamp:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            row = np.array(node_row(node, self, 1.0), dtype=np.float32)
            own = EndpointNumbers(self, 1.0).of(node)
            found = self._known[node] = _NodeNumbers(
                stamp, tuple(producers_of(node)), len(consumers_of(node)), node.is_root, row, own
            )
        return found
