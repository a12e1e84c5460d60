"""Fusion policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from compiler.errors import UnknownNameError
from compiler.fusion.policies.basic import NoFusion, RandomFusion, ReplayFusion
from compiler.fusion.policies.queue import GreedyFusion, PriorityFusion
from compiler.fusion.policies.savings import InOrder, SavingsFusion
from compiler.fusion.policies.search import BeamSearch, random_search
from compiler.fusion.policies.xla import FusionMerger, InstructionFusion
from compiler.fusion.protocol import FusionPolicy


def multi_output() -> FusionPolicy:
    """Sibling and producer-consumer multi-output fusion, where it saves time."""
    return SavingsFusion(("multi-output", "sibling"))


def horizontal() -> FusionPolicy:
    """Independent kernels of one shape side by side, where it saves time."""
    return SavingsFusion(("horizontal",))


def default() -> FusionPolicy:
    """Priority fusion, then whatever still saves time: the policy ends when no legal action does."""
    return InOrder((PriorityFusion(), SavingsFusion()))


def priority() -> FusionPolicy:
    """XLA's order on GPU today: priority fusion, then multi-output fusion."""
    return InOrder((PriorityFusion(), multi_output()))


def xla_instruction() -> FusionPolicy:
    """XLA's order until 2024: instruction fusion, fusion merger, multi-output fusion, horizontal fusion."""
    return InOrder((InstructionFusion(), FusionMerger(), multi_output(), horizontal()))


def fusion_merger() -> FusionPolicy:
    """Instruction fusion, then the merger."""
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
"""Policies that need nothing but their name."""

DEFAULT_POLICY = "default"


def make_policy(name: str) -> FusionPolicy:
    """A new policy by its name; UnknownNameError with the nearest names when there is none."""
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
    "ReplayFusion",
    "SavingsFusion",
    "make_policy",
    "random_search",
]
