"""What a fusion policy is: something that chooses among legal actions until it has had enough."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState


@runtime_checkable
class FusionPolicy(Protocol):
    """Chooses the next fusion. A policy may remember things about the state it was last asked about."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """A legal action, or None when nothing more is to be fused."""
        ...


def run_policy(state: FusionState, policy: FusionPolicy, limit: int | None = None) -> list[FusionAction]:
    """Let a policy choose until it is done, or `limit` actions have been taken; returns the actions taken."""
    done: list[FusionAction] = []
    while limit is None or len(done) < limit:
        action = policy.choose(state)
        if action is None:
            break
        state.apply(action)
        done.append(action)
    return done
