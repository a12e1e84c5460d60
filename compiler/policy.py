"""Policy: what makes each decision of a whole compilation, and how users name one.

A policy has a part per phase (passes, expansions, loops, fusion, kernels). A phase without a part is decided by the
hand-written rules of the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from compiler.errors import ArgumentError, PolicyError, UnknownNameError
from compiler.expansions import ChooseExpansion, ExpansionPolicy, ExpansionSite
from compiler.fusion.policies import GROUP as FUSION_GROUP
from compiler.fusion.policies import POLICIES, make_policy
from compiler.fusion.protocol import ChooseFusion, FusionPolicy
from compiler.ir import HloModule
from compiler.learned import fusion_policy as fusion_folders
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.learned.pass_order import FORMAT as ORDER_FORMAT
from compiler.learned.pass_order import load_pass_order
from compiler.learned.policy_folder import describe_policy
from compiler.learned.whole_folder import FORMAT as WHOLE_FORMAT
from compiler.learned.whole_folder import SHIPPED, WholeDescription, read_part, read_whole
from compiler.loops import LoopPolicy, LoopSite
from compiler.passes import HloPass, PassPipeline
from compiler.plan import PHASES
from compiler.runtime.kernel_selector import ChooseKernel, KernelSelector
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.paths import given_path, is_folder
from compiler.support.plugins import extension_names
from compiler.support.untrusted import short_repr

__all__ = [
    "HEURISTIC",
    "LEARNED",
    "PARTS",
    "RULES_SUFFIX",
    "Policy",
    "default_policy",
    "load_policy",
    "load_whole",
    "policy_names",
    "resolve_policy",
    "shipped_description",
]

PARTS = PHASES[:-1]
"""The phases that a policy decides."""
LEARNED = "learned"
"""The name of the policy that ships."""
RULES_SUFFIX = ":rules"
"""After a name or a folder: the readable form of that policy."""
GivenPolicy: TypeAlias = "Policy | str | Path | None"


@dataclass(frozen=True, eq=False)
class Policy:
    """What decides each phase of a compilation; None: the rules of the compiler.

    Attributes:
        name: the name that plans record.
        version: recorded beside the name.
        passes: a pipeline, a pass such as a learned pass order, or passes by name.
        expansions: chooses how ops are computed.
        loops: chooses what is done with loops; if it is None and `fusion` also decides loops, `fusion` does.
        fusion: chooses fusions.
        kernels: chooses implementations and schedules.
        backends: the backends it was made for; compilations for others use the rules. Empty: all.
        provenance: how it was made, as recorded in its folder.
        labels: phase -> what plans record for a part that is not this policy's own.
    """

    name: str
    version: str = ""
    passes: PassPipeline | HloPass | Sequence[str | HloPass] | None = None
    expansions: ExpansionPolicy | ChooseExpansion | None = None
    loops: LoopPolicy | None = None
    fusion: FusionPolicy | ChooseFusion | None = None
    kernels: KernelSelector | ChooseKernel | None = None
    backends: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with the version, as plans record it."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def parts(self) -> dict[str, Any]:
        """What decides a phase, for the phases that have a part."""
        return {phase: part for phase in PARTS if (part := getattr(self, phase)) is not None}

    def decider(self, phase: str) -> str:
        """Return what plans record for a phase that has a part."""
        return self.labels.get(phase, self.label)

    def for_backend(self, backend: str) -> Policy:
        """Return the policy for a backend: itself, or one without parts if it was made for others."""
        if not self.backends or backend in self.backends:
            return self
        return Policy(self.name, self.version, provenance=self.provenance)

    def explain(self, site: ExpansionSite | LoopSite | KernelSite, module: HloModule | None = None) -> str:
        """Return what is chosen for a site and why: predictions, or the conditions of a rule with their units.

        Args:
            site: of a session.
            module: the module of a loop.

        Raises:
            ArgumentError: `site` is a loop, and there is no module.
        """
        phase = {ExpansionSite: "expansions", LoopSite: "loops", KernelSite: "kernels"}.get(type(site), "")
        part = self.parts.get(phase)
        if part is None:
            return "decided by the rules of the compiler"
        explain = getattr(part, "explain", None)
        if explain is None:
            return f"decided by {self.label}, which gives no reasons"
        if isinstance(site, LoopSite):
            if module is None:
                raise ArgumentError("the reason for a loop needs its module: policy.explain(site, session.module)")
            return str(explain(site, module))
        return str(explain(site))


HEURISTIC = Policy("heuristic")
"""The hand-written rules of the compiler in every phase."""


def policy_names() -> tuple[str, ...]:
    """Return the names that `resolve_policy` knows besides folders."""
    return (HEURISTIC.name, LEARNED, f"{LEARNED}{RULES_SUFFIX}", *POLICIES)


def default_policy(backend: str) -> Policy:
    """Return what decides when no policy is given: the one that ships, where validation allows it, else the rules."""
    shipped = shipped_description()
    if shipped is None or backend not in shipped.default_for:
        return HEURISTIC
    return _shipped(readable=False)


def resolve_policy(given: GivenPolicy, backend: str) -> Policy:
    """Return the policy that a user named.

    Args:
        given: None for the default of the backend; "heuristic"; "learned" for the policy that ships; a fusion policy by
            name, such as "priority"; the folder of a whole policy or of a part; or a Policy. `:rules` after "learned"
            or a folder takes its readable form.
        backend: name of the backend.

    Raises:
        UnknownNameError: there is no policy of that name.
        PolicyError: the folder holds no policy that can be used.
        ArgumentError: `given` is neither.
    """
    if given is None:
        return default_policy(backend)
    if isinstance(given, Policy):
        return given.for_backend(backend)
    if isinstance(given, Path):
        return _of_folder(given, readable=False).for_backend(backend)
    if not isinstance(given, str) or not given:
        raise ArgumentError(
            f"policy is a name, a folder or a Policy, not {short_repr(given)}; a policy of one phase has an argument "
            "of its own, such as fusion_policy"
        )
    return _named(given).for_backend(backend)


def _named(text: str) -> Policy:
    if text == HEURISTIC.name:
        return HEURISTIC
    bare = text.removesuffix(RULES_SUFFIX)
    readable = bare != text
    if bare == LEARNED:
        return _shipped(readable)
    if not readable and text in POLICIES:
        return Policy(text, fusion=make_policy(text))
    if "/" in bare or is_folder(bare):
        return _of_folder(Path(bare), readable)
    first = text.partition("{")[0].split(",")[0]
    declared = [] if readable else extension_names(FUSION_GROUP)
    if readable or first not in (*POLICIES, *declared):
        shown = text if len(text) < 60 else short_repr(text)
        raise UnknownNameError("policy or folder of a policy", shown, (*policy_names(), *declared))
    return Policy(text, fusion=make_policy(text))


# ---- folders


@cache
def shipped_description() -> WholeDescription | None:
    """Return the description of the policy that ships; None for an installation without one."""
    return read_whole(SHIPPED) if SHIPPED.is_dir() else None


@cache
def _shipped(readable: bool) -> Policy:
    if shipped_description() is None:
        raise PolicyError(
            "this installation has no learned policy; `python -m experiments.learning.retrain` makes one, or use "
            'policy="heuristic"'
        )
    return _of_folder(SHIPPED, readable)


def load_policy(path: str | Path) -> Policy | LearnedFusionPolicy:
    """Read an exported policy: a Policy from the folder of a whole one, else a fusion policy.

    Args:
        path: a folder. A string that names none may be one of `policy_names()`, such as "learned", or have `:rules`
            after a folder, for its readable form; the result is a Policy.

    Raises:
        UnknownNameError: `:rules` follows neither "learned" nor a folder.
        PolicyError: the folder is missing or incomplete, belongs to another version, or is damaged; the message says
            why.
    """
    folder = given_path(path, "a policy", PolicyError)
    if isinstance(path, str) and not is_folder(folder) and (path in policy_names() or path.endswith(RULES_SUFFIX)):
        return _named(path)
    if describe_policy(folder).get("format") == WHOLE_FORMAT:
        return _of_folder(folder, readable=False)
    return fusion_folders.load_policy(folder)


def load_whole(folder: Path) -> Policy:
    """Read the folder of a whole policy, or of a policy for fusion or passes as one that leaves the rest to the rules.

    Raises:
        PolicyError: as in `load_policy`.
    """
    return _of_folder(folder, readable=False)


def _of_folder(folder: Path, readable: bool) -> Policy:
    kind = describe_policy(folder).get("format")
    if kind == WHOLE_FORMAT:
        whole = read_whole(folder)
        parts: dict[str, Any] = {phase: read_part(folder, phase, whole.parts[phase], readable) for phase in whole.parts}
        found = {phase: part for phase, part in parts.items() if part is not None}
        if readable and not found:
            raise PolicyError(f"the policy in {folder} has no readable form")
        name = f"{whole.name}{RULES_SUFFIX}" if readable else whole.name
        return Policy(name, whole.version, **found, backends=whole.backends, provenance=whole.provenance)
    if readable:
        raise PolicyError(f"the policy in {folder} has no readable form; only whole policies have one")
    if kind == fusion_folders.FORMAT:
        fusion = fusion_folders.load_policy(folder)
        return Policy(fusion.name, fusion=fusion, provenance=fusion.provenance)
    if kind == ORDER_FORMAT:
        order = load_pass_order(folder)
        return Policy(order.name, passes=order, provenance=order.provenance)
    raise PolicyError(f"{folder} holds a part of a policy of the format {kind!r:.80}, which cannot be used alone")
