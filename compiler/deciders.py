"""The names by which plans record who decided a phase of a compilation."""

from __future__ import annotations

from compiler.fusion.policies.ruled import RuledFusion
from compiler.support.untrusted import is_name

_REPLAYED = "plan"


def decider_name(policy: object) -> str:
    """Return the name of a policy for readers: its `name`, that of the function that it asks, or that of its class."""
    if isinstance(policy, RuledFusion):
        return policy.name or decider_name(policy.policy)
    asked = getattr(policy, "function", None) or getattr(policy, "name", None)
    name = asked if isinstance(asked, str) else getattr(asked, "__qualname__", type(policy).__qualname__)
    return name if is_name(name) else type(policy).__qualname__


def replayed_from(name: str) -> str:
    """Return who decided a phase of a plan that is replayed."""
    if name.startswith(_REPLAYED):
        return name
    return f"{_REPLAYED} ({name})" if name else _REPLAYED
