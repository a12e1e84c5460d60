"""What a policy sees of a module while it is being fused: facts of its nodes, and the legal fusions as candidates."""

from __future__ import annotations

import numpy as np

from compiler.analysis.kernel_summary import KernelSummary
from compiler.fusion.actions import FusionAction
from compiler.fusion.rewriting import consumers_of, source_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction
from compiler.learned.features.candidates import MAX_CANDIDATES, STOP, Candidate

__all__ = ["FusionFeatures"]


class FusionFeatures:
    """Numbers of a module while it is being fused (see `programs.NodeFacts`), and its candidates."""

    def __init__(self, state: FusionState) -> None:
        self.state = state

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
        return sum(len(s.computation) for s in sequences), len(self.state.fusions())

    def _sequence(self, node: HloInstruction) -> SequenceState:
        assert node.parent is not None  # noqa: S101 - callers ask about instructions of the module only
        return self.state.sequences[node.parent.name]

    # ---- candidates

    def choices(self) -> tuple[list[FusionAction], list[Candidate]]:
        """Return the legal actions in order, as many as fit besides stopping, and their candidates.

        The list of candidates has one more entry at its end: to stop.
        """
        actions = self.state.actions()
        savings = [self.state.estimate(a) for a in actions]
        if len(actions) >= MAX_CANDIDATES:
            best = np.argsort([-s for s in savings], kind="stable")[: MAX_CANDIDATES - 1]
            kept = sorted(int(i) for i in best)
            actions, savings = [actions[i] for i in kept], [savings[i] for i in kept]
        candidates = [self._candidate(a, s) for a, s in zip(actions, savings, strict=True)]
        return actions, [*candidates, STOP]

    def _candidate(self, action: FusionAction, saving: float) -> Candidate:
        producer = self.state.find(action.computation, action.producer)
        consumer = self.state.find(action.computation, action.consumer)
        others = len(consumers_of(producer)) - len(action.consumers)
        facts = self._sequence(consumer).legality.facts(consumer)
        inputs = dict(zip(consumer.operands, facts.summary.inputs, strict=False))
        copies = sum(i.copies for o, i in inputs.items() if source_of(o) is producer)
        return Candidate(
            action.kind,
            producer,
            consumer,
            saving,
            consumers=len(action.consumers),
            stays=others > 0 or producer.is_root,
            copies=copies,
        )
