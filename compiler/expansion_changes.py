"""The expansions that a policy decides otherwise than the default; all other sites stay undecided."""

from __future__ import annotations

from compiler.deciders import decider_name
from compiler.expansions import ExpansionPolicy, ExpansionSite
from compiler.session import CompilationSession

__all__ = ["run_expansion_changes"]

MOST_CHANGED_INSTRUCTIONS = 150_000
"""Most changes in a module times its instructions, some two seconds; the rest keep their default."""


def run_expansion_changes(session: CompilationSession, policy: ExpansionPolicy) -> None:
    """Make the expansions for which a policy does not choose the default, which undecided sites get anyway.

    Args:
        session: in the phase of expansions or before.
        policy: asked once for each site, also those that earlier choices bring about. Of large modules with many
            sites, those beyond MOST_CHANGED_INSTRUCTIONS stay undecided.

    Raises:
        PlanError: the policy chose something that is not possible.
    """
    session.decided_by["expansions"] = decider_name(policy)
    asked: set[str] = set()
    # Each change looks at the whole module twice, so large modules with many sites would take too long.
    for _ in range(max(1, MOST_CHANGED_INSTRUCTIONS // max(1, session.module.instruction_count))):
        change = _next_change(session, policy, asked)
        if change is None:
            break
        session.set_expansion(*change)


def _next_change(
    session: CompilationSession, policy: ExpansionPolicy, asked: set[str]
) -> tuple[ExpansionSite, str] | None:
    """Return the first site, among those not `asked` about, for which a policy leaves the default."""
    for site in session.expansions():
        if site.id not in asked:
            asked.add(site.id)
            choice = policy.choose_expansion(site)
            if choice != site.default:
                return site, choice
    return None
