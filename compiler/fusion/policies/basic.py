"""Policies that need no cost model: none and random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from compiler.errors import ArgumentError
from compiler.fusion.actions import FUSING_KINDS, KINDS, FusionAction
from compiler.fusion.state import FusionState


@dataclass(frozen=True)
class NoFusion:
    """No fusion: every instruction is a kernel of its own."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return None."""
        del state
        return None


@dataclass
class RandomFusion:
    """Legal actions in random order, with a given probability of stopping before each choice.

    Actions are listed when the previous list is used up, and checked again when their turn comes: listing them for
    each choice would take time quadratic in the size of the module.

    Attributes:
        seed: equal seeds make equal choices on equal modules.
        stop_probability: 0 continues until nothing is legal, or `max_actions` have been taken.
        max_actions: greatest number of actions; None: no limit.
        splits: whether fissions and moves are among the actions; there must be a limit then, or a probability of
            stopping.
    """

    seed: int = 0
    stop_probability: float = 0.0
    max_actions: int | None = None
    splits: bool = False
    _random: random.Random = field(init=False, repr=False)
    _state: FusionState | None = field(init=False, default=None, repr=False)
    _pending: list[FusionAction] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        if self.splits and self.max_actions is None and self.stop_probability <= 0:
            raise ArgumentError("random fusion with splits does not end by itself: set max_actions or stop_probability")

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next random action."""
        if state is not self._state:
            self._state, self._random, self._pending = state, random.Random(self.seed), []
        if self.max_actions is not None and len(state.history) >= self.max_actions:
            return None
        if self._random.random() < self.stop_probability:
            return None
        return self._next_pending(state) or self._next_pending(state, list_again=True)

    def _next_pending(self, state: FusionState, list_again: bool = False) -> FusionAction | None:
        if list_again:
            self._pending = state.actions(KINDS if self.splits else FUSING_KINDS)
            self._random.shuffle(self._pending)
        while self._pending:
            action = self._pending.pop()
            if state.why_not(action) is None:
                return action
        return None
