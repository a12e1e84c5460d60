"""Policies that need no cost model of their own: none, random, replay."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.errors import PlanError
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState


@dataclass(frozen=True)
class NoFusion:
    """Fuse nothing: every instruction its own kernel."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Always done."""
        del state
        return None


@dataclass
class RandomFusion:
    """Legal actions in random order; before each choice it stops with a given probability.

    Actions are listed when the last list is used up, and asked again for legality when their turn comes: listing a
    large module for each choice would cost the square of its size.

    Attributes:
        seed: equal seeds choose equally on equal modules.
        stop_probability: 0 goes on until nothing is legal, or `max_actions` have been taken.
        max_actions: how many at most; None: no limit.
    """

    seed: int = 0
    stop_probability: float = 0.0
    max_actions: int | None = None
    _random: random.Random = field(init=False, repr=False)
    _state: FusionState | None = field(init=False, default=None, repr=False)
    _pending: list[FusionAction] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, state: FusionState) -> FusionAction | None:
        """The next random action."""
        if state is not self._state:
            self._state, self._random, self._pending = state, random.Random(self.seed), []
        if self.max_actions is not None and len(state.history) >= self.max_actions:
            return None
        if self._random.random() < self.stop_probability:
            return None
        return self._next_pending(state) or self._next_pending(state, listed_anew=True)

    def _next_pending(self, state: FusionState, listed_anew: bool = False) -> FusionAction | None:
        if listed_anew:
            self._pending = state.actions()
            self._random.shuffle(self._pending)
        while self._pending:
            action = self._pending.pop()
            if state.why_not(action) is None:
                return action
        return None


class ReplayFusion:
    """The actions of a list, one after the other; PlanError where one is not legal any more."""

    def __init__(self, actions: Iterable[FusionAction]) -> None:
        self.actions = tuple(actions)

    def choose(self, state: FusionState) -> FusionAction | None:
        """The action whose turn it is, counted by what the state has seen."""
        n = len(state.history)
        if n >= len(self.actions):
            return None
        reason = state.why_not(self.actions[n])
        if reason is not None:
            raise PlanError(f"fusion action {n} ({self.actions[n]}) cannot be replayed: {reason}")
        return self.actions[n]
