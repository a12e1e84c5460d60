"""Policies that take whatever the cost model says saves time, and policies one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.state import FusionState

LEAST_SAVING = 1e-10
"""Seconds; less is rounding."""


class SavingsFusion:
    """Takes the legal actions with the greatest estimated savings until none saves any time.

    The actions are listed and sorted in rounds; within a round each is judged again before it is taken, so the number
    of listings stays small while programs grow.

    Args:
        kinds: the kinds of fusion to consider; None: all.
    """

    def __init__(self, kinds: Iterable[FusionKind] | None = None) -> None:
        self.kinds = None if kinds is None else tuple(kinds)
        self._state: FusionState | None = None
        self._round: list[FusionAction] = []
        self._listed_at = -1

    def choose(self, state: FusionState) -> FusionAction | None:
        """The next action that saves time."""
        if state is not self._state:
            self._state, self._round, self._listed_at = state, [], -1
        while True:
            while self._round:
                action = self._round.pop()
                if state.why_not(action) is None and state.estimate(action) > LEAST_SAVING:
                    return action
            if self._listed_at == len(state.history):
                return None
            self._listed_at = len(state.history)
            self._round = self._list(state)

    def _list(self, state: FusionState) -> list[FusionAction]:
        """Actions that save time, the best last; of equals the first listed is the later."""
        actions = state.actions(self.kinds)
        scored = [(saved, -n) for n, a in enumerate(actions) if (saved := state.estimate(a)) > LEAST_SAVING]
        return [actions[-n] for _, n in sorted(scored)]


class InOrder:
    """Policies one after the other, each until it is done."""

    def __init__(self, policies: Sequence[FusionPolicy]) -> None:
        self.policies = tuple(policies)
        self._state: FusionState | None = None
        self._turn = 0

    def choose(self, state: FusionState) -> FusionAction | None:
        """What the policy whose turn it is chooses."""
        if state is not self._state:
            self._state, self._turn = state, 0
        while self._turn < len(self.policies):
            action = self.policies[self._turn].choose(state)
            if action is not None:
                return action
            self._turn += 1
        return None
