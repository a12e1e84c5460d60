"""One episode of pass ordering: passes in turn until a stop, until nothing changes, or until the budget is spent."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.learned.features.passes import History, Vector, observe
from compiler.learned.pass_states import PassGraph, PassState

__all__ = ["PassEpisode"]


class PassEpisode:
    """Passes in turn over one program. It knows no gym; a fork costs nothing.

    Args:
        graph: of the program; shared by all its episodes.
        budget: how many applications there may be.

    Attributes:
        state: the program now.
        taken: actions so far, the stop aside.
        path: those of them that changed something and were kept; alone they lead to the same state.
        stopped: whether stop was chosen.
    """

    def __init__(self, graph: PassGraph, budget: int) -> None:
        self.graph, self.budget = graph, budget
        self.state = graph.root
        self.taken: list[int] = []
        self.stopped = False
        self.path: list[int] = []
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
        return self._go(action, self.graph.apply(self.state, action))

    def attempt(self, action: int) -> bool:
        """Run a pass and take it back if it leaves more ops, in which case it counts as idle; whether it was kept."""
        after = self.graph.apply(self.state, action)
        kept = after.ops <= self.state.ops
        self._go(action, after if kept else self.state)
        return kept

    def _go(self, action: int, after: PassState) -> PassState:
        before, self.state = self.state, after
        self.taken.append(action)
        if after is before:
            self._idle |= {action}
        else:
            self._idle = frozenset()
            self.path.append(action)
        self._history.note(action, before, after)
        return after

    def effective(self) -> list[str]:
        """`path` as texts of passes."""
        return [self.graph.actions[a] for a in self.path]

    def observation(self) -> Vector:
        """The moment as a vector; see `compiler.learned.features.passes`."""
        return observe(self.state, self.graph.root, self._history, self.budget, self.idle())

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which actions are worth trying: what is not idle, and stop."""
        return ~np.array([*self.idle(), False])

    def fork(self) -> PassEpisode:
        """An independent episode that goes on from here."""
        other = copy.copy(self)
        other.taken, other.path = list(self.taken), list(self.path)
        other._history = copy.deepcopy(self._history)
        return other
