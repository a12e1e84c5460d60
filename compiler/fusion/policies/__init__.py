"""Fusion policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from compiler.errors import UnknownNameError
from compiler.fusion.policies.basic import NoFusion, RandomFusion
from compiler.fusion.policies.queue import GreedyFusion, PriorityFusion
from compiler.fusion.policies.savings import InOrder, SavingsFusion
from compiler.fusion.policies.search import BeamSearch
from compiler.fusion.policies.xla import FusionMerger, InstructionFusion
from compiler.fusion.protocol import FusionPolicy


def multi_output() -> FusionPolicy:
    """Return multi-output fusion of siblings, and of producers with their consumers, where it saves time."""
    return SavingsFusion(("multi-output", "sibling"))


def horizontal() -> FusionPolicy:
    """Return horizontal fusion, which joins independent kernels of one shape, where it saves time."""
    return SavingsFusion(("horizontal",))


def default() -> FusionPolicy:
    """Return priority fusion followed by any other action that saves time, until no legal action does."""
    return InOrder((PriorityFusion(), SavingsFusion()))


def priority() -> FusionPolicy:
    """Return XLA's current order on GPU: priority fusion, then multi-output fusion."""
    return InOrder((PriorityFusion(), multi_output()))


def xla_instruction() -> FusionPolicy:
    """Return XLA's order until 2024: instruction fusion, fusion merger, multi-output fusion, horizontal fusion."""
    return InOrder((InstructionFusion(), FusionMerger(), multi_output(), horizontal()))


def fusion_merger() -> FusionPolicy:
    """Return instruction fusion followed by the fusion merger."""
    return InOrder((InstructionFusion(), FusionMerger()))


POLICIES: Mapping[str, Callable[[], FusionPolicy]] = MappingProxyType(
    {
        "none": NoFusion,
        "default": default,
        "greedy": GreedyFusion,
        "priority": priority,
        "xla-instruction": xla_instruction,
        "fusion-merger": fusion_merger,
        "multi-output": multi_output,
        "horizontal": horizontal,
        "savings": SavingsFusion,
        "random": RandomFusion,
        "beam": BeamSearch,
    }
)
"""The policies that are made without arguments."""

DEFAULT_POLICY = "default"


def make_policy(name: str) -> FusionPolicy:
    """Return a new policy by its name.

    Raises:
        UnknownNameError: there is no such policy; the message lists the nearest names.
    """
    if name not in POLICIES:
        raise UnknownNameError("fusion policy", name, POLICIES)
    return POLICIES[name]()


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "BeamSearch",
    "InOrder",
    "NoFusion",
    "PriorityFusion",
    "RandomFusion",
    "SavingsFusion",
    "make_policy",
]
