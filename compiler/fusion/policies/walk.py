"""Policies that walk over a module once, written as generators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from compiler.fusion.actions import FusionAction
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction


class Walk(ABC):
    """A fusion policy that yields its actions one by one; each is applied before the next is asked for.

    Subclasses are dataclasses, whose fields are the options of the policy.
    """

    # This class is no dataclass, so that these are no options.
    _state: FusionState | None = None
    _undone: int = 0
    _steps: Iterator[FusionAction] = iter(())

    @abstractmethod
    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the actions in order; when the generator continues, the last action has been applied."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next action of the walk, which starts again for another state and after an undo."""
        if state is not self._state or state.undone != self._undone:
            self._state, self._undone, self._steps = state, state.undone, self.steps(state)
        action = next(self._steps, None)
        self._undone = state.undone  # a walk that searches undoes what it tried
        return action


def nodes_of(sequence: SequenceState) -> list[HloInstruction]:
    """Return the nodes of a sequence, producers first, in an order that depends on the graph alone."""
    return sequence.nodes.sorted(sequence.nodes.values)
