"""Default fusion of a session: where it leads, and how to fuse so without asking the policy what is known.

Environments and searches complete many compilations of one program so, which share most of their sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.deciders import decider_name
from compiler.fusion.policies import make_policy
from compiler.plan import CompilationPlan, FusionStep
from compiler.session import CompilationSession
from compiler.support.gc_pause import gc_rarely

__all__ = ["Completion", "default_completion", "fuse_by_default"]


@dataclass(frozen=True)
class Completion:
    """A compilation after default fusion: its plan, and its estimated time in seconds."""

    plan: CompilationPlan
    seconds: float


def default_completion(session: CompilationSession) -> Completion:
    """Return where `fuse_by_default` would lead, which costs little where the fusions of sequences are known.

    Args:
        session: it does not change.
    """
    rest = session.fork()
    if rest.is_fusing:
        rest.run_fusion_policy()
        return Completion(rest.plan, rest.cost().seconds)
    found = _completed(rest)
    rest.module.dismantle()
    return found


def fuse_by_default(session: CompilationSession) -> None:
    """Fuse as `run_fusion_policy()` does, but sequence by sequence, and without asking where the result is known.

    The names of fusions, which depend on their order, are therefore others.
    """
    if session.is_fusing:
        session.run_fusion_policy()
        return
    plan = _completed(session).plan
    with gc_rarely():
        session.replay_fusions(plan)
    session.decided_by = dict(plan.decided_by)  # the policy decided, not a plan of the user


def _completed(session: CompilationSession) -> Completion:
    """End the phases before fusion; return where default fusion leads."""
    base, name = session.fusion_base, session.default_fusion()
    session.decided_by["fusion"] = decider_name(make_policy(name))
    with gc_rarely():
        found = session.known_fusions.of(session.module, lambda: make_policy(name))
    fused = [found.sequences[c] for c in base.sequences if c in found.sequences]
    steps = tuple(FusionStep(*step) for s in fused for step in s.steps)
    plan = replace(session.plan, steps=steps, places=base.positions(steps, {}))
    return Completion(plan, found.seconds)
