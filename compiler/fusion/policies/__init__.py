"""Fusion policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from compiler.errors import UnknownNameError
from compiler.fusion.policies.basic import NoFusion, RandomFusion, ReplayFusion
from compiler.fusion.policies.queue import GreedyFusion, PriorityFusion
from compiler.fusion.protocol import FusionPolicy

POLICIES: Mapping[str, Callable[[], FusionPolicy]] = MappingProxyType(
    {
        "none": NoFusion,
        "greedy": GreedyFusion,
        "priority": PriorityFusion,
        "random": RandomFusion,
    }
)
"""Policies that need nothing but their name."""

DEFAULT_POLICY = "priority"


def make_policy(name: str) -> FusionPolicy:
    """A new policy by its name; UnknownNameError with the nearest names when there is none."""
    if name not in POLICIES:
        raise UnknownNameError("fusion policy", name, POLICIES)
    return POLICIES[name]()


__all__ = ["DEFAULT_POLICY", "POLICIES", "NoFusion", "RandomFusion", "ReplayFusion", "make_policy"]
