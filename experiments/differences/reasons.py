"""The reasons that a policy gives for its choices: predictions, conditions of rules, and scores of fusions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from compiler.expansions import ExpansionSite
from compiler.ir import HloModule
from compiler.plan import CompilationPlan, Phase
from compiler.session import CompilationSession
from experiments.differences.sides import Side

__all__ = ["Reason", "decided_expansions", "policy_reasons", "with_expansions"]


class Reason(NamedTuple):
    """Why a policy chose what it chose: the phase, the site or the action, and the text."""

    phase: Phase
    where: str
    text: str


def policy_reasons(module: HloModule, backend: str, side: Side) -> list[Reason]:
    """Return the reasons of a side's policy, for the phases that it decides and can explain."""
    policy = side.policy
    if policy is None:
        return []
    explained = {phase for phase, part in policy.parts.items() if hasattr(part, "explain")}
    found = []
    if "expansions" in explained:
        sites = decided_expansions(module, backend, side.plan)
        found += [Reason("expansions", f"%{name}", policy.explain(site)) for name, site in sites.items()]
    if "loops" in explained:
        session = with_expansions(module, backend, side.plan)
        found += [Reason("loops", f"%{s.id}", policy.explain(s, session.module)) for s in session.loops()]
    found += [Reason("fusion", str(action), text) for action, text in side.reasons.items()]
    if "kernels" in explained:
        session = CompilationSession(module, backend)
        session.replay(side.plan)
        found += [Reason("kernels", f"%{s.name}", policy.explain(s)) for s in session.kernel_sites()]
    return found


def decided_expansions(module: HloModule, backend: str, plan: CompilationPlan) -> dict[str, ExpansionSite]:
    """Return the sites of expansions by id, as they were when a plan decided them; other sites as they are at last."""
    session = CompilationSession(module, backend)
    if plan.passes:
        session.run_passes(list(plan.passes))
    found = {s.id: s for s in session.expansions()}
    for choice in plan.expansions:
        session.set_expansion(choice.id, choice.choice)
        found |= {s.id: s for s in session.expansions() if s.id not in found}
    return found


def with_expansions(module: HloModule, backend: str, plan: CompilationPlan) -> CompilationSession:
    """Return a session with the decisions of a plan up to its expansions."""
    session = CompilationSession(module, backend)
    session.replay(
        replace(plan, loop_choices=(), loop_passes=(), base="", sequences=(), steps=(), places={}, kernels={})
    )
    return session
