"""One episode of pass ordering: passes in turn until a stop, until nothing changes, or until the budget is spent."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.passes.observations import History, Vector, observe
from compiler.passes.states import PassGraph, PassState

__all__ = ["PassEpisode"]


class PassEpisode:
    """Passes in turn over one program. It knows no gym; a fork costs nothing.

    Args:
        graph: of the program; shared by all its episodes.
        budget: how many applications there may be.

    Attributes:
        state: the program now.
        taken: actions so far, the stop aside.
        stopped: whether stop was chosen.
    """

    def __init__(self, graph: PassGraph, budget: int) -> None:
        self.graph, self.budget = graph, budget
        self.state = graph.root
        self.taken: list[int] = []
        self.stopped = False
        # Only what this episode has tried: what others have found out, a compiler that runs once does not know.
        self._idle: frozenset[int] = frozenset()
        self._history = History.empty(len(graph.actions))

    @property
    def stop(self) -> int:
        """The action that ends the episode."""
        return len(self.graph.actions)

    @property
    def done(self) -> bool:
        """Stopped, out of budget, or with nothing left that changes anything."""
        return self.stopped or len(self.taken) >= self.budget or len(self._idle) == self.stop

    def idle(self) -> Sequence[bool]:
        """For each pass, whether this episode has seen that it changes nothing in this state."""
        return [a in self._idle for a in range(self.stop)]

    def refusal(self, action: int) -> str | None:
        """Why an action cannot be taken now; None when it can."""
        if self.done:
            return "the episode is over"
        return None if 0 <= action <= self.stop else f"action {action} is not among the {self.stop + 1} there are"

    def take(self, action: int) -> PassState:
        """Run a pass, or stop; the state after.

        Raises:
            HloVerificationError: the graph verifies, and the pass broke a rule.
        """
        if action == self.stop:
            self.stopped = True
            return self.state
        before = self.state
        self.state = self.graph.apply(before, action)
        self.taken.append(action)
        self._idle = self._idle | {action} if self.state is before else frozenset()
        self._history.note(action, before, self.state)
        return self.state

    def effective(self) -> list[str]:
        """Texts of the passes that changed something, in order."""
        state, found = self.graph.root, []
        for action in self.taken:
            after = self.graph.apply(state, action)
            if after is not state:
                found.append(self.graph.actions[action])
            state = after
        return found

    def observation(self) -> Vector:
        """The moment as a vector; see `compiler.passes.observations`."""
        return observe(self.state, self.graph.root, self._history, self.budget, self.idle())

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which actions are worth trying: what is not idle, and stop."""
        return ~np.array([*self.idle(), False])

    def fork(self) -> PassEpisode:
        """An independent episode that goes on from here."""
        other = copy.copy(self)
        other.taken = list(self.taken)
        other._history = copy.deepcopy(self._history)
        return other
