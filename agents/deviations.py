"""Deviations from the decisions of a policy, by default the compiler's own, and the plans that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias, get_args

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import HlogymError
from compiler.expansions import ExpansionSite, as_expansion_policy
from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule
from compiler.loops import LoopPolicy, LoopSite
from compiler.passes import PassPipeline, make_pass
from compiler.passes.pipelines.given import as_pipeline
from compiler.plan import CompilationPlan
from compiler.policy import HEURISTIC, Policy
from compiler.runtime.kernel_selector import as_selector
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from compiler.support.lru_dict import LruDict

__all__ = ["GROUPS", "Built", "Deviation", "Group", "PlanBuilder", "PolicyDraws"]

Group: TypeAlias = Literal["passes", "expansions", "loops", "fusion", "kernels"]
GROUPS: tuple[Group, ...] = get_args(Group)

PolicyDraws: TypeAlias = Callable[[int | None], Policy]
"""Returns a policy that samples its decisions with a seed; for None one that takes those that it prefers."""

MOST_INSTRUCTIONS = 4000
"""Larger modules, such as those of loops that are fully unrolled, take minutes to fuse."""
KEPT_SESSIONS = 16
"""Number of compilations that are kept, by their decisions up to the loops and up to fusion."""
KEPT_PROGRAMS = 10_000
"""Number of sequences of passes whose results are known by their fingerprints."""


@dataclass(frozen=True)
class Deviation:
    """What a plan does differently from the plan of a policy.

    Attributes:
        passes: passes that run before the default ones.
        expansions, loops, kernels: choices by site, where they are not those of the policy.
        dropped: fusions of the policy that are left out.
        added: fusions after those of the policy.
        draw: seed with which the policy samples its decisions; None: it takes those that it prefers.
    """

    passes: tuple[str, ...] = ()
    expansions: Mapping[str, str] = field(default_factory=dict)
    loops: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[FusionAction] = frozenset()
    added: tuple[FusionAction, ...] = ()
    kernels: Mapping[str, KernelChoice] = field(default_factory=dict)
    draw: int | None = None


@dataclass(frozen=True)
class Built:
    """A plan, and the decisions that could be changed next.

    Attributes:
        deviation: what leads to it.
        session: the compilation with every decision taken; it is shared, and must not be changed.
        expansions, loops: the sites as they were before they were decided.
        fused: the fusions of the policy, dropped ones included.
    """

    deviation: Deviation
    session: CompilationSession
    expansions: Sequence[ExpansionSite]
    loops: Sequence[LoopSite]
    fused: Sequence[FusionAction]

    @cached_property
    def plan(self) -> CompilationPlan:
        """The plan."""
        return self.session.plan

    @cached_property
    def text(self) -> str:
        """The plan as JSON; equal for equal decisions."""
        return self.plan.to_json()

    @cached_property
    def possible(self) -> Sequence[FusionAction]:
        """Fusions that could be added."""
        return self.session.actions()

    @cached_property
    def kernels(self) -> Sequence[tuple[KernelSite, KernelChoice]]:
        """The kernels that have choices, each with the current one."""
        return [(s, self.session.chosen_kernel(s)) for s in self.session.kernel_sites() if s.choices.size > 1]


class PlanBuilder:
    """Builds the plans of one program.

    Compilations are kept and continued, so that a change of a late decision does not repeat the earlier ones.

    Args:
        module: the program.
        backend: the backend to plan for.
        policy: whose decisions deviations change; None: the default passes, loops inside one kernel where that is
            possible, and the default fusion.
    """

    def __init__(self, module: HloModule, backend: str, policy: PolicyDraws | None = None) -> None:
        self.module, self.backend = module, backend
        self.is_default = policy is None
        self._policy = policy or (lambda _: HEURISTIC)
        self._passed: LruDict[tuple[str, ...], CompilationSession] = LruDict(KEPT_SESSIONS)
        self._passed_programs: LruDict[tuple[str, ...], str] = LruDict(KEPT_PROGRAMS)
        self._unfused: LruDict[str, _Unfused] = LruDict(KEPT_SESSIONS)
        self._fused: LruDict[str, Built] = LruDict(KEPT_SESSIONS)

    def build(self, deviation: Deviation) -> Built:
        """Return the plan of a deviation; choices whose site does not exist any more are ignored.

        Raises:
            HlogymError: the module becomes too large, or cannot be compiled.
        """
        fused = self._with_fusions(deviation)
        selector = self._policy(deviation.draw).kernels
        if not deviation.kernels and selector is None:
            return fused
        choose = None if selector is None else as_selector(selector).choose_kernel
        session = fused.session.fork()
        for kernel in session.kernel_sites():
            wanted = deviation.kernels.get(kernel.id)
            if wanted is None and choose is not None:
                wanted = choose(kernel)
            if wanted is not None and kernel.check(wanted) is None:
                session.set_kernel(kernel, wanted)
        return Built(deviation, session, fused.expansions, fused.loops, fused.fused)

    def passed(self, names: tuple[str, ...]) -> str:
        """Return the fingerprint of the program after these passes and the default ones.

        Raises:
            HlogymError: a pass fails.
        """
        if names not in self._passed_programs:
            self._passed_programs[names] = self._with_passes(names, self._policy(None)).module.fingerprint()
        return self._passed_programs[names]

    def _with_passes(self, names: tuple[str, ...], policy: Policy) -> CompilationSession:
        found = self._passed.get(names)
        if found is None:
            found = CompilationSession(self.module, backend=self.backend)
            extra = tuple(map(make_pass, names))
            own = as_pipeline(policy.passes)
            found.run_passes(PassPipeline("deviating", (*extra, own)) if extra else own)
            self._passed[names] = found
        return found.fork()

    def _with_loops(self, deviation: Deviation) -> _Unfused:
        key = repr((deviation.passes, _items(deviation.expansions), _items(deviation.loops), deviation.draw))
        found = self._unfused.get(key)
        if found is not None:
            return found
        policy = self._policy(deviation.draw)
        session = self._with_passes(deviation.passes, policy)
        expansions = session.expansions()
        expand = None if policy.expansions is None else as_expansion_policy(policy.expansions)
        for site in expansions:
            choice = deviation.expansions.get(site.id)
            if choice not in site.choices and expand is not None:
                choice = expand.choose_expansion(site)
                choice = None if choice == site.choices[0] else choice
            if choice in site.choices:
                session.set_expansion(site, choice)
        loops = session.loops()
        decides = policy.loops or (policy.fusion if isinstance(policy.fusion, LoopPolicy) else session.default_loops())
        session.run_loop_policy(_Loops(deviation.loops, decides))
        if session.module.instruction_count > MOST_INSTRUCTIONS:
            raise HlogymError(f"{session.module.instruction_count} instructions are too many")
        fused = session.fork()
        actions = fused.run_fusion_policy(policy.fusion)
        found = self._unfused[key] = _Unfused(key, session, expansions, loops, fused, actions)
        return found

    def _with_fusions(self, deviation: Deviation) -> Built:
        start = self._with_loops(deviation)
        if not deviation.dropped and not deviation.added:
            return Built(deviation, start.fused, start.expansions, start.loops, start.actions)
        key = repr((start.key, sorted(map(repr, deviation.dropped)), deviation.added))
        found = self._fused.get(key)
        if found is not None:
            return Built(deviation, found.session, found.expansions, found.loops, found.fused)
        session = start.session.fork()
        for action in [*(a for a in start.actions if a not in deviation.dropped), *deviation.added]:
            if session.why_not(action) is None:
                session.apply(action)
        found = self._fused[key] = Built(deviation, session, start.expansions, start.loops, start.actions)
        return found


@dataclass(frozen=True)
class _Unfused:
    """A compilation before fusion, and the same after the fusions of the policy."""

    key: str
    session: CompilationSession
    expansions: Sequence[ExpansionSite]
    loops: Sequence[LoopSite]
    fused: CompilationSession
    actions: Sequence[FusionAction]


def _items(choices: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(choices.items())


@dataclass(frozen=True)
class _Loops:
    """The choice of a policy for each loop, unless another one is given."""

    name: ClassVar[str] = "search"
    choices: Mapping[str, str]
    policy: LoopPolicy

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """See `LoopPolicy.choose_loop`."""
        given = self.choices.get(site.id, "")
        return given if given in site.choices else self.policy.choose_loop(site, module)
