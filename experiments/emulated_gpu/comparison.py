"""Policies beside the rules by predicted time: one row per program, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.loops import KERNEL, KernelLoops, LoopPolicy, LoopSite, UnrollLoops
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import Program
from env.summaries import SpeedupSummary, summarise

__all__ = [
    "RESHAPES_FIRST",
    "RULES",
    "Times",
    "UnrolledLoops",
    "predicted",
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


class Starts:
    """The starts of fusion of one program, by what was decided about its loops; what is learned of one is not lost.

    Args:
        program: the program.
        backend: whose kernels and device model decide.
    """

    def __init__(self, program: Program, backend: str) -> None:
        self._module, self._backend = parse(program.text()), backend
        self._states: dict[tuple[str, ...], FusionState] = {}

    def seconds(self, loops: LoopPolicy, fusion: FusionPolicy) -> float:
        """Return the predicted seconds of the plan of policies."""
        state = self._states.get(())  # of a program without loops
        if state is None:
            session = CompilationSession(self._module, self._backend)
            session.run_passes()
            session.run_loop_policy(loops)
            choices = tuple(f"{c.id} {c.choice}" for c in session.plan.loop_choices)
            state = self._states.get(choices)
            if state is None:
                state = self._states[choices] = session.fusion
        run_policy(state, fusion)
        seconds = state.seconds()
        while state.history:
            state.undo()
        return seconds

    def of_rules(self, rules: str) -> float:
        """Return the predicted seconds of the plan of some of RULES."""
        loops: LoopPolicy = UnrolledLoops() if rules == RULES[2] else KernelLoops()
        return self.seconds(loops, make_policy(DEFAULT_POLICY if rules == RULES[0] else RESHAPES_FIRST))

    def of_policy(self, policy: LearnedFusionPolicy) -> float:
        """Return the predicted seconds of the plan of a policy that decides loops and fusion."""
        return self.seconds(policy, policy)


def predicted(program: Program, backend: str, policies: Mapping[str, Sequence[LearnedFusionPolicy]]) -> Times | None:
    """Return the times of a program by the rules and by policies; None if it takes none or cannot be compiled."""
    try:
        starts = Starts(program, backend)
        seconds = {name: starts.of_rules(name) for name in RULES}
        if not all(seconds.values()):
            return None
        learned = {name: [starts.of_policy(p) for p in seeds] for name, seeds in policies.items()}
    except HlogymError:
        return None
    return Times(program.name, program.family or program.name, seconds, learned)


def speedups(times: Sequence[Times], name: str, over: str = "rules") -> SpeedupSummary:
    """Return the speedups of rules, of the search or of a kind of training over rules."""

    def ratios(t: Times) -> list[list[float]]:
        return [[t.seconds[over] / s] for s in (t.learned[name] if name in t.learned else [t.seconds[name]])]

    return summarise({t.program: ratios(t) for t in times})
