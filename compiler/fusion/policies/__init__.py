"""Fusion policies by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from compiler.errors import UnknownNameError
from compiler.fusion.policies.annealing import Annealing
from compiler.fusion.policies.basic import NoFusion, RandomFusion
from compiler.fusion.policies.evolution import Evolution
from compiler.fusion.policies.exhaustive import Exhaustive
from compiler.fusion.policies.free_ops import ThroughFreeOps
from compiler.fusion.policies.queue import GreedyFusion, PriorityFusion, ReshapeFusion
from compiler.fusion.policies.readers import ReaderFusion
from compiler.fusion.policies.ruled import RuledFusion
from compiler.fusion.policies.savings import InOrder, SavingsFusion
from compiler.fusion.policies.search import BeamSearch
from compiler.fusion.policies.xla import FusionMerger, HorizontalFusion, InstructionFusion, MultiOutputFusion
from compiler.fusion.protocol import FusionPolicy
from compiler.support.options import describe_options, read_options, split_specs
from compiler.support.plugins import ExtensionError, extension_names, find_extension
from compiler.support.untrusted import short_repr


def default() -> FusionPolicy:
    """Return priority fusion, and then any other action that saves time, first those of slices through reshapes."""
    savings = SavingsFusion()  # the same twice, so that it lists the actions again only if there is something new
    return InOrder((PriorityFusion(), ThroughFreeOps(slices=True), savings, ThroughFreeOps(), savings))


def priority() -> FusionPolicy:
    """Return XLA's current order on GPU: priority fusion, then multi-output fusion."""
    return InOrder((PriorityFusion(), MultiOutputFusion()))


def xla_instruction() -> FusionPolicy:
    """Return XLA's order until 2024: instruction fusion, fusion merger, multi-output fusion, horizontal fusion."""
    return InOrder((InstructionFusion(), FusionMerger(), MultiOutputFusion(), HorizontalFusion()))


def fusion_merger() -> FusionPolicy:
    """Return instruction fusion followed by the fusion merger."""
    return InOrder((InstructionFusion(), FusionMerger()))


POLICIES: Mapping[str, Callable[..., FusionPolicy]] = MappingProxyType(
    {
        "none": NoFusion,
        "default": default,
        "greedy": GreedyFusion,
        "priority": priority,
        "xla-instruction": xla_instruction,
        "fusion-merger": fusion_merger,
        "instruction": InstructionFusion,
        "merger": FusionMerger,
        "multi-output": MultiOutputFusion,
        "horizontal": HorizontalFusion,
        "savings": SavingsFusion,
        "reshapes": ReshapeFusion,
        "readers": ReaderFusion,
        "random": RandomFusion,
        "beam": BeamSearch,
        "annealing": Annealing,
        "evolution": Evolution,
        "exhaustive": Exhaustive,
    }
)
"""What makes a policy, by name; all arguments are options."""
GROUP = "hlogym.fusion_policies"
"""The group of entry points with fusion policies of other distributions."""
MAX_TEXT = 1000
"""Longest text that is parsed as a list of policies."""
_SPEC = re.compile(r"([A-Za-z0-9_.-]+)\s*(?:\{([^{}]*)\})?")

SEARCHES = frozenset({"random", "beam", "annealing", "evolution", "exhaustive"})
"""The policies that try many states; the others decide once."""
DEFAULT_POLICY = "default"


def make_policy(text: str) -> FusionPolicy:
    """Make a fusion policy from its name and options: `priority`, `merger{transposed_share=0.3}`.

    Several, separated by commas, run one after the other: `instruction{may_duplicate=false},merger`.

    Raises:
        UnknownNameError: there is no such policy; the message lists the nearest names.
        OptionError: the policy does not have these options, or they are malformed.
    """
    if text in POLICIES:
        return POLICIES[text]()
    parts = split_specs(text) if len(text) <= MAX_TEXT else [text]
    made = [_make(part) for part in parts or [text]]
    return made[0] if len(made) == 1 else InOrder(made)


def _make(text: str) -> FusionPolicy:
    match = _SPEC.fullmatch(text)
    name, options = match.groups() if match else (text, None)
    factory = POLICIES.get(name) or find_extension(GROUP, name, lacks_of_policy)
    if factory is None:
        known = [*POLICIES, *extension_names(GROUP)]
        raise UnknownNameError("fusion policy", name if len(name) < 60 else short_repr(name), known)
    cls = factory if isinstance(factory, type) else object
    made: FusionPolicy = factory(**read_options(cls, options or "", f"fusion policy {name!r}"))
    if not isinstance(made, FusionPolicy):
        raise ExtensionError(f"the fusion policy {name!r} makes {short_repr(made)}, which has no choose(state)")
    return made


def lacks_of_policy(factory: object) -> str | None:
    """Return why an object makes no fusion policies, or None."""
    if isinstance(factory, type) and not callable(getattr(factory, "choose", None)):
        return f"the class {factory.__name__} is no FusionPolicy, because it has no choose(state)"
    if not callable(factory):
        return f"{short_repr(factory)} makes no fusion policies; declare a class with choose(state), or a function"
    return None


def describe_policies() -> dict[str, tuple[str, str]]:
    """Return by name the first sentence of what a policy does, and its options with their defaults."""
    return {
        name: (
            inspect.cleandoc(factory.__doc__ or "").partition("\n")[0],
            describe_options(factory) if isinstance(factory, type) else "",
        )
        for name, factory in POLICIES.items()
    }


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "SEARCHES",
    "Annealing",
    "BeamSearch",
    "Evolution",
    "Exhaustive",
    "InOrder",
    "NoFusion",
    "PriorityFusion",
    "RandomFusion",
    "ReshapeFusion",
    "RuledFusion",
    "SavingsFusion",
    "describe_policies",
    "make_policy",
]
