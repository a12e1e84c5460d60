"""Policies beside the rules by predicted time: one row per program, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.search import MAX_RANDOM_FUSIONS, RandomLoops
from compiler.errors import HlogymError
from compiler.fusion.policies import RandomFusion, make_policy
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.loops import KernelLoops, LoopPolicy
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import Program
from env.summaries import SpeedupSummary, summarise

__all__ = ["RANDOM", "RESHAPES_FIRST", "RULES", "UNROLLED", "UNTRAINED", "Starts", "Times", "predicted", "speedups"]

RULES = ("rules", "former rules", "greedy", "priority")
"""What decides without learning: the compiler's rules; those before reshapes were fused first and loops unrolled; other
fusion policies, with the rules for loops."""
RESHAPES_FIRST, UNROLLED = "reshapes first", "loops unrolled"
"""The former rules with one of both changes."""
FORMER_FUSION = "default"
RANDOM = "random"
"""Random choices for loops, and random fusions until none is possible."""
UNTRAINED = "untrained"
"""The network as it is before training, completed as the trained one."""


@dataclass(frozen=True)
class Times:
    """Predicted seconds of one program by what decided.

    Attributes:
        program: its name.
        family: its family.
        seconds: by the name of rules or of the search, one number.
        learned: by the name of a kind of training, and of random plans, one number per seed.
    """

    program: str
    family: str
    seconds: dict[str, float]
    learned: dict[str, list[float]]


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
        """Return the predicted seconds of the plan of some of RULES, or of a part of what changed in them."""
        session = CompilationSession(self._module, self._backend)
        parts: dict[str, tuple[LoopPolicy, str]] = {
            RULES[0]: (session.default_loops(), session.default_fusion()),
            RULES[1]: (KernelLoops(), FORMER_FUSION),
            RESHAPES_FIRST: (KernelLoops(), session.default_fusion()),
            UNROLLED: (session.default_loops(), FORMER_FUSION),
        }
        loops, fusion = parts.get(rules) or (session.default_loops(), rules)
        return self.seconds(loops, make_policy(fusion))

    def of_random(self, seed: int) -> float:
        """Return the predicted seconds of a random plan."""
        return self.seconds(RandomLoops(seed), RandomFusion(seed=seed, max_actions=MAX_RANDOM_FUSIONS))

    def of_policy(self, policy: LearnedFusionPolicy) -> float:
        """Return the predicted seconds of the plan of a policy that decides loops and fusion."""
        return self.seconds(policy, policy)


def predicted(
    program: Program, backend: str, policies: Mapping[str, Sequence[LearnedFusionPolicy]], seeds: int
) -> Times | None:
    """Return the times of a program by the rules, by as many random plans as there are seeds, and by policies.

    None if it takes no time or cannot be compiled.
    """
    try:
        starts = Starts(program, backend)
        seconds = {name: starts.of_rules(name) for name in RULES}
        if not all(seconds.values()):
            return None
        learned = {RANDOM: [starts.of_random(seed) for seed in range(seeds)]}
        learned |= {name: [starts.of_policy(p) for p in trained] for name, trained in policies.items()}
    except HlogymError:
        return None
    return Times(program.name, program.family or program.name, seconds, learned)


def speedups(times: Sequence[Times], name: str, over: str = "rules") -> SpeedupSummary:
    """Return the speedups of rules, of the search or of a kind of training over rules."""

    def ratios(t: Times) -> list[list[float]]:
        return [[t.seconds[over] / s] for s in (t.learned[name] if name in t.learned else [t.seconds[name]])]

    return summarise({t.program: ratios(t) for t in times})
