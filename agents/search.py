"""Strategies that make plans for a program: heuristics, searches that measure, and learned policies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from agents.finalists import Observer
from compiler.api import decide_all
from compiler.errors import HlogymError, UnknownNameError
from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import POLICIES, SEARCHES, RandomFusion, make_policy
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.loops import FULL, KeepLoops, KernelLoops, LoopPolicy, LoopSite, unroll_factor_of
from compiler.plan import CompilationPlan
from compiler.policy import Policy
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer
from env.suites import Program

__all__ = [
    "STRATEGIES",
    "Found",
    "NoPlanError",
    "beam_plans",
    "best_measured",
    "find_plan",
    "learned_plans",
    "make_plan",
    "random_plans",
]

STRATEGIES = (
    "none",
    *(p for p in POLICIES if p != "none" and p not in SEARCHES),
    "random",
    "beam",
    "learned",
    "learned+search",
)
"""The strategies of `find_plan`; "none", the heuristics and "learned" measure nothing."""
MAX_BODY = 400
MAX_RANDOM_FUSIONS = 500


class NoPlanError(HlogymError, RuntimeError):
    """A search in which every plan failed: the number of plans and the reasons."""


@dataclass(frozen=True)
class Found:
    """A plan, and the number of plans measured to find it.

    Attributes:
        failures: number of those that failed.
        reason: why the last of them failed.
    """

    plan: CompilationPlan
    measurements: int = 0
    failures: int = 0
    reason: str = ""


@dataclass(frozen=True)
class RandomLoops:
    """Takes a random choice for each loop, but does not unroll beyond MAX_BODY instructions.

    Random fusions of larger bodies take minutes to draw and seconds to compile, and the plans are never good.
    """

    seed: int

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return a choice that depends on the seed and the loop only."""
        del module
        copies = {c: _copies(c, site.trip_count) for c in site.choices}
        fitting = [c for c, n in copies.items() if n == 1 or n * site.size <= MAX_BODY]
        return random.Random(f"{self.seed} {site.position}").choice(fitting)


def _copies(choice: str, trips: int | None) -> int:
    """Return how many copies of the body of a loop a choice makes."""
    if choice == FULL:
        return trips or 1
    return unroll_factor_of(choice) or 1


class Starts:
    """Sessions after the default passes, one per program; each plan starts from a fork of one."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._sessions: dict[str, CompilationSession] = {}

    def undecided(self, program: Program) -> CompilationSession:
        """Return a new session for a program, before its passes."""
        module = parse(program.text(), filename=str(program.path))
        verify(module)
        return CompilationSession(module, backend=self.backend)

    def session(self, program: Program) -> CompilationSession:
        """Return a new session for a program, with its passes done and its loops to be decided."""
        if program.name not in self._sessions:
            session = self.undecided(program)
            session.run_passes()
            self._sessions[program.name] = session
        return self._sessions[program.name].fork()


def make_plan(session: CompilationSession, fusion: FusionPolicy, loops: LoopPolicy) -> CompilationPlan:
    """Return the plan that two policies make."""
    session.run_loop_policy(loops)
    session.run_fusion_policy(fusion)
    return session.plan


def random_plans(starts: Starts, program: Program, seed: int) -> Iterator[CompilationPlan]:
    """Yield random plans without end: random loop choices, then random fusions that may stop early."""
    rng = random.Random(seed)
    while True:
        stop = rng.choice((0.0, 0.0, 0.02, 0.1))
        fusion = RandomFusion(seed=rng.getrandbits(32), stop_probability=stop, max_actions=MAX_RANDOM_FUSIONS)
        yield make_plan(starts.session(program), fusion, RandomLoops(rng.getrandbits(32)))


def learned_plans(
    starts: Starts, program: Program, policy: LearnedFusionPolicy | Policy, seed: int
) -> Iterator[CompilationPlan]:
    """Yield the best plan of a policy, then samples from it without end if its fusions can be drawn."""
    if isinstance(policy, Policy):
        session = starts.undecided(program)
        decide_all(session, policy.for_backend(starts.backend))
        yield session.plan
        if not isinstance(policy.fusion, LearnedFusionPolicy):
            return
        policy = policy.fusion
    yield make_plan(starts.session(program), replace(policy, seed=None), replace(policy, seed=None))
    rng = random.Random(seed)
    while True:
        drawn = replace(policy, seed=rng.getrandbits(32))
        yield make_plan(starts.session(program), drawn, drawn)


def beam_plans(starts: Starts, program: Program, width: int = 4, branch: int = 4) -> Iterator[CompilationPlan]:
    """Yield the plans of a beam search by the cost model, the best first.

    Each step tries the best `branch` actions of each of `width` states.
    """
    session = starts.session(program)
    session.run_loop_policy(KernelLoops())
    state: FusionState = session.fusion
    beam: list[_Scored] = [(state.seconds(), ())]
    finished, seen = list(beam), {state.fingerprint}
    while beam:
        grown = [child for _, actions in beam for child in _children(session, actions, branch, seen)]
        grown.sort(key=lambda c: c[0])
        beam = grown[:width]
        finished += beam
    finished.sort(key=lambda c: c[0])
    for _, actions in finished:
        _move(session, actions)
        yield session.plan


_Scored: TypeAlias = "tuple[float, tuple[FusionAction, ...]]"
"""Estimated seconds after some fusions, and these."""


def _children(
    session: CompilationSession, actions: tuple[FusionAction, ...], branch: int, seen: set[str]
) -> Iterator[_Scored]:
    """Yield the sequences of fusions that are longer by one of the best, if they lead to something new."""
    _move(session, actions)
    state: FusionState = session.fusion
    savings = sorted(((state.estimate(a), n, a) for n, a in enumerate(state.actions())), key=lambda s: (-s[0], s[1]))
    for saving, _, action in savings[:branch]:
        if saving > 0:
            session.apply(action)
            if state.fingerprint not in seen:
                seen.add(state.fingerprint)
                yield state.seconds(), (*actions, action)
            session.undo()


def _move(session: CompilationSession, actions: tuple[FusionAction, ...]) -> None:
    """Undo and apply fusions, so that those of the session are the given ones."""
    done = session.fusion.history
    common = 0
    while common < min(len(done), len(actions)) and done[common] == actions[common]:
        common += 1
    for _ in range(len(done) - common):
        session.undo()
    for action in actions[common:]:
        session.apply(action)


def best_measured(
    measurer: Measurer,
    program: Program,
    plans: Iterable[CompilationPlan],
    budget: int,
    progress: Observer | None = None,
) -> Found:
    """Measure up to `budget` different plans and keep the fastest, each by its time beside the default plan's.

    Plans that occur again are not measured or counted. At most four times the budget are drawn, because a small program
    has few plans.

    Raises:
        NoPlanError: all failed.
        MeasurementError: nothing can be measured on this machine.
    """
    best: tuple[float, CompilationPlan] | None = None
    seen: set[str] = set()
    measured = 0
    reasons: list[str] = []
    drawn = iter(plans)
    for _ in range(4 * budget):
        # A plan is drawn only if it can be measured, because the caller may continue with the rest.
        plan = next(drawn, None) if measured < budget else None
        if plan is None:
            break
        text = plan.to_json()
        if text in seen:
            continue
        seen.add(text)
        result = measurer.measure(program, plan)
        measured += 1
        if result.seconds is None:
            reasons.append(result.reason)
        elif best is None or result.relative < best[0]:
            best = (result.relative, plan)
        if progress is not None:
            progress(plan, result)
    if best is None:
        listed = "\n  - ".join(["", *dict.fromkeys(reasons[-3:])])
        raise NoPlanError(
            f"{program.name}: each of the {measured} plans that were measured has failed; the last reasons:{listed}"
        )
    return Found(best[1], measured, len(reasons), reasons[-1] if reasons else "")


def find_plan(
    strategy: str,
    starts: Starts,
    program: Program,
    measurer: Measurer,
    budget: int,
    policy: LearnedFusionPolicy | Policy | None = None,
    seed: int = 0,
) -> Found:
    """Return a strategy's plan for a program.

    Args:
        strategy: one of STRATEGIES.
        starts: sessions of the backend to plan for.
        program: the program.
        measurer: measures plans for the strategies that search.
        budget: number of plans that they may measure.
        policy: of "learned" and "learned+search".
        seed: of all random draws.

    Raises:
        UnknownNameError: no such strategy, or a learned one without a policy.
        NoPlanError: every plan of the strategy failed.
    """
    searches: Mapping[str, Callable[[], Iterator[CompilationPlan]]] = {
        "random": lambda: random_plans(starts, program, seed),
        "beam": lambda: beam_plans(starts, program),
    }
    if policy is not None:
        searches = {**searches, "learned+search": lambda: learned_plans(starts, program, policy, seed)}
    if strategy in searches:
        return best_measured(measurer, program, searches[strategy](), budget)
    if strategy == "learned" and policy is not None:
        return Found(next(learned_plans(starts, program, policy, seed)))
    if strategy == "none":
        return Found(make_plan(starts.session(program), make_policy("none"), KeepLoops()))
    if strategy in POLICIES:
        return Found(make_plan(starts.session(program), make_policy(strategy), KernelLoops()))
    raise UnknownNameError("strategy", strategy, STRATEGIES)
