"""The protocol of fusion policies: choose among the legal actions until done."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState


@runtime_checkable
class FusionPolicy(Protocol):
    """Chooses the next fusion. A policy may keep data about the state it was last called with."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return a legal action, or None when nothing more is to be fused."""
        ...


def run_policy(state: FusionState, policy: FusionPolicy, limit: int | None = None) -> list[FusionAction]:
    """Apply what a policy chooses until it is done or has taken `limit` actions; return the actions."""
    taken: list[FusionAction] = []
    while limit is None or len(taken) < limit:
        action = policy.choose(state)
        if action is None:
            break
        state.apply(action)
        taken.append(action)
    return taken
