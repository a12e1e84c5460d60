"""A policy that takes any action that saves time by the cost model, and policies in sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.state import FusionState

LEAST_SAVING = 1e-10
"""Smallest saving in seconds that counts; less is rounding."""


class SavingsFusion:
    """The legal actions with the greatest estimated savings first, until none saves any time.

    The actions are listed and sorted in rounds; within a round each is checked again before it is taken, so that there
    are few listings even for large programs.

    Args:
        kinds: the kinds of actions to consider; None: those that make fusions, and none that take them apart.
    """

    def __init__(self, kinds: Iterable[FusionKind] | None = None) -> None:
        self.kinds = None if kinds is None else tuple(kinds)
        self._state: FusionState | None = None
        self._round: list[FusionAction] = []
        self._listed_at = -1

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next action that saves time."""
        if state is not self._state:
            self._state, self._round, self._listed_at = state, [], -1
        while True:
            while self._round:
                action = self._round.pop()
                saves = state.is_possible(action) and state.estimate(action) > LEAST_SAVING
                if saves and state.is_legal(action):  # last, because it may have to make kernels
                    return action
            if self._listed_at == len(state.history):
                return None
            self._listed_at = len(state.history)
            self._round = self._list(state)

    def _list(self, state: FusionState) -> list[FusionAction]:
        """Return the actions that save time, the best last; of equal ones, the first listed comes last.

        Whether they are legal is asked when they are taken: until then, many have lost their nodes to others, and no
        kernel has to be made to judge them.
        """
        found = state.weighed_candidates(self.kinds)
        scored = sorted((saved, -n) for n, (_, saved) in enumerate(found) if saved > LEAST_SAVING)
        return [found[-n][0] for _, n in scored]


class InOrder:
    """Runs policies one after the other, each until it is done."""

    def __init__(self, policies: Sequence[FusionPolicy]) -> None:
        self.policies = tuple(policies)
        self._state: FusionState | None = None
        self._turn = 0

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the choice of the current policy, or of the next one when that is done."""
        if state is not self._state:
            self._state, self._turn = state, 0
        while self._turn < len(self.policies):
            action = self.policies[self._turn].choose(state)
            if action is not None:
                return action
            self._turn += 1
        return None
