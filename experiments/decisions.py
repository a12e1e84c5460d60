"""The decisions of a compilation without building its kernels, for commands that show modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compiler.api import decide_all
from compiler.backends.xla.fused_modules import module_for_xla
from compiler.policy import resolve_policy
from compiler.session import CompilationSession
from experiments.inputs import read_plan

if TYPE_CHECKING:
    from compiler.ir import HloModule

__all__ = ["decided_session", "fused_module"]


def decided_session(module: HloModule, backend: str, policy: str | None, plan: Path | None) -> CompilationSession:
    """Return a session that has replayed a plan, or in which a policy has made every decision.

    Raises:
        PlanError: the plan cannot be read, or was made for another module.
        UnknownNameError: there is no such backend or policy.
        PolicyError: the folder of the policy cannot be used.
    """
    session = CompilationSession(module, backend)
    if plan is not None:
        session.replay(read_plan(plan))
    else:
        decide_all(session, resolve_policy(policy, session.backend))
    return session


def fused_module(module: HloModule, backend: str, policy: str | None, plan: Path | None, for_xla: bool) -> HloModule:
    """Return the module after all decisions, with its fusions.

    Args:
        module: the program.
        backend: the backend whose libraries and limits decide what can be fused.
        policy: name or folder of the policy; None for the default.
        plan: file of a plan to replay instead of asking a policy.
        for_xla: dissolve the fusions that XLA:CPU refuses.
    """
    session = decided_session(module, backend, policy, plan)
    _ = session.fusion  # lowers the module if no decision about fusion did
    session.module.reorder()
    return module_for_xla(session.module) if for_xla else session.module
