"""One episode of pass ordering: passes in turn until stop, until nothing changes, or until the budget is used up."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.learned.features.passes import History, Vector, observe
from compiler.learned.pass_states import PassGraph, PassState

__all__ = ["PassEpisode"]


class PassEpisode:
    """Passes in turn over one program, independent of Gymnasium; forks are cheap.

    Args:
        graph: states of the program, shared by all its episodes.
        budget: greatest number of applications.

    Attributes:
        state: the current program.
        taken: actions so far without stop.
        path: the actions that changed something and were kept; they alone lead to the same state.
        stopped: whether stop was chosen.
    """

    def __init__(self, graph: PassGraph, budget: int) -> None:
        self.graph, self.budget = graph, budget
        self.state = graph.root
        self.taken: list[int] = []
        self.stopped = False
        self.path: list[int] = []
        # Only what this episode has tried: a compiler that runs once does not know the results of other episodes.
        self._idle: frozenset[int] = frozenset()
        self._history = History.empty(len(graph.actions))

    @property
    def stop(self) -> int:
        """The action that ends the episode."""
        return len(self.graph.actions)

    @property
    def done(self) -> bool:
        """Whether the episode has stopped, has used up its budget, or has no pass left that changes anything."""
        return self.stopped or len(self.taken) >= self.budget or len(self._idle) == self.stop

    def idle(self) -> Sequence[bool]:
        """Return for each pass whether this episode has seen that it changes nothing in this state."""
        return [a in self._idle for a in range(self.stop)]

    def refusal(self, action: int) -> str | None:
        """Return why an action cannot be taken now, or None."""
        if self.done:
            return "the episode is over"
        return None if 0 <= action <= self.stop else f"there is no action {action}; the actions are 0 to {self.stop}"

    def take(self, action: int) -> PassState:
        """Apply a pass, or stop; return the new state.

        Raises:
            HloVerificationError: the graph verifies modules, and the pass made an invalid one.
        """
        if action == self.stop:
            self.stopped = True
            return self.state
        return self._advance(action, self.graph.apply(self.state, action))

    def attempt(self, action: int) -> bool:
        """Apply a pass, and undo it if it leaves more ops: then it counts as idle. Return whether it was kept."""
        after = self.graph.apply(self.state, action)
        kept = after.ops <= self.state.ops
        self._advance(action, after if kept else self.state)
        return kept

    def _advance(self, action: int, after: PassState) -> PassState:
        before, self.state = self.state, after
        self.taken.append(action)
        if after is before:
            self._idle |= {action}
        else:
            self._idle = frozenset()
            self.path.append(action)
        self._history.record(action, before, after)
        return after

    def effective(self) -> list[str]:
        """Return the passes of `path`."""
        return [self.graph.actions[a] for a in self.path]

    def observation(self) -> Vector:
        """Return the observation, see `compiler.learned.features.passes`."""
        return observe(self.state, self.graph.root, self._history, self.budget, self.idle())

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return which actions are worth trying: the passes that are not idle, and stop."""
        return ~np.array([*self.idle(), False])

    def fork(self) -> PassEpisode:
        """Return an independent copy, which shares only the graph and its states."""
        return copy.deepcopy(self, {id(self.graph): self.graph, id(self.state): self.state})
