"""The two sides of a comparison: a plan, and for each choice of a policy the reason that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compiler.api import decide_all
from compiler.fusion.actions import FusionAction
from compiler.fusion.protocol import FusionPolicy, as_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.loops import LoopPolicy
from compiler.plan import CompilationPlan
from compiler.policy import Policy, resolve_policy
from compiler.session import CompilationSession

__all__ = ["DEFAULT", "Side", "side_of"]

DEFAULT = "default"
"""What `compile` does without arguments."""


@dataclass(frozen=True)
class Side:
    """A plan to compare.

    Attributes:
        label: how it was named.
        plan: the plan, up to fusion at least, as replayed or decided by this version of the compiler.
        policy: what decided it; None if it was recorded.
        reasons: why a policy of fusions chose an action, for those that can say.
    """

    label: str
    plan: CompilationPlan
    policy: Policy | None = None
    reasons: Mapping[FusionAction, str] = field(default_factory=dict)


def side_of(given: str, module: HloModule, backend: str) -> Side:
    """Return a side.

    Args:
        given: a file with a plan, "default", or a policy as `compile` takes it.
        module: the program.
        backend: name of the backend.

    Raises:
        PlanError: the file is no plan, or its plan cannot be replayed.
        HlogymError: there is no such policy, or the program cannot be compiled.
    """
    path = Path(given)
    session = CompilationSession(module, backend)
    if path.is_file():
        session.replay(CompilationPlan.load(path))
        _ = session.fusion  # of a plan that ends before it
        return Side(path.name, session.plan)
    policy = resolve_policy(None if given == DEFAULT else given, session.backend)
    recorded = None if policy.fusion is None else _Recording(as_policy(policy.fusion))
    if recorded is not None:
        loops = policy.loops or (policy.fusion if isinstance(policy.fusion, LoopPolicy) else None)
        labels = {**policy.labels, "fusion": policy.decider("fusion")}
        decide_all(session, replace(policy, fusion=recorded, loops=loops, labels=labels))
    else:
        decide_all(session, policy)
    return Side(given, session.plan, policy, {} if recorded is None else recorded.reasons)


class _Recording:
    """A fusion policy that asks another one, and keeps its reasons."""

    def __init__(self, policy: FusionPolicy) -> None:
        self._policy = policy
        self._explain: Callable[[FusionState], Any] | None = getattr(policy, "explain", None)
        self.reasons: dict[FusionAction, str] = {}

    def choose(self, state: FusionState) -> FusionAction | None:
        """See `FusionPolicy.choose`."""
        reason = "" if self._explain is None else str(self._explain(state))
        action = self._policy.choose(state)
        if action is not None and reason:
            self.reasons[action] = reason
        return action
