"""Search over fusion decisions: beam search by the cost model, and random search by any score."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.basic import RandomFusion
from compiler.fusion.policies.savings import LEAST_SAVING
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState

Score = Callable[[FusionState], float]
"""Seconds of a state; less is better."""


class BeamSearch:
    """Keeps the best few partial decisions at each step, and replays the best whole one.

    Args:
        width: partial decisions kept.
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
        """The next action of the best sequence found, which is searched for once."""
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


@dataclass(frozen=True)
class SearchResult:
    """The best decisions of a search, their score, and the scores of all tries in order."""

    actions: tuple[FusionAction, ...]
    score: float
    tries: tuple[float, ...]


def random_search(
    state: FusionState,
    score: Score = FusionState.seconds,
    tries: int = 32,
    seed: int = 0,
    stop_probability: float = 0.02,
) -> SearchResult:
    """Random decisions, again and again, the best kept; `state` stays as it is.

    The first try is to do nothing, so the result is never worse than the start.
    """
    best, best_score = tuple[FusionAction, ...](), score(state)
    scores = [best_score]
    for n in range(1, tries):
        fork = state.fork()
        actions = tuple(run_policy(fork, RandomFusion(seed * 1_000_003 + n, stop_probability)))
        scores.append(score(fork))
        if scores[-1] < best_score:
            best, best_score = actions, scores[-1]
    return SearchResult(best, best_score, tuple(scores))
