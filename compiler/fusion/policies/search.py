"""Beam search over fusion decisions by the cost model."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.savings import LEAST_SAVING
from compiler.fusion.policies.scripts import ScriptSearch
from compiler.fusion.state import FusionState


@dataclass(eq=False)
class BeamSearch(ScriptSearch):
    """Beam search, which keeps the best few sequences of actions at each step, and takes the best one in the end.

    Attributes:
        width: number of sequences kept.
        branch: actions tried for each of them, those with the greatest estimated savings.
        patience: steps without a better module before the search ends.
        max_steps: greatest number of fusions; None: no limit.
    """

    width: int = 3
    branch: int = 3
    patience: int = 2
    max_steps: int | None = None

    def search(self, state: FusionState) -> tuple[FusionAction, ...]:
        """See `ScriptSearch.search`."""
        start = len(state.history)
        best, best_seconds, waited = _Sequence((), state.seconds()), state.seconds(), 0
        beam, seen, made = [best], set[str](), 0
        while beam and waited <= self.patience and (self.max_steps is None or made < self.max_steps):
            beam, made = self._step(state, start, beam, seen), made + 1
            if not beam:
                break
            seconds = beam[0].seconds
            waited = 0 if seconds < best_seconds - LEAST_SAVING else waited + 1
            if seconds < best_seconds:
                best, best_seconds = beam[0], seconds
        _move(state, start, ())
        return best.actions

    def _step(self, state: FusionState, start: int, beam: list[_Sequence], seen: set[str]) -> list[_Sequence]:
        children: list[_Sequence] = []
        for sequence in beam:
            _move(state, start, sequence.actions)
            scored = [(state.estimate(a), -n, a) for n, a in enumerate(state.actions())]
            for _, _, action in heapq.nlargest(self.branch, scored, key=lambda s: s[:2]):
                state.apply(action)
                if state.fingerprint not in seen:
                    seen.add(state.fingerprint)
                    children.append(_Sequence((*sequence.actions, action), state.seconds()))
                state.undo()
        return heapq.nsmallest(self.width, children, key=lambda c: c.seconds)


def _move(state: FusionState, start: int, actions: tuple[FusionAction, ...]) -> None:
    """Undo and apply actions, so that those after the first `start` are the given ones."""
    done = state.history[start:]
    common = 0
    while common < min(len(done), len(actions)) and done[common] == actions[common]:
        common += 1
    for _ in done[common:]:
        state.undo()
    for action in actions[common:]:
        state.apply(action)


@dataclass(frozen=True)
class _Sequence:
    """Actions since the start of the search, and the estimated time of the module after them."""

    actions: tuple[FusionAction, ...]
    seconds: float
