"""Policies that walk over a module once, written as generators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState


class Walk(ABC):
    """A fusion policy that yields its actions one by one; each is applied before the next is asked for.

    Subclasses are dataclasses, whose fields are the options of the policy.
    """

    # This class is no dataclass, so that these are no options.
    _state: FusionState | None = None
    _steps: Iterator[FusionAction] = iter(())

    @abstractmethod
    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the actions in order; when the generator continues, the last action has been applied."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next action of the walk, which starts again for another state."""
        if state is not self._state:
            self._state, self._steps = state, self.steps(state)
        return next(self._steps, None)
