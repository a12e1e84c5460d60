"""Beam search over fusion decisions by the cost model."""

from __future__ import annotations

import heapq

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.savings import LEAST_SAVING
from compiler.fusion.state import FusionState


class BeamSearch:
    """Beam search, which keeps the best few sequences of actions at each step, and takes the best one in the end.

    Args:
        width: number of sequences kept.
        branch: actions tried for each of them, those with the greatest estimated savings.
        patience: steps without a better module before the search ends.
        max_steps: greatest number of fusions; None: no limit.
    """

    def __init__(self, width: int = 3, branch: int = 3, patience: int = 2, max_steps: int | None = None) -> None:
        self.width, self.branch, self.patience, self.max_steps = width, branch, patience, max_steps
        self._state: FusionState | None = None
        self._found: tuple[FusionAction, ...] = ()
        self._start = 0

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next action of the best sequence, which is searched for once per state."""
        if state is not self._state:
            self._state, self._start = state, len(state.history)
            self._found = self._search(state)
        n = len(state.history) - self._start
        return self._found[n] if n < len(self._found) else None

    def _search(self, start: FusionState) -> tuple[FusionAction, ...]:
        best, best_seconds, waited = start, start.seconds(), 0
        beam, seen = [start.fork()], set[str]()
        while beam and waited <= self.patience:
            if self.max_steps is not None and len(beam[0].history) - self._start >= self.max_steps:
                break
            beam = self._step(beam, seen)
            if not beam:
                break
            seconds = beam[0].seconds()
            waited = 0 if seconds < best_seconds - LEAST_SAVING else waited + 1
            if seconds < best_seconds:
                best, best_seconds = beam[0], seconds
        return tuple(best.history[self._start :])

    def _step(self, beam: list[FusionState], seen: set[str]) -> list[FusionState]:
        children: list[FusionState] = []
        for state in beam:
            scored = [(state.estimate(a), -n, a) for n, a in enumerate(state.actions())]
            for _, _, action in heapq.nlargest(self.branch, scored, key=lambda s: s[:2]):
                child = state.fork()
                child.apply(action)
                key = child.module.fingerprint()
                if key not in seen:
                    seen.add(key)
                    children.append(child)
        return heapq.nsmallest(self.width, children, key=FusionState.seconds)
