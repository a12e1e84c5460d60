"""The differences between two plans of a program, each with the plan in which it is taken back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import HlogymError
from compiler.expansions import ExpansionSite
from compiler.ir import HloModule
from compiler.loops import KEEP
from compiler.plan import CompilationPlan, Phase
from compiler.policy import Policy
from compiler.session import CompilationSession
from experiments.differences.kernels import Content, FusedPlan, exchanged, regions
from experiments.differences.reasons import decided_expansions, with_expansions
from experiments.differences.sides import Side

__all__ = ["Difference", "find_differences"]

_SHOWN = 3
_BY_RULES = "without it, the rules decide what follows"


@dataclass(frozen=True)
class Difference:
    """One respect in which the first plan differs from the second.

    Attributes:
        phase: the phase.
        where: the site, or what the kernels compute.
        first: the choice of the first plan.
        second: the choice of the second plan.
        reason: why the policy of the first plan chose so, if it says.
        without: the first plan with the choice of the second one here; None if it cannot be taken back alone.
        estimate: seconds that the difference saves by the cost model; None if it does not see it.
        note: what else changes in `without`, or why there is none.
    """

    phase: Phase
    where: str
    first: str
    second: str
    reason: str = ""
    without: CompilationPlan | None = None
    estimate: float | None = None
    note: str = ""


def find_differences(module: HloModule, backend: str, a: Side, b: Side) -> list[Difference]:
    """Return the differences between two plans, in the order of the phases.

    Raises:
        HlogymError: a plan cannot be replayed.
    """
    return _Finder(module, backend, a, b).find()


class _Finder:
    def __init__(self, module: HloModule, backend: str, a: Side, b: Side) -> None:
        self._module, self._backend, self._a, self._b = module, backend, a, b
        self._start = _begun(module, backend, a.plan)
        self._other = _begun(module, backend, b.plan)
        self._same_base = _module_key(self._other) == _module_key(self._start)
        # Names in the second plan are those of its own passes; a plan finds its way by positions.
        self._first = FusedPlan(self._start, a.plan)
        self._second = FusedPlan(self._start if self._same_base else self._other, b.plan)
        self._seconds = self._first.session.cost().seconds

    def find(self) -> list[Difference]:
        early = [*self._passes(), *self._expansions(), *self._loops()]
        return [*early, *(self._fusions() if self._same_base else self._other_fusions(bool(early)))]

    # ---- before fusion

    def _passes(self) -> list[Difference]:
        a, b = self._a.plan.passes, self._b.plan.passes
        if a == b:
            return []
        left, right = [_listed(p for p in x if p not in y) for x, y in ((a, b), (b, a))]
        same = "the same in another order or number"
        first, second = (left or same, right or same) if left or right else (f"{len(a)} passes", f"{len(b)} passes")
        return [self._early("passes", "the passes", first, second, passes=b)]

    def _expansions(self) -> list[Difference]:
        mine, other = ({c.id: c.choice for c in s.plan.expansions} for s in (self._a, self._b))
        sites: dict[str, ExpansionSite] = {}
        for side in (self._b, self._a):
            sites |= decided_expansions(self._module, self._backend, side.plan)
        found = []
        for name in dict.fromkeys([*mine, *other]):
            default = sites[name].default if name in sites else KEEP
            first, second = mine.get(name, default), other.get(name, default)
            if first != second:
                kept = {n: c for n, c in mine.items() if n != name} | ({name: other[name]} if name in other else {})
                reason = _why(self._a.policy, "expansions", sites.get(name))
                found.append(self._early("expansions", f"%{name}", first, second, reason, expansions=kept))
        return found

    def _loops(self) -> list[Difference]:
        mine, other = self._a.plan.loops, self._b.plan.loops
        found = []
        for name in dict.fromkeys([*mine, *other]):
            first, second = mine.get(name, KEEP), other.get(name, KEEP)
            if first != second:
                kept = {**mine, name: second}
                reason = self._why_loop(name)
                found.append(self._early("loops", f"%{name}", first, second, reason, loops=kept))
        return found

    def _why_loop(self, name: str) -> str:
        policy = self._a.policy
        if policy is None or policy.loops is None:
            return ""
        session = with_expansions(self._module, self._backend, self._a.plan)
        site = next((s for s in session.loops() if s.id == name), None)
        return "" if site is None else policy.explain(site, session.module)

    def _early(
        self,
        phase: Phase,
        where: str,
        first: str,
        second: str,
        reason: str = "",
        passes: Collection[str] | None = None,
        expansions: Mapping[str, str] | None = None,
        loops: Mapping[str, str] | None = None,
    ) -> Difference:
        """Return a difference before fusion, with the first plan in which it is taken back."""
        plan = self._a.plan
        found = Difference(phase, where, first, second, reason)
        expanding = {c.id: c.choice for c in plan.expansions} if expansions is None else expansions
        try:
            session = CompilationSession(self._module, self._backend)
            if chosen := list(plan.passes if passes is None else passes):
                session.run_passes(chosen)
            for name, choice in expanding.items():
                if choice in next((s.choices for s in session.expansions() if s.id == name), ()):
                    session.set_expansion(name, choice)
            for name, choice in (plan.loops if loops is None else loops).items():
                if choice in next((s.choices for s in session.loops() if s.id == name), ()):
                    session.set_loop(name, choice)
            note = self._continue(session)
        except HlogymError as error:
            return replace(found, note=f"cannot be taken back alone: {' '.join(str(error).split())}")
        return replace(found, without=session.plan, estimate=session.cost().seconds - self._seconds, note=note)

    def _continue(self, session: CompilationSession) -> str:
        """Make the later decisions of a session as in a plan that begins fusion on its module; return a note."""
        key = _module_key(session)
        for side, begun in ((self._a, self._start), (self._b, self._other)):
            if key == _module_key(begun):
                done = FusedPlan(session, side.plan)
                for step in done.plan.steps:
                    session.apply(step.action)
                for sequence, row in done.plan.kernels.items():
                    for name, choice in row.items():
                        session.set_kernel(f"{sequence}/{name}", choice)
                return "" if side is self._a else f"without it, what follows is as in {side.label}"
        session.run_fusion_policy()
        return _BY_RULES

    # ---- fusion and kernels

    def _fusions(self) -> list[Difference]:
        a, b = self._first, self._second
        separable, rest = [], (set[Content](), set[Content]())
        for group in regions(a.kernels, b.kernels):
            found = self._region(group)
            if found is not None and found.without is not None:
                separable.append(found)
            else:
                rest[0].update(group[0])
                rest[1].update(group[1])
        if rest[0] or rest[1]:
            separable.append(self._region(rest))
        return [*separable, *self._kernel_choices()]

    def _region(self, group: tuple[set[Content], set[Content]]) -> Difference:
        a, b = self._first, self._second
        choices = {c: v for c, v in a.choices.items() if c not in group[0]}
        choices |= {c: v for c, v in b.choices.items() if c in group[1]}
        session = exchanged(self._start, a, b, group, choices)
        members = set[str]().union(*(inside for side in group for _, inside in side))
        chosen = [step.action for step, made in a.steps() if made & group[0]]
        reasons = [self._a.reasons[action] for action in chosen if action in self._a.reasons]
        return Difference(
            "fusion",
            _listed(f"%{m}" for m in sorted(members)),
            _kernels_text(a, group[0]),
            _kernels_text(b, group[1]),
            "; ".join(reasons[-_SHOWN:]),
            None if session is None else session.plan,
            None if session is None else session.cost().seconds - self._seconds,
            "cannot be taken back alone" if session is None else "",
        )

    def _kernel_choices(self) -> list[Difference]:
        a, b = self._first, self._second
        found = []
        for content, name in a.kernels.items():
            first, second = a.choices.get(content), b.choices.get(content)
            if content not in b.kernels or first == second:
                continue
            choices = {c: v for c, v in a.choices.items() if c != content}
            if second is not None:
                choices[content] = second
            session = exchanged(self._start, a, b, (set(), set()), choices)
            plan = None if session is None else session.plan
            where = f"%{name}"
            found.append(Difference("kernels", where, _choice(first), _choice(second), self._why_kernel(name), plan))
        return found

    def _why_kernel(self, name: str) -> str:
        policy = self._a.policy
        if policy is None or policy.kernels is None:
            return ""
        site = next((s for s in self._first.session.kernel_sites() if s.name == name), None)
        return "" if site is None else policy.explain(site)

    def _other_fusions(self, follows: bool) -> list[Difference]:
        """Return how the fusions differ if they were made on different modules, which cannot be compared one by one."""
        a, b = self._first, self._second
        note = "follows from the differences above" if follows else "made on different modules"
        first, second = (f"{len(p.kernels)} kernels, {len(p.plan.steps)} fusions" for p in (a, b))
        found = [Difference("fusion", "all kernels", first, second, note=note)]
        for sequence, row in self._a.plan.kernels.items():
            for name, choice in row.items():
                fewer = {s: {n: c for n, c in r.items() if (s, n) != (sequence, name)} for s, r in
                         self._a.plan.kernels.items()}  # fmt: skip
                plan = replace(self._a.plan, kernels={s: r for s, r in fewer.items() if r})
                found.append(Difference("kernels", f"%{name}", _choice(choice), "no such kernel", without=plan))
        return found


def _module_key(session: CompilationSession) -> tuple[str, dict[str, str]]:
    """Return a key of the module on which fusion began; the fingerprint alone does not tell loops that are kernels."""
    kernels = {name: choice for name, choice in session.plan.loops.items() if choice != KEEP}
    return session.fusion_base.fingerprint, kernels


def _begun(module: HloModule, backend: str, plan: CompilationPlan) -> CompilationSession:
    """Return a session with the decisions of a plan up to fusion, which has begun."""
    session = CompilationSession(module, backend)
    session.replay(replace(plan, steps=(), places={}, kernels={}))
    _ = session.fusion
    return session


def _why(policy: Policy | None, phase: Phase, site: ExpansionSite | None) -> str:
    if policy is None or site is None or phase not in policy.parts:
        return ""
    return policy.explain(site)


def _choice(choice: KernelChoice | None) -> str:
    return "the default" if choice is None else str(choice)


def _kernels_text(plan: FusedPlan, kernels: Collection[Content]) -> str:
    named = sorted((f"%{plan.kernels[k]}", len(k[1])) for k in kernels)
    count = f"{len(named)} kernel{'s' if len(named) != 1 else ''}"
    return f"{count}: {_listed(f'{name} ({ops})' for name, ops in named)}"


def _listed(items: Iterable[str]) -> str:
    found = list(items)
    shown = ", ".join(found[:_SHOWN])
    return f"{shown} and {len(found) - _SHOWN} more" if len(found) > _SHOWN else shown
