"""The environments by what they decide."""

from __future__ import annotations

from typing import ClassVar

from env.decision import DecisionEnv
from env.episode import Phase
from env.pass_order import PassOrderEnv

__all__ = ["CompileEnv", "FusionEnv", "PassOrderEnv", "UnrollEnv"]


class FusionEnv(DecisionEnv):
    """First how each loop runs (keep it, unroll it), then which instructions become one kernel."""

    phases: ClassVar[tuple[Phase, ...]] = ("loops", "fusion")


class UnrollEnv(DecisionEnv):
    """How each loop runs; then fusion by the default policy. Compared with loops as they are."""

    phases: ClassVar[tuple[Phase, ...]] = ("loops",)


class CompileEnv(DecisionEnv):
    """All decisions in one episode: passes, loops, fusion. Compared with the default passes and no fusion."""

    phases: ClassVar[tuple[Phase, ...]] = ("passes", "loops", "fusion")
