"""Policies beside the rules by predicted time: one row per program, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.ir import HloModule
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.loops import KERNEL, KernelLoops, LoopSite, UnrollLoops
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import Program
from env.summaries import SpeedupSummary, summarise

__all__ = [
    "RESHAPES_FIRST",
    "RULES",
    "Times",
    "UnrolledLoops",
    "learned_seconds",
    "predicted",
    "rules_seconds",
    "speedups",
]

RULES = ("rules", "reshapes first", "and unrolled")
"""What decides without learning: the compiler's rules; rules that fuse reshapes first; these, which also unroll loops.

The last two have what the rules were found to miss, so that what is learned beyond that can be seen."""
RESHAPES_FIRST = "reshapes,default"


@dataclass(frozen=True)
class Times:
    """Predicted seconds of one program by what decided.

    Attributes:
        program: its name.
        family: its family.
        seconds: by the name of rules or of the search, one number.
        learned: by the name of a kind of training, one number per seed.
    """

    program: str
    family: str
    seconds: dict[str, float]
    learned: dict[str, list[float]]


class UnrolledLoops:
    """Runs a loop inside one kernel where that is possible, and unrolls other loops by 8 or less."""

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return the choice for one loop."""
        if KERNEL in site.choices:
            return KERNEL
        return UnrollLoops(8).choose_loop(site, module)


def rules_seconds(program: Program, backend: str, rules: str) -> float:
    """Return the predicted seconds of the plan of some of RULES."""
    session = CompilationSession(parse(program.text()), backend)
    session.run_passes()
    session.run_loop_policy(UnrolledLoops() if rules == RULES[2] else KernelLoops())
    session.run_fusion_policy(make_policy(DEFAULT_POLICY if rules == RULES[0] else RESHAPES_FIRST))
    return session.fusion.seconds()


def learned_seconds(program: Program, backend: str, policy: LearnedFusionPolicy) -> float:
    """Return the predicted seconds of the plan of a policy, which also decides loops."""
    session = CompilationSession(parse(program.text()), backend)
    session.run_passes()
    session.run_loop_policy(policy)
    session.run_fusion_policy(policy)
    return session.fusion.seconds()


def predicted(program: Program, backend: str, policies: Mapping[str, Sequence[LearnedFusionPolicy]]) -> Times | None:
    """Return the times of a program by the rules and by policies; None if it takes none or cannot be compiled."""
    try:
        seconds = {name: rules_seconds(program, backend, name) for name in RULES}
        if not all(seconds.values()):
            return None
        learned = {name: [learned_seconds(program, backend, p) for p in seeds] for name, seeds in policies.items()}
    except HlogymError:
        return None
    return Times(program.name, program.family or program.name, seconds, learned)


def speedups(times: Sequence[Times], name: str, over: str = "rules") -> SpeedupSummary:
    """Return the speedups of rules, of the search or of a kind of training over rules."""

    def ratios(t: Times) -> list[list[float]]:
        return [[t.seconds[over] / s] for s in (t.learned[name] if name in t.learned else [t.seconds[name]])]

    return summarise({t.program: ratios(t) for t in times})
