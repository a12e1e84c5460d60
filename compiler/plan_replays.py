"""Replays of many plans of few programs, as environments measure them, which share the work before fusion."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from compiler.api import checked_module
from compiler.backends.registry import find_backend
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.session import CompilationSession
from compiler.support.gc_pause import gc_rarely
from compiler.support.lru_dict import LruDict

MOST = 10_000
"""Instructions of the programs that are kept, with the answers to questions of legality."""


class PlanReplays:
    """Compiles programs by plans; those that agree up to fusion share parsing, passes and legality.

    Not for several threads at once.

    Args:
        most: number of instructions of the programs that are kept, each as it is when fusion begins.
    """

    def __init__(self, most: int = MOST) -> None:
        self._begun: LruDict[Hashable, CompilationSession] = LruDict(most, _instructions)

    @gc_rarely()
    def compile(self, text: str, backend: str, plan: CompilationPlan) -> Executable:
        """Return the executable of `compile(text, backend, plan=plan)`; errors are those of that function."""
        name = find_backend(backend).name
        if not plan.base:
            session = CompilationSession(checked_module(text), name)
            session.replay(plan)
            return session.finish()
        before = plan.passes, plan.expansions, plan.loop_choices, plan.loop_passes
        key = text, name, plan.fingerprint, plan.base, before
        begun = self._begun.get(key)
        if begun is None:
            begun = CompilationSession(checked_module(text), name)
            begun.replay(replace(plan, steps=(), places={}, kernels={}))
            self._begun[key] = begun
        session = begun.fork()
        session.replay_fusions(plan)
        return session.finish()


def _instructions(key: Hashable, session: CompilationSession) -> int:
    del key
    return session.module.instruction_count
