"""The protocol of fusion policies: choose among the legal actions until done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from compiler.errors import FusionError
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.support.callables import checked_function
from compiler.support.untrusted import short_repr

ChooseFusion: TypeAlias = Callable[[FusionState], FusionAction | None]
"""A function that chooses as `FusionPolicy.choose` does."""


@runtime_checkable
class FusionPolicy(Protocol):
    """Chooses the next fusion. A policy may keep data about the state it was last called with."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return a legal action, or None when nothing more is to be fused."""
        ...


@dataclass(frozen=True)
class FunctionPolicy:
    """A fusion policy that asks a function."""

    function: ChooseFusion

    def choose(self, state: FusionState) -> FusionAction | None:
        """See `FusionPolicy.choose`."""
        return self.function(state)


def as_policy(given: FusionPolicy | ChooseFusion) -> FusionPolicy:
    """Return a policy itself, or one that asks the given function.

    Raises:
        ArgumentError: `given` is neither.
    """
    if isinstance(given, FusionPolicy) and not isinstance(given, type):
        return given
    forms = "a name, an object with choose(state), or a function of the state"
    return FunctionPolicy(checked_function(given, "a fusion policy", forms))


def run_policy(state: FusionState, policy: FusionPolicy, limit: int | None = None) -> list[FusionAction]:
    """Apply what a policy chooses until it is done or has taken `limit` actions; return the actions.

    Raises:
        FusionError: the policy chose something that is not a legal action.
    """
    taken: list[FusionAction] = []
    while limit is None or len(taken) < limit:
        action = policy.choose(state)
        if action is None:
            break
        if not isinstance(action, FusionAction):
            raise FusionError(f"a fusion policy returns one of state.actions() or None, not {short_repr(action)}")
        state.apply(action)
        taken.append(action)
    return taken
