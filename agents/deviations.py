"""Deviations from the default plan, and a local search over them: one decision is changed at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from agents.finalists import Finalists
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import HlogymError
from compiler.expansions import ExpansionSite
from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.ir import HloModule
from compiler.loops import KernelLoops, LoopSite
from compiler.passes import PASSES, PassPipeline, make_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.plan import CompilationPlan
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from env.measurement import Measurer
from env.suites import Program

__all__ = ["GROUPS", "Deviation", "Group", "LocalSearch", "build"]

Group: TypeAlias = Literal["passes", "expansions", "loops", "fusion", "kernels"]
GROUPS: tuple[Group, ...] = get_args(Group)

MARGIN = 0.01
"""Share of the time that a change must save to be kept, because measurements vary."""
MOST_INSTRUCTIONS = 4000
"""Larger modules, such as those of loops that are fully unrolled, take minutes to fuse."""
MOST_PASSES = 4
"""Number of passes that one change may add."""
TRIES = 40
"""Mutations in a row that lead to no new plan before a search ends."""


@dataclass(frozen=True)
class Deviation:
    """What a plan does differently from the default plan.

    Attributes:
        passes: passes that run before the default ones.
        expansions, loops, kernels: choices by site, where they are not the default.
        dropped: fusions of the default policy that are left out.
        added: fusions after those of the default policy.
    """

    passes: tuple[str, ...] = ()
    expansions: Mapping[str, str] = field(default_factory=dict)
    loops: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[FusionAction] = frozenset()
    added: tuple[FusionAction, ...] = ()
    kernels: Mapping[str, KernelChoice] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A plan with the decisions that could be changed next."""

    deviation: Deviation
    plan: CompilationPlan
    expansions: Sequence[ExpansionSite]
    loops: Sequence[LoopSite]
    fused: Sequence[FusionAction]
    possible: Sequence[FusionAction]
    kernels: Sequence[tuple[KernelSite, KernelChoice]]


def build(module: HloModule, backend: str, deviation: Deviation) -> Built:
    """Return the plan of a deviation; choices whose site does not exist any more are ignored.

    Raises:
        HlogymError: the module becomes too large, or cannot be compiled.
    """
    session = CompilationSession(module, backend=backend)
    extra = tuple(map(make_pass, deviation.passes))
    session.run_passes(PassPipeline("deviating", (*extra, default_pipeline())) if extra else None)
    expansions = session.expansions()
    for site in expansions:
        if (choice := deviation.expansions.get(site.id)) in site.choices:
            session.set_expansion(site, choice)
    loops = session.loops()
    session.run_loop_policy(_Loops(deviation.loops))
    if session.module.instruction_count > MOST_INSTRUCTIONS:
        raise HlogymError(f"{session.module.instruction_count} instructions are too many")
    if deviation.dropped or deviation.added:
        fused = _default_fusions(session)
        for action in [*(a for a in fused if a not in deviation.dropped), *deviation.added]:
            if session.why_not(action) is None:
                session.apply(action)
    else:
        fused = session.run_fusion_policy(make_policy(DEFAULT_POLICY))
    possible = session.actions()
    sites = session.kernel_sites()
    for kernel in sites:
        wanted = deviation.kernels.get(kernel.id)
        if wanted is not None and kernel.check(wanted) is None:
            session.set_kernel(kernel, wanted)
    kernels = [(s, session.chosen_kernel(s)) for s in sites if s.choices.size > 1]
    return Built(deviation, session.plan, expansions, loops, fused, possible, kernels)


def _default_fusions(session: CompilationSession) -> Sequence[FusionAction]:
    return session.fork().run_fusion_policy(make_policy(DEFAULT_POLICY))


@dataclass(frozen=True)
class _Loops:
    """The default choice of each loop, unless another one is given."""

    choices: Mapping[str, str]

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """See `LoopPolicy.choose_loop`."""
        given = self.choices.get(site.id, "")
        return given if given in site.choices else KernelLoops().choose_loop(site, module)


class LocalSearch:
    """Changes one decision of the best plan so far, measures, and keeps what is faster than it by MARGIN.

    Args:
        module: the program, parsed.
        program: the program, for the measurer.
        measurer: measures plans.
        groups: the decisions that may change.
        seed: seed of the random choice of changes.

    Attributes:
        finalists: the fastest plans.
        measurements: number of plans measured.
        failures: number of those that failed.
    """

    def __init__(
        self, module: HloModule, program: Program, measurer: Measurer, groups: Sequence[Group], seed: int = 0
    ) -> None:
        self._module, self._program, self._measurer = module, program, measurer
        self._groups, self._rng = tuple(groups), random.Random(seed)
        self.finalists = Finalists()
        self.measurements = self.failures = 0

    def run(self, budget: int, step: Callable[[], None] = lambda: None) -> None:
        """Measure up to `budget` plans; fewer if no change leads to a new plan.

        Raises:
            MeasurementError: nothing can be measured on this machine.
        """
        best = build(self._module, self._measurer.options.backend, Deviation())
        relative, seen, idle = 1.0, {best.plan.to_json()}, 0
        while self.measurements < budget and idle < TRIES:
            changed = self._changed(best)
            text = "" if changed is None else changed.plan.to_json()
            if changed is None or text in seen:
                idle += 1
                continue
            idle = 0
            seen.add(text)
            found = self._measurer.measure(self._program, changed.plan)
            self.measurements += 1
            step()
            if found.seconds is None:
                self.failures += 1
                continue
            self.finalists.note(changed.plan, found)
            if found.relative < (1 - MARGIN) * relative:
                best, relative = changed, found.relative

    def _changed(self, best: Built) -> Built | None:
        """Return the best plan with one decision changed; None if the change is not possible."""
        deviation = self._mutated(best, self._rng.choice(self._groups))
        if deviation is None:
            return None
        try:
            return build(self._module, self._measurer.options.backend, deviation)
        except HlogymError:
            return None

    def _mutated(self, best: Built, group: Group) -> Deviation | None:
        given, rng = best.deviation, self._rng
        match group:
            case "passes":
                return replace(given, passes=_edited(given.passes, sorted(PASSES), rng))
            case "expansions":
                choices = {s.id: s.choices for s in best.expansions if len(s.choices) > 1}
                return None if not choices else replace(given, expansions=_chosen(given.expansions, choices, rng))
            case "loops":
                choices = {s.id: s.choices for s in best.loops if len(s.choices) > 1}
                return None if not choices else replace(given, loops=_chosen(given.loops, choices, rng))
            case "fusion":
                return _refused_or_added(best, rng)
            case "kernels":
                return _other_kernel(best, rng)


def _edited(names: tuple[str, ...], known: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """Return a sequence of passes with some added, since most change nothing alone, or with one removed."""
    at = rng.randrange(len(names) + 1)
    if names and rng.random() < 1 / 3:
        return names[: max(0, at - 1)] + names[max(1, at) :]
    return (*names[:at], *rng.choices(known, k=rng.randint(1, MOST_PASSES)), *names[at:])


def _chosen(given: Mapping[str, str], choices: Mapping[str, Sequence[str]], rng: random.Random) -> dict[str, str]:
    site = rng.choice(sorted(choices))
    return {**given, site: rng.choice([c for c in choices[site] if c != given.get(site)])}


def _refused_or_added(best: Built, rng: random.Random) -> Deviation | None:
    given = best.deviation
    options: list[Deviation] = []
    for action in best.fused:
        changed = given.dropped - {action} if action in given.dropped else given.dropped | {action}
        options.append(replace(given, dropped=changed))
    added = [replace(given, added=(*given.added, a)) for a in best.possible]
    added += [replace(given, added=tuple(a for a in given.added if a != old)) for old in given.added]
    # As many chances for fusions that the default makes as for those that it does not make.
    groups = [g for g in (options, added) if g]
    return rng.choice(rng.choice(groups)) if groups else None


def _other_kernel(best: Built, rng: random.Random) -> Deviation | None:
    if not best.kernels:
        return None
    site, now = rng.choice(best.kernels)
    near = [c for c in site.neighbours(now) if site.check(c) is None]
    return replace(best.deviation, kernels={**best.deviation.kernels, site.id: rng.choice(near)}) if near else None
