"""What plans print in a terminal and in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.support.display import counted, first_of, html_table
from compiler.support.safe_names import one_line

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan

__all__ = ["plan_html", "plan_line", "plan_text"]

Row = tuple[str, str, list[str]]


def plan_line(plan: CompilationPlan) -> str:
    """Return one line: the backend, the module's fingerprint, and how many decisions of each kind were taken."""
    counts = (
        counted(len(plan.passes), "pass", "passes"),
        counted(len(plan.expansions), "expansion"),
        counted(len(plan.loop_choices), "loop"),
        counted(len(plan.steps), "fusion"),
        counted(sum(map(len, plan.kernels.values())), "kernel choice"),
    )
    taken = ", ".join(c for c in counts if not c.startswith("0 ")) or "no decisions"
    return f"<CompilationPlan for {plan.backend}, module {plan.fingerprint[:12]}: {taken}>"


def plan_text(plan: CompilationPlan) -> str:
    """Return a line for each phase with who decided it, and the decisions."""
    lines = [plan_line(plan)[1:-1]]
    for phase, by, decisions in _phases(plan):
        who = f" by {by}" if by else ""
        lines.append(one_line(f"{phase}{who}: {first_of(decisions)}"))
    return "\n".join(lines)


def plan_html(plan: CompilationPlan) -> str:
    """Return a table of the decisions by phase."""
    rows = [(phase, by, len(decisions), first_of(decisions)) for phase, by, decisions in _phases(plan)]
    return html_table(plan_line(plan)[1:-1], ("phase", "decided by", "number", "decisions"), rows)


def _phases(plan: CompilationPlan) -> list[Row]:
    kernels = [f"{name}: {choice}" for row in plan.kernels.values() for name, choice in row.items()]
    phases = {
        "passes": list(plan.passes),
        "expansions": [f"{c.id}: {c.choice}" for c in plan.expansions],
        "loops": [f"{c.id}: {c.choice}" for c in plan.loop_choices],
        "fusion": [str(s.action) for s in plan.steps],
        "kernels": kernels,
    }
    return [(phase, plan.decided_by.get(phase, ""), found) for phase, found in phases.items() if found]
